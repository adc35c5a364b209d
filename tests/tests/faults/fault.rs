//! What can go wrong where: the names of faults, which a failure prints and `LIMPET_TEST_FAULT` takes.

use std::fmt;
use std::ops::Range;

use anyhow::{Context as _, Result, bail};

use crate::proxy::Call;
use crate::subject::Phase;

/// The variable with the only fault to try, as a failure has printed it.
pub(crate) const FAULT_VARIABLE: &str = "LIMPET_TEST_FAULT";
/// The variable with the rounds of a long run to try, `60..` or `60..120`, so that it can be continued, or done in
/// parts.
const ROUNDS_VARIABLE: &str = "LIMPET_TEST_ROUNDS";

/// The codes of gRPC that containerd uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Code {
    Cancelled,
    Unknown,
    DeadlineExceeded,
    NotFound,
    AlreadyExists,
    ResourceExhausted,
    FailedPrecondition,
    Aborted,
    Internal,
    Unavailable,
}

const CODES: [(Code, u8, &str); 10] = [
    (Code::Cancelled, 1, "Cancelled"),
    (Code::Unknown, 2, "Unknown"),
    (Code::DeadlineExceeded, 4, "DeadlineExceeded"),
    (Code::NotFound, 5, "NotFound"),
    (Code::AlreadyExists, 6, "AlreadyExists"),
    (Code::ResourceExhausted, 8, "ResourceExhausted"),
    (Code::FailedPrecondition, 9, "FailedPrecondition"),
    (Code::Aborted, 10, "Aborted"),
    (Code::Internal, 13, "Internal"),
    (Code::Unavailable, 14, "Unavailable"),
];

impl Code {
    pub(crate) fn number(self) -> u8 {
        CODES.iter().find(|(code, ..)| *code == self).map_or(2, |(_, number, _)| *number)
    }

    pub(crate) fn name(self) -> &'static str {
        CODES.iter().find(|(code, ..)| *code == self).map_or("Unknown", |(.., name)| name)
    }
}

/// Whether something happens before containerd (a plugin, runc) has seen the call, or after it has done it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moment {
    Before,
    After,
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Self::Before { "before" } else { "after" })
    }
}

/// What happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Harm {
    /// The agent gets SIGKILL.
    KillAgent,
    /// The agent's connection ends; both sides live on.
    Cut,
    /// The answer does not come before the agent gives up.
    Delay,
    /// The answer is replaced by a status.
    Answer(Code),
    /// containerd gets SIGKILL.
    KillContainerd,
    /// The pod's shim gets SIGKILL.
    KillShim,
    /// The loggers of the pod's containers get SIGKILL.
    KillLogger,
    /// runc gets SIGKILL while it works.
    KillRunc,
    /// The pod's shim gets SIGSTOP.
    StopShim,
    /// The CNI plugin fails.
    Fail,
    /// The CNI plugin does not end.
    Hang,
    /// The agent is killed, and the plugin that it has called does its work only when the next agent has called it
    /// already.
    Late,
}

const HARMS: [(Harm, &str); 11] = [
    (Harm::KillAgent, "kill"),
    (Harm::Cut, "cut"),
    (Harm::Delay, "delay"),
    (Harm::KillContainerd, "kill-containerd"),
    (Harm::KillShim, "kill-shim"),
    (Harm::KillLogger, "kill-logger"),
    (Harm::KillRunc, "kill-runc"),
    (Harm::StopShim, "stop-shim"),
    (Harm::Fail, "fail"),
    (Harm::Hang, "hang"),
    (Harm::Late, "late"),
];

impl fmt::Display for Harm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Answer(code) => f.write_str(code.name()),
            other => f.write_str(HARMS.iter().find(|(harm, _)| harm == other).map_or("", |(_, name)| name)),
        }
    }
}

impl Harm {
    /// Whether containers of the pod may end because of it, and so run more often than planned.
    ///
    /// A containerd that is killed while it starts a task may leave the process running and the task `CREATED`: then
    /// it cannot be observed that it has run.
    pub(crate) fn may_restart(self) -> bool {
        matches!(self, Self::KillShim | Self::KillLogger | Self::KillRunc | Self::KillContainerd)
    }

    fn named(name: &str) -> Option<Self> {
        let harm = HARMS.iter().find(|(_, known)| *known == name).map(|(harm, _)| *harm);
        harm.or_else(|| CODES.iter().find(|(.., known)| *known == name).map(|(code, ..)| Self::Answer(*code)))
    }
}

/// One request of a phase: the n-th of its method, of those about a pod or of all.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Target {
    pub(crate) method: String,
    pub(crate) number: usize,
    /// The pod's name; `None` for the requests that are not counted by pod.
    pub(crate) about: Option<String>,
}

/// The method that stands for the requests of all methods.
pub(crate) const ANY: &str = "any";

impl Target {
    /// Whether `call`, which was the `total`-th of all, is the target.
    pub(crate) fn is(&self, call: &Call, total: usize) -> bool {
        if self.method == ANY {
            return self.number == total;
        }
        self.method == call.method && self.number == call.number && self.about == call.about
    }
}

/// A fault with its name: `start:Tasks.Create#2:kill-containerd:after`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) phase: Phase,
    pub(crate) method: String,
    pub(crate) number: usize,
    pub(crate) harm: Harm,
    pub(crate) moment: Moment,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}#{}:{}:{}", self.phase.name(), self.method, self.number, self.harm, self.moment)
    }
}

impl std::str::FromStr for Fault {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let form = || format!("{FAULT_VARIABLE}={text}: not of the form start:Tasks.Create#2:kill:after");
        let parts: Vec<_> = text.split(':').collect();
        let [phase, call, harm, moment] = parts[..] else { bail!(form()) };
        let (method, number) = call.split_once('#').with_context(form)?;
        Ok(Self {
            phase: Phase::named(phase).with_context(form)?,
            method: method.to_owned(),
            number: number.parse().with_context(form)?,
            harm: Harm::named(harm).with_context(form)?,
            moment: if moment == "before" { Moment::Before } else { Moment::After },
        })
    }
}

/// The rounds to try: all, unless some are selected.
pub(crate) fn rounds() -> Result<Range<usize>> {
    let Ok(text) = std::env::var(ROUNDS_VARIABLE) else { return Ok(0..usize::MAX) };
    let number = |text: &str, default| if text.is_empty() { Ok(default) } else { text.parse::<usize>() };
    let (from, to) = text.split_once("..").with_context(|| format!("{ROUNDS_VARIABLE}={text}: not like 60..120"))?;
    Ok(number(from, 0).with_context(|| text.clone())?..number(to, usize::MAX).with_context(|| text.clone())?)
}

/// Whether only some of the faults are tried.
pub(crate) fn is_a_selection() -> Result<bool> {
    Ok(asked_for()?.is_some() || std::env::var_os(ROUNDS_VARIABLE).is_some())
}

/// The one selected fault, if any.
pub(crate) fn asked_for() -> Result<Option<Fault>> {
    std::env::var(FAULT_VARIABLE).ok().map(|text| text.parse()).transpose()
}
