//! Who may use which route: one pure decision, taken from the caller and the route's permission before any handler runs.
//!
//! The permissions of kubelet's routes are kubelet's own: a subresource of `nodes`, as
//! <https://kubernetes.io/docs/reference/access-authn-authz/kubelet-authn-authz/> lists them. limpet's own routes are for
//! the local socket alone.

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::caller::{Caller, Origin};
use super::status_error::StatusError;

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
}

/// Whether `caller` may use a route with that permission; `None`: there is no such route, which it may learn.
pub(super) fn authorize(caller: &Caller, permission: Option<Permission>) -> Result<(), Refusal> {
    match (caller, permission) {
        (Caller::Local { origin, .. }, _) => origin.admitted(),
        (Caller::Anonymous, None | Some(Permission::Nodes(Subresource::Healthz | Subresource::Metrics))) => Ok(()),
        (Caller::Anonymous, Some(_)) => Err(Refusal::Anonymous),
    }
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
        Err(refusal) => StatusError::new(StatusCode::FORBIDDEN, "Forbidden", refusal.to_string(), None).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::caller::tests::{pod, root};
    use super::*;
    use Permission::{Nodes, Read, Write};
    use Subresource::{Configz, Healthz, Metrics, Pods, Proxy};

    const PERMISSIONS: [Permission; 7] =
        [Nodes(Healthz), Nodes(Metrics), Nodes(Pods), Nodes(Configz), Nodes(Proxy), Read, Write];

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
}
