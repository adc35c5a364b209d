//! What is configured: for which sources a change is on trial, how long, and what it has to pass.

use std::time::Duration;

use limpet_model::source::SourceKind;

/// Of which changes of a source generations are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// A change takes effect at once and stays.
    #[default]
    Off,
    /// Pods and workloads are on trial; ConfigMaps and Secrets take effect at once and stay.
    Pods,
    /// ConfigMaps and Secrets are on trial, too.
    All,
}

impl Policy {
    /// As the configuration names them.
    pub const NAMES: [(&'static str, Self); 3] = [("off", Self::Off), ("pods", Self::Pods), ("all", Self::All)];

    /// The policy of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::NAMES.into_iter().find(|(known, _)| *known == name).map(|(_, policy)| policy)
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Pods => "pods",
            Self::All => "all",
        }
    }
}

/// The policy of each source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Policies([Policy; SourceKind::ALL.len()]);

impl Policies {
    /// The same with that policy for a source.
    #[must_use]
    pub fn with(mut self, source: SourceKind, policy: Policy) -> Self {
        self.0[source.index()] = policy;
        self
    }

    /// The policy of a source.
    pub fn policy(&self, source: SourceKind) -> Policy {
        self.0[source.index()]
    }

    /// Whether no source has generations.
    pub fn are_off(&self) -> bool {
        self.0.iter().all(|policy| *policy == Policy::Off)
    }
}

/// What a generation has to pass beside the readiness of its pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CheckAction {
    /// A program and its arguments: exit code 0 is good.
    Command(Vec<String>),
    /// A URL: a status from 200 to 399 is good.
    Url(String),
}

/// `generations` of the LimpetConfiguration, as far as decisions depend on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    pub policies: Policies,
    /// How long a generation may take to be good.
    pub progress_deadline: Duration,
    /// How long all its pods have to be ready without a break.
    pub min_ready: Duration,
    /// How many restarts of a pod's containers are accepted during a trial.
    pub max_restarts: u32,
    /// How many good generations are kept, the present one included.
    pub history_limit: usize,
    pub check: Option<CheckAction>,
    /// How long the check may take.
    pub check_timeout: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            policies: Policies::default(),
            progress_deadline: Duration::from_secs(300),
            min_ready: Duration::from_secs(10),
            max_restarts: 3,
            history_limit: 3,
            check: None,
            check_timeout: Duration::from_secs(30),
        }
    }
}
