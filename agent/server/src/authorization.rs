//! Decides who may use which route: a pure function of the caller and the route's permission, called before any
//! handler runs.
//!
//! The configuration admits users of kubelet's API on the network to all of it or to nothing
//! ([`super::permission::Standing`]), or leaves the decision about each route to an apiserver ([`super::gate`]).
//! limpet's own routes are served on the local socket only.

use super::caller::{Caller, Origin};
use super::permission::{Permission, Refusal, Subresource};

/// Checks whether `caller`, who does not come from the network, may use a route with this permission. `None` means
/// that no such route exists, which the caller may learn.
pub(super) fn authorize(caller: &Caller, permission: Option<Permission>) -> Result<(), Refusal> {
    use Subresource::{Healthz, Metrics, Pods, Proxy, Stats};
    match (caller, permission) {
        (Caller::Local { origin, .. }, _) => origin.admitted(),
        (Caller::Anonymous, None | Some(Permission::Nodes(Healthz | Metrics))) => Ok(()),
        (Caller::Anonymous, Some(_)) => Err(Refusal::Anonymous),
        (Caller::ReadOnly, None | Some(Permission::Nodes(Healthz | Metrics | Pods | Stats))) => Ok(()),
        (Caller::ReadOnly, Some(_)) => Err(Refusal::ReadOnly),
        (Caller::Streaming, None | Some(Permission::Nodes(Proxy))) => Ok(()),
        (Caller::Streaming, Some(_)) => Err(Refusal::NotAdmitted),
        // The gate decides about callers on the network.
        (Caller::Network(_), _) => Err(Refusal::NotAdmitted),
    }
}

impl Origin {
    /// Checks whether a process of this origin may use the local socket, which permits everything.
    pub(super) fn admitted(&self) -> Result<(), Refusal> {
        match self {
            Self::Host | Self::AllowedPod(_) => Ok(()),
            Self::Pod(_) => Err(Refusal::PodProcess),
            Self::OtherUser => Err(Refusal::OtherUser),
            Self::Unknown => Err(Refusal::Unknown),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::caller::tests::{pod, root};
    use super::*;
    use Permission::{Nodes, Read, Write};
    use Subresource::{Checkpoint, Configz, Flagz, Healthz, Log, Metrics, Pods, Proxy, Stats, Statusz};

    const PERMISSIONS: [Permission; 12] = [
        Nodes(Healthz),
        Nodes(Metrics),
        Nodes(Stats),
        Nodes(Pods),
        Nodes(Configz),
        Nodes(Log),
        Nodes(Checkpoint),
        Nodes(Statusz),
        Nodes(Flagz),
        Nodes(Proxy),
        Read,
        Write,
    ];

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
    fn listeners_without_users_give_what_can_be_read_without_harm() {
        for permission in PERMISSIONS {
            let admitted = matches!(permission, Nodes(Healthz | Metrics));
            let decision = if admitted { Ok(()) } else { Err(Refusal::Anonymous) };
            assert_eq!(authorize(&Caller::Anonymous, Some(permission)), decision, "{permission:?}");
            let read = matches!(permission, Nodes(Healthz | Metrics | Stats | Pods));
            let read_only = if read { Ok(()) } else { Err(Refusal::ReadOnly) };
            assert_eq!(authorize(&Caller::ReadOnly, Some(permission)), read_only, "{permission:?}");
            let streams = if permission == Nodes(Proxy) { Ok(()) } else { Err(Refusal::NotAdmitted) };
            assert_eq!(authorize(&Caller::Streaming, Some(permission)), streams, "{permission:?}");
        }
        assert_eq!(authorize(&Caller::Anonymous, None), Ok(()));
    }
}
