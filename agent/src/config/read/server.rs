//! Evaluates the keys of the listeners on the network.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::super::ServerFlags;
use super::super::cipher_suites::{Named, named};
use super::super::curves::numbered;
use super::super::tree::{Map, Position};
use super::ConfigDiagnostics;
use limpet_model::go_duration;
use limpet_server::settings::{AuthorizationMode, ServerSettings};

/// The node's certificate and its key, and where the file sets them.
#[derive(Default)]
pub(super) struct CertificateParts {
    certificate: Option<(PathBuf, Option<Position>)>,
    key: Option<(PathBuf, Option<Position>)>,
}

/// A longer lifetime is cut to this.
const LONGEST_LIFETIME: Duration = Duration::from_secs(86_400);

impl ConfigDiagnostics {
    /// Applies the values of KubeletConfiguration.
    pub(super) fn server(&mut self, map: &Map<'_>, directory: &Path, server: &mut ServerSettings) {
        if let Some((on, _)) = map.bool("enableServer") {
            server.enabled = on;
        }
        self.ip(map, "address", &mut server.address);
        self.ip(map, "healthzBindAddress", &mut server.healthz_address);
        self.port(map, "port", &mut server.port);
        self.port(map, "readOnlyPort", &mut server.read_only_port);
        self.port(map, "healthzPort", &mut server.healthz_port);
        if let Some((on, _)) = map.bool("serverTLSBootstrap") {
            server.certificate_by_request = on;
        }
        let file = |key| {
            let named = map.text(key).filter(|(path, _)| !path.is_empty());
            named.map(|(path, at)| (directory.join(path), Some(at)))
        };
        self.certificate = CertificateParts { certificate: file("tlsCertFile"), key: file("tlsPrivateKeyFile") };
        if let Some((text, at)) = map.text("tlsMinVersion") {
            self.min_version(text, Some(at), "tlsMinVersion", server);
        }
        let suites = map.texts("tlsCipherSuites").into_iter().map(|(name, at)| (name, Some(at)));
        self.cipher_suites(suites, "tlsCipherSuites", server);
        self.key_exchanges(map, server);
        self.authentication(&Map { entries: map.map("authentication") }, directory, server);
        let authorization = Map { entries: map.map("authorization") };
        if let Some((text, at)) = authorization.text("mode") {
            self.mode(text, Some(at), "authorization.mode", server);
        }
        let webhook = Map { entries: authorization.map("webhook") };
        self.lifetime(&webhook, "authorization.webhook", "cacheAuthorizedTTL", &mut server.allowed_lifetime);
        self.lifetime(&webhook, "authorization.webhook", "cacheUnauthorizedTTL", &mut server.denied_lifetime);
        self.stream_idle_timeout(map, server);
        let handlers = &mut server.debug;
        for (key, into) in [
            ("enableDebuggingHandlers", &mut handlers.enabled),
            ("enableSystemLogHandler", &mut handlers.system_logs),
            ("enableSystemLogQuery", &mut handlers.system_log_query),
            ("enableProfilingHandler", &mut handlers.profiling),
            ("enableDebugFlagsHandler", &mut handlers.flags),
        ] {
            *into = map.bool(key).map_or(*into, |(on, _)| on);
        }
        if let Some((true, at)) = map.bool("enableSystemLogQuery").filter(|_| !server.debug.system_logs) {
            self.error(Some(at), "enableSystemLogQuery", "needs enableSystemLogHandler");
        }
    }

    fn mode(&mut self, text: &str, at: Option<Position>, key: &str, server: &mut ServerSettings) {
        match text {
            "" => {}
            "Webhook" => server.mode = AuthorizationMode::Webhook,
            "AlwaysAllow" => server.mode = AuthorizationMode::AlwaysAllow,
            other => self.error(at, key, format!("{other:?} is neither AlwaysAllow nor Webhook")),
        }
    }

    fn min_version(&mut self, text: &str, at: Option<Position>, key: &str, server: &mut ServerSettings) {
        match text {
            "VersionTLS13" => server.tls13_only = true,
            // Older versions are not supported; Go's default is 1.2 as well.
            "" | "VersionTLS10" | "VersionTLS11" | "VersionTLS12" => server.tls13_only = false,
            other => self.error(at, key, format!("{other:?} is neither VersionTLS12 nor VersionTLS13")),
        }
    }

    fn cipher_suites<'a>(
        &mut self,
        names: impl Iterator<Item = (&'a str, Option<Position>)>,
        key: &str,
        server: &mut ServerSettings,
    ) {
        let (mut suites, mut first, mut old) = (Vec::new(), None, Vec::new());
        for (name, at) in names {
            first = first.or(Some(at));
            match named(name) {
                Some(Named::Spoken(suite)) => suites.push(suite),
                Some(Named::OfTls13) => {}
                Some(Named::Old) => old.push(name),
                None => self.error(at, key, format!("{name:?} is not a cipher suite of Go")),
            }
        }
        let Some(at) = first else { return };
        if suites.is_empty() && !old.is_empty() {
            self.error(
                at,
                key,
                format!("none of {} is supported; name an ECDHE suite with GCM or CHACHA20", old.join(", ")),
            );
        } else if !old.is_empty() {
            self.warn(at, key, format!("{} are not supported: they are not secure", old.join(", ")));
        }
        server.cipher_suites = suites;
    }

    fn key_exchanges(&mut self, map: &Map<'_>, server: &mut ServerSettings) {
        const KEY: &str = "tlsCurvePreferences";
        for (number, at) in map.ints(KEY) {
            match numbered(number) {
                Ok(group) if server.key_exchanges.contains(&group) => {
                    self.error(Some(at), KEY, format!("{number} is listed twice"));
                }
                Ok(group) => server.key_exchanges.push(group),
                Err(mistake) => self.error(Some(at), KEY, mistake),
            }
        }
    }

    pub(super) fn server_flags(&mut self, flags: &ServerFlags, server: &mut ServerSettings) {
        let set = |flag: Option<bool>, into: &mut bool| *into = flag.unwrap_or(*into);
        set(flags.enable_server, &mut server.enabled);
        set(flags.anonymous_auth, &mut server.anonymous);
        set(flags.enable_debugging_handlers, &mut server.debug.enabled);
        set(flags.authentication_token_webhook, &mut server.tokens);
        set(flags.authentication_token_webhook, &mut self.tokens_wanted);
        self.ip_flag(flags.address.as_ref(), "--address", &mut server.address);
        self.ip_flag(flags.healthz_bind_address.as_ref(), "--healthz-bind-address", &mut server.healthz_address);
        for (flag, into) in [
            (flags.port, &mut server.port),
            (flags.read_only_port, &mut server.read_only_port),
            (flags.healthz_port, &mut server.healthz_port),
        ] {
            *into = flag.unwrap_or(*into);
        }
        for (flag, into) in [
            (flags.authentication_token_webhook_cache_ttl, &mut server.token_lifetime),
            (flags.authorization_webhook_cache_authorized_ttl, &mut server.allowed_lifetime),
            (flags.authorization_webhook_cache_unauthorized_ttl, &mut server.denied_lifetime),
        ] {
            *into =
                flag.filter(|lifetime| !lifetime.is_zero()).map_or(*into, |lifetime| lifetime.min(LONGEST_LIFETIME));
        }
        if let Some(timeout) = flags.streaming_connection_idle_timeout {
            server.stream_idle_timeout = Some(timeout).filter(|timeout| !timeout.is_zero());
        }
        if let Some(on) = flags.rotate_server_certificates {
            server.certificate_by_request = on;
        }
        match flags.authorization_mode.as_deref() {
            None => {}
            // kubelet's default applies only if there is no flag; an empty one is not a mode.
            Some("") => self.error(None, "--authorization-mode", "is empty; use AlwaysAllow or Webhook"),
            Some(text) => self.mode(text, None, "--authorization-mode", server),
        }
        if let Some(text) = &flags.tls_min_version {
            self.min_version(text, None, "--tls-min-version", server);
        }
        if !flags.tls_cipher_suites.is_empty() {
            server.cipher_suites.clear();
        }
        let names = flags.tls_cipher_suites.iter().filter(|name| !name.is_empty());
        let suites = names.map(|name| (name.as_str(), None));
        self.cipher_suites(suites, "--tls-cipher-suites", server);
        self.server_files(flags, server);
    }

    fn server_files(&mut self, flags: &ServerFlags, server: &mut ServerSettings) {
        let files = [
            ("--client-ca-file", &flags.client_ca_file),
            ("--cert-dir", &flags.cert_dir),
            ("--tls-cert-file", &flags.tls_cert_file),
            ("--tls-private-key-file", &flags.tls_private_key_file),
        ];
        for (name, path) in files {
            let Some(path) = path else { continue };
            if path.as_os_str().is_empty() {
                match name {
                    "--client-ca-file" => server.client_ca = None,
                    "--cert-dir" => server.certificate_dir = None,
                    "--tls-cert-file" => self.certificate.certificate = None,
                    _ => self.certificate.key = None,
                }
                continue;
            }
            let path = match std::path::absolute(path) {
                Ok(path) => path,
                Err(error) => {
                    self.error(None, name, error.to_string());
                    continue;
                }
            };
            match name {
                "--client-ca-file" => server.client_ca = Some(path),
                "--cert-dir" => server.certificate_dir = Some(path),
                "--tls-cert-file" => self.certificate.certificate = Some((path, None)),
                _ => self.certificate.key = Some((path, None)),
            }
        }
    }

    /// Certificate and key must both be set, wherever each comes from.
    pub(super) fn settle_certificate(&mut self, server: &mut ServerSettings) {
        let CertificateParts { certificate, key } = std::mem::take(&mut self.certificate);
        match (certificate, key) {
            (Some((certificate, _)), Some((key, _))) => server.certificate = Some((certificate, key)),
            (Some((_, at)), None) => self.error(at, "tlsCertFile", "needs tlsPrivateKeyFile too"),
            (None, Some((_, at))) => self.error(at, "tlsPrivateKeyFile", "needs tlsCertFile too"),
            (None, None) => {}
        }
    }

    fn authentication(&mut self, map: &Map<'_>, directory: &Path, server: &mut ServerSettings) {
        let x509 = Map { entries: map.map("x509") };
        let file = x509.text("clientCAFile").filter(|(path, _)| !path.is_empty());
        server.client_ca = file.map(|(path, _)| directory.join(path));
        let anonymous = Map { entries: map.map("anonymous") };
        if let Some((on, _)) = anonymous.bool("enabled") {
            server.anonymous = on;
        }
        let webhook = Map { entries: map.map("webhook") };
        if let Some((on, _)) = webhook.bool("enabled") {
            (server.tokens, self.tokens_wanted) = (on, on);
        }
        self.lifetime(&webhook, "authentication.webhook", "cacheTTL", &mut server.token_lifetime);
    }

    /// How long answers are remembered; zero is kubelet's default.
    fn lifetime(&mut self, map: &Map<'_>, parent: &str, key: &str, into: &mut Duration) {
        match map.text(key).map(|(text, at)| (go_duration::parse(text), text, at)) {
            Some((Some(lifetime), ..)) if lifetime > LONGEST_LIFETIME => *into = LONGEST_LIFETIME,
            Some((Some(lifetime), ..)) if !lifetime.is_zero() => *into = lifetime,
            Some((Some(_), ..)) | None => {}
            Some((None, text, at)) => {
                self.error(Some(at), &format!("{parent}.{key}"), format!("{text:?} is not a duration such as 2m"));
            }
        }
    }

    /// How long a stream may be idle; zero is kubelet's default.
    fn stream_idle_timeout(&mut self, map: &Map<'_>, server: &mut ServerSettings) {
        const KEY: &str = "streamingConnectionIdleTimeout";
        match map.text(KEY).map(|(text, at)| (go_duration::parse(text), text, at)) {
            Some((Some(timeout), ..)) if !timeout.is_zero() => server.stream_idle_timeout = Some(timeout),
            Some((Some(_), ..)) | None => {}
            Some((None, text, at)) => self.error(Some(at), KEY, format!("{text:?} is not a duration such as 4h")),
        }
    }

    /// Checks what both documents mean together.
    pub(super) fn server_as_a_whole(&mut self, server: &ServerSettings) {
        if self.tokens_wanted && !server.reviews {
            self.warn(
                None,
                "authentication.webhook",
                "has no effect without --kubeconfig: no bearer token is accepted",
            );
        }
        if server.certificate_by_request && !server.reviews {
            self.error(
                None,
                "serverTLSBootstrap",
                "needs --kubeconfig: it is the apiserver that issues the certificate",
            );
        }
        if server.certificate_by_request && server.certificate.is_some() {
            self.warn(None, "tlsCertFile", "is not used: with serverTLSBootstrap the apiserver issues the certificate");
        }
        if server.api().is_none() {
            return;
        }
        let by_review = server.mode == AuthorizationMode::Webhook;
        let no_caller_can_be_admitted = by_review && !server.reviews && server.allowed_names.is_empty();
        if no_caller_can_be_admitted {
            self.warn(
                None,
                "authorization.mode",
                "is Webhook, and without --kubeconfig there is no apiserver that could decide: kubelet's API refuses every caller; list names in serverAllowedNames, or set AlwaysAllow",
            );
        }
        if server.anonymous && server.mode == AuthorizationMode::AlwaysAllow {
            self.warn(
                None,
                "authentication.anonymous.enabled",
                "with authorization.mode AlwaysAllow: whoever reaches the port may run commands in every container",
            );
        }
    }

    /// An empty flag changes nothing (`utilflag.IPVar`).
    fn ip_flag(&mut self, text: Option<&String>, flag: &str, into: &mut IpAddr) {
        match text.filter(|text| !text.is_empty()).map(|text| (text.parse(), text)) {
            Some((Ok(address), _)) => *into = address,
            Some((Err(_), text)) => self.error(None, flag, format!("{text:?} is not an IP address")),
            None => {}
        }
    }

    fn ip(&mut self, map: &Map<'_>, key: &str, into: &mut IpAddr) {
        match map.text(key).filter(|(text, _)| !text.is_empty()).map(|(text, at)| (text.parse(), text, at)) {
            Some((Ok(address), ..)) => *into = address,
            Some((Err(_), text, at)) => self.error(Some(at), key, format!("{text:?} is not an IP address")),
            None => {}
        }
    }

    fn port(&mut self, map: &Map<'_>, key: &str, into: &mut u16) {
        match map.int(key).map(|(port, at)| (u16::try_from(port), port, at)) {
            Some((Ok(port), ..)) => *into = port,
            Some((Err(_), port, at)) => self.error(Some(at), key, format!("{port} is not a port: 0 to 65535")),
            None => {}
        }
    }

    /// Applies the values of LimpetConfiguration.
    pub(super) fn allowed_names(&mut self, map: &Map<'_>, server: &mut ServerSettings) {
        for (name, at) in map.texts("serverAllowedNames") {
            if name.strip_prefix("group:").unwrap_or(name).is_empty() {
                self.error(Some(at), "serverAllowedNames", "a name is empty");
            }
            server.allowed_names.push(name.to_owned());
        }
    }
}
