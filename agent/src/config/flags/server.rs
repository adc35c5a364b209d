//! kubelet's flags of its HTTP server. kubelet has them all in its configuration file too.

use std::path::PathBuf;
use std::time::Duration;

use limpet_model::go_duration;
use serde::Serialize;

use super::values::{path, port, switch};

/// kubelet's flags for the listeners on the network.
#[derive(Debug, Clone, Default, PartialEq, Eq, clap::Args, Serialize)]
#[serde(rename_all = "kebab-case")]
#[command(next_help_heading = "kubelet's API on the network")]
pub struct ServerFlags {
    /// Whether --port and --read-only-port are served [default: true]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = switch)]
    pub enable_server: Option<bool>,
    /// Address of --port and --read-only-port [default: 0.0.0.0]
    #[arg(long, value_name = "IP")]
    pub address: Option<String>,
    /// Port of kubelet's API; 0 for none [default: 10250]
    #[arg(long, value_name = "PORT", value_parser = port)]
    pub port: Option<u16>,
    /// Read-only port, without authentication; 0 for none [default: 0]
    #[arg(long, value_name = "PORT", value_parser = port)]
    pub read_only_port: Option<u16>,
    /// Port of the health routes; 0 for none [default: 10248]
    #[arg(long, value_name = "PORT", value_parser = port)]
    pub healthz_port: Option<u16>,
    /// Address of --healthz-port [default: 127.0.0.1]
    #[arg(long, value_name = "IP")]
    pub healthz_bind_address: Option<String>,
    /// File of the authorities that issue client certificates
    #[arg(long, value_name = "FILE", value_parser = path())]
    pub client_ca_file: Option<PathBuf>,
    /// Whether callers without a certificate or a token are admitted as system:anonymous [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = switch)]
    pub anonymous_auth: Option<bool>,
    /// Whether the apiserver reviews bearer tokens [default: true]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = switch)]
    pub authentication_token_webhook: Option<bool>,
    /// How long the result of a token review is cached [default: 2m]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub authentication_token_webhook_cache_ttl: Option<Duration>,
    /// AlwaysAllow, or Webhook: the apiserver decides [default: Webhook]
    #[arg(long, value_name = "MODE")]
    pub authorization_mode: Option<String>,
    /// How long an allowed access is cached [default: 5m]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub authorization_webhook_cache_authorized_ttl: Option<Duration>,
    /// How long a denied access is cached [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub authorization_webhook_cache_unauthorized_ttl: Option<Duration>,
    /// Certificate of the node
    #[arg(long, value_name = "FILE", value_parser = path())]
    pub tls_cert_file: Option<PathBuf>,
    /// Its key
    #[arg(long, value_name = "FILE", value_parser = path())]
    pub tls_private_key_file: Option<PathBuf>,
    /// Directory for self-signed and issued certificates [default: pki in --root-dir]
    #[arg(long, value_name = "DIR", value_parser = path())]
    pub cert_dir: Option<PathBuf>,
    /// Whether the node requests its serving certificate from the apiserver [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = switch)]
    pub rotate_server_certificates: Option<bool>,
    /// VersionTLS12 or VersionTLS13 [default: VersionTLS12]
    #[arg(long, value_name = "VERSION")]
    pub tls_min_version: Option<String>,
    /// Cipher suites of TLS 1.2, by Go's names [default: all that are safe]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub tls_cipher_suites: Vec<String>,
    /// How long exec, attach and port-forward may be idle; 0 for no limit [default: 4h]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub streaming_connection_idle_timeout: Option<Duration>,
    /// Whether debugging routes (logs, exec, pprof) are served [default: true]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = switch)]
    pub enable_debugging_handlers: Option<bool>,
}

fn parse_duration(text: &str) -> Result<Duration, String> {
    go_duration::parse(text).ok_or_else(|| "not a duration such as 2m".to_owned())
}
