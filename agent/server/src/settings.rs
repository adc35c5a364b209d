//! The settings of the server: its network listeners (kubelet's API, the read-only port and the health port), and
//! what its routes show of the node.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use limpet_host::cgroup::CgroupDriver;
use limpet_model::node::Device;
use limpet_model::pod::PodKey;
use rustls::{CipherSuite, NamedGroup};

/// kubelet's default for `port`.
const DEFAULT_PORT: u16 = 10_250;
/// kubelet's default for `healthzPort`.
const HEALTHZ_PORT: u16 = 10_248;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AuthorizationMode {
    /// Every authenticated user may use every route.
    AlwaysAllow,
    /// An apiserver decides, except about `serverAllowedNames`, who may use every route. Without an apiserver no
    /// other caller may use any.
    #[default]
    Webhook,
}

impl AuthorizationMode {
    /// The value in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::AlwaysAllow => "AlwaysAllow",
            Self::Webhook => "Webhook",
        }
    }
}

/// Which of kubelet's debugging routes are served on `port`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DebugHandlers {
    /// `enableDebuggingHandlers`: all routes but health, statistics and pods.
    pub enabled: bool,
    /// `enableSystemLogHandler`: `/logs/`.
    pub system_logs: bool,
    /// `enableSystemLogQuery`: queries of services there.
    pub system_log_query: bool,
    /// `enableProfilingHandler`: `/debug/pprof/`.
    pub profiling: bool,
    /// `enableDebugFlagsHandler`: `/debug/flags/v`.
    pub flags: bool,
}

impl DebugHandlers {
    /// Every handler is on.
    pub const ALL: Self =
        Self { enabled: true, system_logs: true, system_log_query: true, profiling: true, flags: true };
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerSettings {
    /// `enableServer`.
    pub enabled: bool,
    /// `address` of `port` and `readOnlyPort`.
    pub address: IpAddr,
    /// `port`; 0 disables it.
    pub port: u16,
    /// `readOnlyPort`; 0 disables it.
    pub read_only_port: u16,
    /// `healthzBindAddress`.
    pub healthz_address: IpAddr,
    /// `healthzPort`; 0 disables it.
    pub healthz_port: u16,
    /// `tlsCertFile` and `tlsPrivateKeyFile`; `None`: a self-signed certificate, or one that the apiserver has
    /// issued.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// `serverTLSBootstrap`: the certificate is requested from the apiserver.
    pub certificate_by_request: bool,
    /// `--cert-dir`: where the self-signed certificate is stored; `None`: below the root directory.
    pub certificate_dir: Option<PathBuf>,
    /// `tlsMinVersion` is `VersionTLS13`.
    pub tls13_only: bool,
    /// `tlsCipherSuites` of TLS 1.2; empty means all.
    pub cipher_suites: Vec<CipherSuite>,
    /// `tlsCurvePreferences`, without order; empty means all.
    pub key_exchanges: Vec<NamedGroup>,
    /// `authentication.x509.clientCAFile`; `None`: no client certificate is accepted.
    pub client_ca: Option<PathBuf>,
    /// `authentication.anonymous.enabled`: callers without a certificate and a token are `system:anonymous`.
    pub anonymous: bool,
    /// Whether there is an apiserver: `--kubeconfig`.
    pub reviews: bool,
    /// `authentication.webhook.enabled`: bearer tokens are accepted where there is an apiserver to review them.
    pub tokens: bool,
    /// `authentication.webhook.cacheTTL`.
    pub token_lifetime: Duration,
    pub mode: AuthorizationMode,
    /// `authorization.webhook.cacheAuthorizedTTL`.
    pub allowed_lifetime: Duration,
    /// `authorization.webhook.cacheUnauthorizedTTL`.
    pub denied_lifetime: Duration,
    /// `serverAllowedNames`: common names of certificates, or `group:` and an organization.
    pub allowed_names: Vec<String>,
    /// `streamingConnectionIdleTimeout`: how long `/exec`, `/attach` and `/portForward` may carry no data; `None`:
    /// any time.
    pub stream_idle_timeout: Option<Duration>,
    /// `enableDebuggingHandlers` and the related settings.
    pub debug: DebugHandlers,
}

impl Default for ServerSettings {
    fn default() -> Self {
        Self {
            enabled: true,
            address: Ipv4Addr::UNSPECIFIED.into(),
            port: DEFAULT_PORT,
            read_only_port: 0,
            healthz_address: Ipv4Addr::LOCALHOST.into(),
            healthz_port: HEALTHZ_PORT,
            certificate: None,
            certificate_by_request: false,
            certificate_dir: None,
            tls13_only: false,
            cipher_suites: Vec::new(),
            key_exchanges: Vec::new(),
            client_ca: None,
            anonymous: false,
            reviews: false,
            tokens: true,
            token_lifetime: Duration::from_secs(120),
            mode: AuthorizationMode::default(),
            allowed_lifetime: Duration::from_secs(300),
            denied_lifetime: Duration::from_secs(30),
            allowed_names: Vec::new(),
            stream_idle_timeout: Some(Duration::from_secs(4 * 60 * 60)),
            debug: DebugHandlers { system_log_query: false, ..DebugHandlers::ALL },
        }
    }
}

impl ServerSettings {
    /// Where kubelet's API is served; `None` if it is disabled, or no caller could be admitted.
    pub fn api(&self) -> Option<SocketAddr> {
        let anybody = self.client_ca.is_some() || self.anonymous || self.takes_tokens();
        (self.enabled && anybody && self.port != 0).then(|| SocketAddr::new(self.address, self.port))
    }

    /// Whether bearer tokens are accepted.
    pub fn takes_tokens(&self) -> bool {
        self.tokens && self.reviews
    }

    /// Where the read-only routes are served without authentication.
    pub fn read_only(&self) -> Option<SocketAddr> {
        (self.enabled && self.read_only_port != 0).then(|| SocketAddr::new(self.address, self.read_only_port))
    }

    /// Where health alone is served.
    pub fn healthz(&self) -> Option<SocketAddr> {
        (self.healthz_port != 0).then(|| SocketAddr::new(self.healthz_address, self.healthz_port))
    }
}

/// The settings of local listeners.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LocalSettings {
    /// `--socket` or `LIMPET_SOCKET`, absolute; `None`: `limpet.sock` in the run directory.
    pub socket: Option<PathBuf>,
    /// `socketAllowedPods`: the pods whose processes may use the local socket.
    pub allowed_pods: Vec<PodKey>,
    pub cri_socket: CriSocket,
    /// `metricsAddress`: the additional listener for `/metrics` and `/healthz`; loopback only.
    pub metrics_address: Option<SocketAddr>,
}

impl LocalSettings {
    pub fn socket(&self, run_dir: &Path) -> PathBuf {
        self.socket.clone().unwrap_or_else(|| run_dir.join("limpet.sock"))
    }

    /// The path of CRI's socket, if CRI is served.
    pub fn cri_socket(&self, run_dir: &Path) -> Option<PathBuf> {
        match &self.cri_socket {
            CriSocket::InRunDirectory => Some(run_dir.join("cri.sock")),
            CriSocket::At(path) => Some(path.clone()),
            CriSocket::Off => None,
        }
    }
}

/// `criSocket`: where CRI is served.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum CriSocket {
    /// `cri.sock` in the run directory.
    #[default]
    InRunDirectory,
    At(PathBuf),
    Off,
}

/// The part of the node's configuration that the server uses or shows.
#[derive(Debug, Clone)]
pub struct ServedNode {
    pub server: ServerSettings,
    /// The directory of kubelet's API certificates.
    pub pki_dir: PathBuf,
    /// `socketAllowedPods`: the pods whose processes may use the local socket.
    pub socket_allowed_pods: Vec<PodKey>,
    /// `devices`, by the resource's name.
    pub devices: BTreeMap<String, Device>,
    /// `cgroupDriver`.
    pub cgroup_driver: CgroupDriver,
    pub runtime_endpoint: PathBuf,
    pub root_dir: PathBuf,
    pub snapshotter: String,
    /// `cniConfigDirectory`.
    pub cni_conf_dir: PathBuf,
    pub runtime_classes: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_api_is_served_once_a_caller_can_be_admitted() {
        let mut settings = ServerSettings::default();
        assert_eq!((settings.api(), settings.read_only()), (None, None));
        assert_eq!(settings.healthz().map(|address| address.to_string()).as_deref(), Some("127.0.0.1:10248"));
        settings.client_ca = Some("/ca.crt".into());
        assert_eq!(settings.api().map(|address| address.to_string()).as_deref(), Some("0.0.0.0:10250"));
        (settings.client_ca, settings.anonymous) = (None, true);
        assert!(settings.api().is_some());
        (settings.anonymous, settings.reviews) = (false, true);
        assert!(settings.api().is_some(), "tokens are taken");
        settings.tokens = false;
        assert_eq!(settings.api(), None);
        (settings.tokens, settings.enabled) = (true, false);
        assert_eq!((settings.api(), settings.read_only()), (None, None));
    }
}
