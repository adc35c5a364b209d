//! Evaluates the keys of the listeners on the network.

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use super::super::server::{AuthorizationMode, ServerSettings};
use super::super::tree::Map;
use super::super::url::duration;
use super::Judge;

/// What is remembered for longer is asked again all the same.
const LONGEST_LIFETIME: Duration = Duration::from_secs(86_400);

impl Judge {
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
        let file =
            |key| map.text(key).filter(|(path, _)| !path.is_empty()).map(|(path, at)| (directory.join(path), at));
        match (file("tlsCertFile"), file("tlsPrivateKeyFile")) {
            (Some((certificate, _)), Some((key, _))) => server.certificate = Some((certificate, key)),
            (Some((_, at)), None) => self.error(Some(at), "tlsCertFile", "needs tlsPrivateKeyFile beside it"),
            (None, Some((_, at))) => self.error(Some(at), "tlsPrivateKeyFile", "needs tlsCertFile beside it"),
            (None, None) => {}
        }
        match map.text("tlsMinVersion") {
            Some(("VersionTLS13", _)) => server.tls13_only = true,
            // Older ones are not spoken: Go's default is 1.2 as well.
            None | Some(("" | "VersionTLS10" | "VersionTLS11" | "VersionTLS12", _)) => {}
            Some((other, at)) => {
                self.error(Some(at), "tlsMinVersion", format!("{other:?} is neither VersionTLS12 nor VersionTLS13"));
            }
        }
        self.authentication(&Map { entries: map.map("authentication") }, directory, server);
        let authorization = Map { entries: map.map("authorization") };
        match authorization.text("mode") {
            None | Some(("" | "Webhook", _)) => {}
            Some(("AlwaysAllow", _)) => server.mode = AuthorizationMode::AlwaysAllow,
            Some((other, at)) => {
                let message = format!("{other:?} is neither AlwaysAllow nor Webhook");
                self.error(Some(at), "authorization.mode", message);
            }
        }
        let webhook = Map { entries: authorization.map("webhook") };
        self.lifetime(&webhook, "authorization.webhook", "cacheAuthorizedTTL", &mut server.allowed_lifetime);
        self.lifetime(&webhook, "authorization.webhook", "cacheUnauthorizedTTL", &mut server.denied_lifetime);
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
        match map.text(key).map(|(text, at)| (duration(text), text, at)) {
            Some((Some(lifetime), ..)) if lifetime > LONGEST_LIFETIME => *into = LONGEST_LIFETIME,
            Some((Some(lifetime), ..)) if !lifetime.is_zero() => *into = lifetime,
            Some((Some(_), ..)) | None => {}
            Some((None, text, at)) => {
                self.error(Some(at), &format!("{parent}.{key}"), format!("{text:?} is not a duration such as 2m"));
            }
        }
    }

    /// What both documents say together.
    pub(super) fn server_as_a_whole(&mut self, server: &ServerSettings) {
        if self.tokens_wanted && !server.reviews {
            self.warn(None, "authentication.webhook", "has no effect without --kubeconfig: no token is taken");
        }
        if server.api().is_none() {
            return;
        }
        let by_review = server.mode == AuthorizationMode::Webhook;
        let nobody = by_review && !server.reviews && server.allowed_names.is_empty();
        if nobody {
            self.warn(
                None,
                "authorization.mode",
                "is Webhook, and without --kubeconfig there is no apiserver to ask: kubelet's API is refused to everybody; list names in serverAllowedNames, or set AlwaysAllow",
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
