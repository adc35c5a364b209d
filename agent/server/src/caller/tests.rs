//! Origins of processes, allowed pods, and reports.

use std::ffi::OsStr;
use std::os::unix::net::UnixStream;

use axum::{Extension, Router};
use serde_json::json;

use super::*;
use crate::fixtures;
use limpet_core::fixtures::observed;
use limpet_model::attribution::Backend;
use limpet_model::pod::PodKey;

/// A process of root with this origin.
pub(crate) fn root(origin: Origin) -> Caller {
    let (stream, _other) = UnixStream::pair().unwrap();
    let mut peer = Peer::connected_to(&stream).unwrap();
    peer.uid = 0;
    Caller::Local { peer, origin }
}

/// Serves `router` to a process of the host.
pub(crate) fn for_host(router: Router) -> Router {
    router.layer(Extension(root(Origin::Host)))
}

/// A pod with UID `u1`.
pub(crate) fn pod(name: &str) -> ActorPod {
    ActorPod { uid: "u1".to_owned(), pod: Some(name.to_owned()), container: Some("web".to_owned()) }
}

/// `/pod/<uid>` is the cgroup of a pod with that UID, called `default/web-edge1`; `/gone/<uid>` that of a pod whose
/// name is unknown.
struct Pods;

impl WatchObserver for Pods {
    fn resident(&self, cgroup: &str) -> Option<ActorPod> {
        let known = cgroup.strip_prefix("/pod/").map(|uid| (uid, Some("default/web-edge1".to_owned())));
        let (uid, pod) = known.or_else(|| cgroup.strip_prefix("/gone/").map(|uid| (uid, None)))?;
        Some(ActorPod { uid: uid.to_owned(), pod, container: None })
    }

    fn pod_wrote(&self, _: &OsStr, _: &Actor) {}

    fn watching(&self, _: Backend, _: Option<Backend>) {}
}

fn lookup(allowed: &[(&str, &str)]) -> CallerLookup {
    let observed_pods = Observed::default();
    let web = observed(json!({
        "metadata": {"name": "web-edge1", "namespace": "default", "uid": "u1"},
        "spec": {"containers": [{"name": "web", "image": "web:1"}]},
    }));
    observed_pods.publish(&web.record.key.clone(), Some(web));
    let allowed = allowed.iter().map(|(namespace, name)| PodKey::new(*namespace, *name)).collect();
    CallerLookup {
        observer: Arc::new(Pods),
        observed: observed_pods,
        config: Arc::new(ServedNode { socket_allowed_pods: allowed, ..fixtures::settings() }),
        node_name: "edge1".into(),
        agent_uid: rustix::process::geteuid().as_raw(),
        events: Events::default(),
        reported: Mutex::default(),
    }
}

#[test]
fn a_pods_cgroup_in_any_hierarchy_makes_a_pods_process() {
    let anonymous = lookup(&[]);
    let [by_node, by_manifest, other] =
        [("default", "web-edge1"), ("default", "web"), ("lab", "web")].map(|listed| lookup(&[listed]));
    let origin = |lookup: &CallerLookup, cgroups: &[&str]| match lookup
        .origin_in(&cgroups.iter().map(|path| (*path).to_owned()).collect::<Vec<_>>())
    {
        Origin::Host => "host",
        Origin::AllowedPod(_) => "allowed",
        Origin::Pod(_) => "pod",
        Origin::OtherUser | Origin::Unknown => "else",
    };
    for (what, lookup, cgroups, expected) in [
        ("no pod", &anonymous, &["/", "/system.slice/ssh.service"][..], "host"),
        ("a pod", &anonymous, &["/pod/u1"], "pod"),
        ("a pod in one of several hierarchies", &anonymous, &["/", "/", "/pod/u1"], "pod"),
        ("listed by its name on the node", &by_node, &["/pod/u1"], "allowed"),
        ("listed by its manifest's name", &by_manifest, &["/pod/u1"], "allowed"),
        ("another namespace is listed", &other, &["/pod/u1"], "pod"),
        ("an earlier pod of the listed name", &by_node, &["/pod/u0"], "pod"),
        ("a pod that is not known any more", &by_node, &["/gone/u1"], "pod"),
    ] {
        assert_eq!(origin(lookup, cgroups), expected, "{what}");
    }
}

#[tokio::test]
async fn a_process_is_known_by_user_and_cgroup_and_refused_when_it_is_gone() {
    let lookup = Arc::new(lookup(&[]));
    let (stream, _other) = UnixStream::pair().unwrap();
    let peer = Peer::connected_to(&stream).unwrap();
    let Caller::Local { origin, .. } = Arc::clone(&lookup).caller(peer.clone()).await else { panic!("local") };
    assert_eq!(origin, Origin::Host);
    let mut stranger = peer.clone();
    stranger.uid = 54_321;
    let Caller::Local { origin, .. } = Arc::clone(&lookup).caller(stranger).await else { panic!("local") };
    assert_eq!(origin, Origin::OtherUser);
    let mut anonymous = peer;
    anonymous.pid = None;
    let Caller::Local { origin, .. } = Arc::clone(&lookup).caller(anonymous).await else { panic!("local") };
    assert_eq!(origin, Origin::Unknown);
}

#[tokio::test(start_paused = true)]
async fn a_refused_pod_is_reported_once_a_minute_and_the_list_is_bounded() {
    let lookup = lookup(&[]);
    let (stream, _other) = UnixStream::pair().unwrap();
    let peer = Peer::connected_to(&stream).unwrap();
    let counts = |lookup: &CallerLookup| lookup.events.snapshot().iter().map(|event| event.count).collect::<Vec<_>>();
    for _ in 0..1_000 {
        lookup.report(&peer, &Origin::Pod(pod("default/web-edge1")));
    }
    assert_eq!(counts(&lookup), [1]);
    lookup.report(&peer, &Origin::Pod(ActorPod { uid: "u2".to_owned(), ..pod("default/db-edge1") }));
    tokio::time::advance(REPORT_INTERVAL).await;
    lookup.report(&peer, &Origin::Pod(pod("default/web-edge1")));
    assert_eq!(counts(&lookup), [1, 2]);
    let event = lookup.events.snapshot().remove(1);
    assert_eq!(
        (&*event.reason, event.pod().unwrap().0.to_string()),
        ("LocalSocketRefused", "default/web-edge1".to_owned())
    );

    let mut reported = Reported::default();
    let due = (0..10_000).filter(|uid| reported.is_due(uid.to_string(), Instant::now())).count();
    assert_eq!((due, reported.0.len()), (MAX_REPORTED, MAX_REPORTED));
}
