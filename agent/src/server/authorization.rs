//! Who may use which route: one pure decision, taken from the caller and the route's permission before any handler runs.
//!
//! Users of kubelet's API on the network are admitted to all of it or to nothing, as the configuration says ([`admits`]).
//! The permissions of kubelet's routes are kubelet's own: a subresource of `nodes`, as
//! <https://kubernetes.io/docs/reference/access-authn-authz/kubelet-authn-authz/> lists them. limpet's own routes are for
//! the local socket alone.

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::caller::{Caller, Origin};
use super::status_error::StatusError;
use crate::config::{AuthorizationMode, ServerSettings};

/// What a route gives its caller.
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
    /// `nodes/proxy`: everything else, logs and commands of containers among it.
    Proxy,
}

/// Why a caller may not use a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    /// A process of a pod, which may have got the socket by a `hostPath`.
    #[error(
        "processes of pods may not use limpet's socket; socketAllowedPods in the LimpetConfiguration lists those that may"
    )]
    PodProcess,
    /// Neither root nor the agent's user.
    #[error("only root may use limpet's socket")]
    OtherUser,
    /// It could be a process of a pod.
    #[error(
        "limpet cannot see which process this is, or whether it belongs to a pod: it has exited, or /proc cannot be read"
    )]
    Unknown,
    /// The loopback listener serves health and metrics.
    #[error("this address serves health and metrics alone")]
    Anonymous,
    /// The read-only port serves what can be read without harm.
    #[error("readOnlyPort serves pods, figures, health and metrics alone")]
    ReadOnly,
    /// No client certificate.
    #[error("a client certificate is needed, of an authority in authentication.x509.clientCAFile")]
    Unauthenticated,
    /// A user whom the configuration does not admit.
    #[error("this user is not admitted: authorization.mode is Webhook, and serverAllowedNames does not list it")]
    NotAdmitted,
}

/// Whether `caller` may use a route with that permission; `None`: there is no such route, which it may learn.
pub(super) fn authorize(caller: &Caller, permission: Option<Permission>) -> Result<(), Refusal> {
    match (caller, permission) {
        (Caller::Local { origin, .. }, _) => origin.admitted(),
        (Caller::Anonymous, None | Some(Permission::Nodes(Subresource::Healthz | Subresource::Metrics))) => Ok(()),
        (Caller::Anonymous, Some(_)) => Err(Refusal::Anonymous),
        (Caller::ReadOnly, None | Some(Permission::Nodes(Subresource::Healthz | Subresource::Metrics))) => Ok(()),
        (Caller::ReadOnly, Some(Permission::Nodes(Subresource::Pods | Subresource::Stats))) => Ok(()),
        (Caller::ReadOnly, Some(_)) => Err(Refusal::ReadOnly),
        (Caller::Unauthenticated, _) => Err(Refusal::Unauthenticated),
        (Caller::User(user), None | Some(Permission::Nodes(_))) if user.admitted => Ok(()),
        // No listener on the network has limpet's own routes.
        (Caller::User(_), _) => Err(Refusal::NotAdmitted),
    }
}

/// Whether the configuration admits a user to kubelet's API.
pub(super) fn admits(settings: &ServerSettings, name: &str, groups: &[String]) -> bool {
    let is_listed = |listed: &String| match listed.strip_prefix("group:") {
        Some(group) => groups.iter().any(|own| own == group),
        None => listed == name,
    };
    settings.mode == AuthorizationMode::AlwaysAllow || settings.allowed_names.iter().any(is_listed)
}

impl Origin {
    /// Whether a process of this origin may use the local socket, which is the right to do everything.
    pub(super) fn admitted(&self) -> Result<(), Refusal> {
        match self {
            Self::Host | Self::AllowedPod(_) => Ok(()),
            Self::Pod(_) => Err(Refusal::PodProcess),
            Self::OtherUser => Err(Refusal::OtherUser),
            Self::Unknown => Err(Refusal::Unknown),
        }
    }
}

/// The layer of every route: the handler runs only if the caller has the route's permission.
pub(super) async fn enforce(State(permission): State<Option<Permission>>, request: Request, next: Next) -> Response {
    // A listener that names no caller admits nobody.
    let decision =
        request.extensions().get::<Caller>().map_or(Err(Refusal::Unknown), |caller| authorize(caller, permission));
    match decision {
        Ok(()) => next.run(request).await,
        Err(Refusal::Unauthenticated) => {
            let message = Refusal::Unauthenticated.to_string();
            StatusError::new(StatusCode::UNAUTHORIZED, "Unauthorized", message, None).into_response()
        }
        Err(refusal) => StatusError::new(StatusCode::FORBIDDEN, "Forbidden", refusal.to_string(), None).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::caller::User;
    use super::super::caller::tests::{pod, root};
    use super::*;
    use Permission::{Nodes, Read, Write};
    use Subresource::{Configz, Healthz, Metrics, Pods, Proxy, Stats};

    const PERMISSIONS: [Permission; 8] =
        [Nodes(Healthz), Nodes(Metrics), Nodes(Stats), Nodes(Pods), Nodes(Configz), Nodes(Proxy), Read, Write];

    #[test]
    fn a_local_process_may_everything_or_nothing() {
        let table = [
            (Origin::Host, Ok(())),
            (Origin::AllowedPod(pod("default/web-edge1")), Ok(())),
            (Origin::Pod(pod("default/web-edge1")), Err(Refusal::PodProcess)),
            (Origin::OtherUser, Err(Refusal::OtherUser)),
            (Origin::Unknown, Err(Refusal::Unknown)),
        ];
        for (origin, decision) in table {
            let caller = root(origin.clone());
            for permission in PERMISSIONS.map(Some).into_iter().chain([None]) {
                assert_eq!(authorize(&caller, permission), decision, "{origin:?} {permission:?}");
            }
        }
    }

    #[test]
    fn the_loopback_listener_gives_health_and_metrics_alone() {
        for permission in PERMISSIONS {
            let admitted = matches!(permission, Nodes(Healthz | Metrics));
            let decision = if admitted { Ok(()) } else { Err(Refusal::Anonymous) };
            assert_eq!(authorize(&Caller::Anonymous, Some(permission)), decision, "{permission:?}");
        }
        assert_eq!(authorize(&Caller::Anonymous, None), Ok(()));
    }

    #[test]
    fn the_network_gives_admitted_users_kubelets_routes_and_nobody_limpets_own() {
        let user =
            |admitted| Caller::User(Arc::new(User { name: "kube-apiserver".to_owned(), groups: Vec::new(), admitted }));
        for permission in PERMISSIONS {
            let of_kubelet = matches!(permission, Nodes(_));
            let admitted = if of_kubelet { Ok(()) } else { Err(Refusal::NotAdmitted) };
            assert_eq!(authorize(&user(true), Some(permission)), admitted, "{permission:?}");
            assert_eq!(authorize(&user(false), Some(permission)), Err(Refusal::NotAdmitted), "{permission:?}");
            let nobody = authorize(&Caller::Unauthenticated, Some(permission));
            assert_eq!(nobody, Err(Refusal::Unauthenticated), "{permission:?}");
            let read = matches!(permission, Nodes(Healthz | Metrics | Stats | Pods));
            let read_only = if read { Ok(()) } else { Err(Refusal::ReadOnly) };
            assert_eq!(authorize(&Caller::ReadOnly, Some(permission)), read_only, "{permission:?}");
        }
        assert_eq!(authorize(&user(true), None), Ok(()));
        assert_eq!(authorize(&user(false), None), Err(Refusal::NotAdmitted));
        assert_eq!(authorize(&Caller::Unauthenticated, None), Err(Refusal::Unauthenticated));
    }

    #[test]
    fn names_and_groups_are_admitted_as_listed() {
        let listed = ["kube-apiserver-kubelet-client".to_owned(), "group:edge:readers".to_owned()];
        let mut settings = ServerSettings { allowed_names: listed.to_vec(), ..ServerSettings::default() };
        let readers = ["edge:readers".to_owned()];
        assert!(admits(&settings, "kube-apiserver-kubelet-client", &[]) && admits(&settings, "anna", &readers));
        assert!(!admits(&settings, "edge:readers", &[]), "a name is no group");
        assert!(!admits(&settings, "group:edge:readers", &[]), "nor can a name look like one");
        assert!(!admits(&settings, "system:node:other", &["system:nodes".to_owned()]));
        settings.mode = AuthorizationMode::AlwaysAllow;
        assert!(admits(&settings, "system:node:other", &[]));
    }
}
