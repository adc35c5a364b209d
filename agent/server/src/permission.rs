//! Permissions of routes, the standing of users, and reasons for refusals: pure values.
//!
//! The permissions of kubelet's routes are kubelet's own: a subresource of `nodes`, as
//! <https://kubernetes.io/docs/reference/access-authn-authz/kubelet-authn-authz/> lists them.

use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};

use super::status_error::StatusError;
use crate::settings::{AuthorizationMode, ServerSettings};
use limpet_cluster::User;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Permission {
    /// A subresource of `nodes`, in kubelet's API.
    Nodes(Subresource),
    /// Reading, over limpet's own routes.
    Read,
    /// Changing what runs, over limpet's own routes.
    Write,
}

/// The subresources of `nodes` that kubelet's routes belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Subresource {
    /// `nodes/healthz`.
    Healthz,
    /// `nodes/metrics`.
    Metrics,
    /// `nodes/stats`.
    Stats,
    /// `nodes/pods`.
    Pods,
    /// `nodes/configz`.
    Configz,
    /// `nodes/log`: the node's own logs.
    Log,
    /// `nodes/checkpoint`.
    Checkpoint,
    /// `nodes/statusz`.
    Statusz,
    /// `/flagz`, which belongs to `nodes/configz`.
    Flagz,
    /// `nodes/proxy`: everything else, including logs of containers and commands in them.
    Proxy,
}

impl Subresource {
    /// The subresources of which a user needs one, in the order in which kubelet checks them.
    pub(super) fn names(self) -> &'static [&'static str] {
        match self {
            Self::Healthz => &["healthz", "proxy"],
            Self::Metrics => &["metrics"],
            Self::Stats => &["stats"],
            Self::Pods => &["pods", "proxy"],
            Self::Configz => &["configz", "proxy"],
            Self::Log => &["log"],
            Self::Checkpoint => &["checkpoint"],
            Self::Statusz => &["statusz"],
            Self::Flagz => &["configz"],
            Self::Proxy => &["proxy"],
        }
    }

    /// kubelet's subresource for a path, also for paths without a route.
    pub(super) fn of_path(path: &str) -> Self {
        let below =
            |prefix: &str| path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        const PATHS: [(&str, Subresource); 11] = [
            ("/allocatedPods", Subresource::Pods),
            ("/pods", Subresource::Pods),
            ("/healthz", Subresource::Healthz),
            ("/configz", Subresource::Configz),
            ("/runningpods", Subresource::Pods),
            ("/stats", Subresource::Stats),
            ("/metrics", Subresource::Metrics),
            ("/logs", Subresource::Log),
            ("/checkpoint", Subresource::Checkpoint),
            ("/statusz", Subresource::Statusz),
            ("/flagz", Subresource::Flagz),
        ];
        PATHS.into_iter().find(|(prefix, _)| below(prefix)).map_or(Self::Proxy, |(_, subresource)| subresource)
    }
}

/// kubelet's verb for a method. Empty if it has none: only a rule for all verbs then admits the request.
pub(super) fn verb(method: &Method) -> &'static str {
    match *method {
        Method::POST => "create",
        Method::GET => "get",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "",
    }
}

/// Why a caller may not use a route.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    /// A process of a pod, which may have got the socket by a `hostPath`.
    #[error(
        "processes of pods may not use limpet's socket; socketAllowedPods in the LimpetConfiguration lists those that may"
    )]
    PodProcess,
    /// Neither root nor the agent's user.
    #[error("only root may use limpet's socket")]
    OtherUser,
    /// The process could belong to a pod.
    #[error("limpet cannot identify this process or its pod: it has exited, or /proc cannot be read")]
    Unknown,
    #[error("this address serves only health and metrics")]
    Anonymous,
    #[error("readOnlyPort serves only pods, usage, health and metrics")]
    ReadOnly,
    /// The request has neither a client certificate nor a token.
    #[error("a client certificate issued by an authority in authentication.x509.clientCAFile is required{}", or_token(*.tokens))]
    Unauthenticated {
        /// Whether a token would be accepted.
        tokens: bool,
    },
    /// The client's certificate is not signed by an authority in `authentication.x509.clientCAFile`, is not valid
    /// now, or is not a client certificate.
    #[error("the client's certificate is not valid by authentication.x509.clientCAFile: {why}")]
    InvalidCertificate { why: String },
    /// The token is invalid, or the request has none.
    #[error("this token is not valid")]
    InvalidToken,
    /// The apiserver has not reviewed the token.
    #[error("the apiserver has not reviewed this token: it cannot be reached, or it refused; try again")]
    TokenNotReviewed,
    /// The configuration does not admit the user.
    #[error("this user is not admitted: authorization.mode is Webhook, and serverAllowedNames does not list it")]
    NotAdmitted,
    /// The apiserver does not admit the user. The message is kubelet's.
    #[error("Forbidden (user={user}, verb={verb}, resource=nodes, subresource(s)=[{}])", .subresources.join(" "))]
    Forbidden { user: String, verb: &'static str, subresources: &'static [&'static str] },
    /// The apiserver has not reviewed the access. The message is kubelet's.
    #[error("Authorization error (user={user}, verb={verb}, resource=nodes, subresource={subresource})")]
    AccessNotReviewed { user: String, verb: &'static str, subresource: &'static str },
}

fn or_token(tokens: bool) -> &'static str {
    if tokens { ", or a token of the cluster" } else { "" }
}

impl Refusal {
    /// kubelet's response.
    fn status(&self) -> (StatusCode, &'static str) {
        match self {
            Self::Unauthenticated { .. }
            | Self::InvalidCertificate { .. }
            | Self::InvalidToken
            | Self::TokenNotReviewed => (StatusCode::UNAUTHORIZED, "Unauthorized"),
            Self::AccessNotReviewed { .. } => (StatusCode::INTERNAL_SERVER_ERROR, "InternalError"),
            _ => (StatusCode::FORBIDDEN, "Forbidden"),
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let (code, reason) = self.status();
        StatusError::new(code, reason, self.to_string(), None).into_response()
    }
}

/// What the configuration decides about a user of kubelet's API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// It may use all routes.
    Admitted,
    /// It may use no route.
    Refused,
    /// The apiserver decides per request.
    Asked,
}

pub(super) fn standing(settings: &ServerSettings, user: &User) -> Standing {
    let is_listed = |listed: &String| match listed.strip_prefix("group:") {
        Some(group) => user.groups.iter().any(|listed| listed == group),
        None => *listed == user.name,
    };
    if settings.mode == AuthorizationMode::AlwaysAllow || settings.allowed_names.iter().any(is_listed) {
        Standing::Admitted
    } else if settings.reviews {
        Standing::Asked
    } else {
        Standing::Refused
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_methods_are_kubelets_attributes() {
        let table = [
            ("/pods", "pods proxy"),
            ("/pods/", "pods proxy"),
            ("/pods/x", "pods proxy"),
            ("/podsx", "proxy"),
            ("/allocatedPods/a/b", "pods proxy"),
            ("/runningpods/", "pods proxy"),
            ("/runningpods", "pods proxy"),
            ("/runningPods/", "proxy"),
            ("/healthz", "healthz proxy"),
            ("/healthz/log", "healthz proxy"),
            ("/configz", "configz proxy"),
            ("/flagz", "configz"),
            ("/statusz", "statusz"),
            ("/stats", "stats"),
            ("/stats/summary", "stats"),
            ("/statsd", "proxy"),
            ("/metrics/cadvisor", "metrics"),
            ("/logs/", "log"),
            ("/logs/a/../b", "log"),
            ("/checkpoint/a/b/c", "checkpoint"),
            ("/exec/a/b/c", "proxy"),
            ("/run/a/b/c", "proxy"),
            ("/debug/pprof/", "proxy"),
            ("/", "proxy"),
            ("", "proxy"),
            ("//pods", "proxy"),
            ("/%70ods", "proxy"),
        ];
        for (path, names) in table {
            assert_eq!(Subresource::of_path(path).names().join(" "), names, "{path}");
        }
        let verbs =
            [Method::GET, Method::POST, Method::PUT, Method::PATCH, Method::DELETE, Method::HEAD].map(|m| verb(&m));
        assert_eq!(verbs, ["get", "create", "update", "patch", "delete", ""]);
    }

    #[test]
    fn names_and_groups_are_admitted_as_listed() {
        let listed = ["kube-apiserver-kubelet-client".to_owned(), "group:edge:readers".to_owned()];
        let mut settings = ServerSettings { allowed_names: listed.to_vec(), ..ServerSettings::default() };
        let standing_of = |settings: &ServerSettings, name: &str, groups: &[&str]| {
            let groups = groups.iter().map(|group| (*group).to_owned()).collect();
            standing(settings, &User { name: name.to_owned(), groups, ..User::default() })
        };
        let node = ("system:node:other", &["system:nodes"][..]);
        for (name, groups, expected) in [
            ("kube-apiserver-kubelet-client", &[][..], Standing::Admitted),
            ("anna", &["edge:readers"][..], Standing::Admitted),
            // A name is no group and cannot look like one.
            ("edge:readers", &[], Standing::Refused),
            ("group:edge:readers", &[], Standing::Refused),
            (node.0, node.1, Standing::Refused),
        ] {
            assert_eq!(standing_of(&settings, name, groups), expected, "{name}");
        }
        settings.reviews = true;
        assert_eq!(standing_of(&settings, node.0, node.1), Standing::Asked);
        assert_eq!(standing_of(&settings, "anna", &["edge:readers"]), Standing::Admitted);
        settings.mode = AuthorizationMode::AlwaysAllow;
        assert_eq!(standing_of(&settings, node.0, node.1), Standing::Admitted);
    }
}
