#![allow(clippy::unwrap_used)]

use std::sync::mpsc as blocking;
use std::time::Duration;

use serde_json::json;
use tokio::sync::oneshot;
use tokio::time;

use super::*;
use limpet_core::cluster_history::{Renewal, lease_break};
use limpet_model::manifest;
use limpet_model::object::ObjectKind;

const DECODER: Decoder = Decoder::new(manifest::read, manifest::restore_last_good);

fn pod(name: &str, uid: &str, more: Value) -> Value {
    let mut pod = json!({
        "metadata": {"name": name, "namespace": "shop", "uid": uid},
        "spec": {"containers": [{"name": "main", "image": "app:1", "envFrom": [{"configMapRef": {"name": "settings"}}]}]},
    });
    for (field, value) in more.as_object().unwrap() {
        match pod.get_mut(field).and_then(Value::as_object_mut) {
            Some(map) => map.extend(value.as_object().unwrap().clone()),
            None => pod[field] = value.clone(),
        }
    }
    pod
}

fn settings(value: &str) -> (ObjectKey, Arc<ObjectRecord>) {
    let map = json!({"metadata": {"name": "settings", "namespace": "shop", "managedFields": []}, "data": {"k": value}});
    let map = limpet_model::object::from_apiserver(&map, ObjectKind::ConfigMap, ORIGIN).unwrap();
    (map.key.clone(), Arc::new(map))
}

/// A source over the store below `root`, after these updates; the snapshots it has published.
async fn published(root: &std::path::Path, updates: Vec<Update>) -> Vec<Arc<SourceSnapshot>> {
    published_by(DECODER, root, updates).await
}

async fn published_by(decoder: Decoder, root: &std::path::Path, updates: Vec<Update>) -> Vec<Arc<SourceSnapshot>> {
    let store = Arc::new(Store::open(&root.join("limpet.db")).unwrap().0);
    let mut source = ApiSource::new("edge1", store, decoder);
    source.restore().await;
    let mut all = vec![source.next_snapshot()];
    for update in updates {
        if source.take(update) {
            source.forget_unused();
            source.persister.flush().await;
            all.push(source.next_snapshot());
        }
    }
    all
}

fn names(snapshot: &SourceSnapshot) -> Vec<String> {
    snapshot.pods.values().map(|pod| format!("{} {}", pod.key, pod.uid)).collect()
}

#[tokio::test]
async fn what_was_known_last_is_there_again_without_an_apiserver() {
    let root = tempfile::tempdir().unwrap();
    let (key, map) = settings("1");
    let all = published(
        root.path(),
        vec![
            Update::Listed(vec![pod("web", "u-1", json!({})), pod("job", "u-2", json!({}))], ClusterHistory::default()),
            Update::Object(key.clone(), Some(Arc::clone(&map))),
            Update::Deleted(pod("job", "u-2", json!({}))),
        ],
    )
    .await;
    assert!(all[0].ready && all[0].pods.is_empty(), "nothing was known");
    assert_eq!(names(all.last().unwrap()), ["shop/web u-1"]);
    let again = published(root.path(), Vec::new()).await;
    assert_eq!(names(&again[0]), ["shop/web u-1"]);
    assert!(again[0].ready && again[0].objects[&key].same_content(&map));
    // What the list does not have any more has been deleted meanwhile, and its objects are not needed.
    let listed = published(root.path(), vec![Update::Listed(Vec::new(), ClusterHistory::default())]).await;
    assert!(listed[1].pods.is_empty() && listed[1].objects.is_empty());
    assert!(published(root.path(), Vec::new()).await[0].pods.is_empty());
}

#[tokio::test]
async fn an_object_is_unknown_until_it_is_there_or_known_to_be_absent() {
    let root = tempfile::tempdir().unwrap();
    let (key, map) = settings("1");
    let all = published(
        root.path(),
        vec![
            Update::Stored(pod("web", "u-1", json!({}))),
            Update::Object(key.clone(), None),
            Update::Object(key.clone(), None),
            Update::Object(key.clone(), Some(map)),
            Update::Object(ObjectKey::new(ObjectKind::Secret, "shop", "unused"), None),
        ],
    )
    .await;
    let states: Vec<(bool, bool)> = all
        .iter()
        .map(|snapshot| (snapshot.objects.contains_key(&key), snapshot.absent.as_ref().unwrap().contains(&key)))
        .collect();
    assert_eq!(states, [(false, false), (false, false), (false, true), (true, false)]);
}

#[tokio::test]
async fn what_has_finished_elsewhere_does_not_run_and_what_finished_here_stays() {
    let root = tempfile::tempdir().unwrap();
    let over = |name: &str, uid: &str| pod(name, uid, json!({"status": {"phase": "Succeeded"}}));
    let all = published(
        root.path(),
        vec![
            Update::Listed(vec![over("old", "u-0"), pod("job", "u-1", json!({}))], ClusterHistory::default()),
            Update::Stored(over("job", "u-1")),
            Update::Stored(pod("job", "u-2", json!({"metadata": {"labels": {"try": "2"}}}))),
            Update::Deleted(pod("job", "u-1", json!({}))),
        ],
    )
    .await;
    let seen: Vec<Vec<String>> = all.iter().map(|snapshot| names(snapshot)).collect();
    // The end of a predecessor is none of the successor's.
    let (first, second) = (vec!["shop/job u-1".to_owned()], vec!["shop/job u-2".to_owned()]);
    assert_eq!(seen, [vec![], first.clone(), first, second]);
    let over: Vec<bool> = all.iter().filter_map(|snapshot| Some(snapshot.pods.values().next()?.has_ended())).collect();
    assert_eq!(over, [false, true, false]);
}

/// Its containers may be gone by then.
#[tokio::test]
async fn what_has_finished_is_known_as_finished_after_a_restart() {
    let root = tempfile::tempdir().unwrap();
    let job = || pod("job", "u-1", json!({}));
    let over = pod("job", "u-1", json!({"status": {"phase": "Failed"}}));
    published(root.path(), vec![Update::Stored(job()), Update::Stored(over)]).await;
    let again = published(root.path(), Vec::new()).await;
    assert!(again[0].pods.values().next().unwrap().has_ended());
}

#[tokio::test]
async fn a_list_keeps_the_objects_that_a_successor_needs() {
    let root = tempfile::tempdir().unwrap();
    let (key, map) = settings("1");
    let all = published(
        root.path(),
        vec![
            Update::Stored(pod("web-1", "u-1", json!({}))),
            Update::Object(key.clone(), Some(map)),
            Update::Listed(vec![pod("web-2", "u-2", json!({}))], ClusterHistory::default()),
        ],
    )
    .await;
    assert!(names(&all[3]) == ["shop/web-2 u-2"] && all[3].objects.contains_key(&key));
}

#[tokio::test]
async fn an_edit_that_is_refused_leaves_the_version_that_runs_and_a_deletion_ends_it() {
    let root = tempfile::tempdir().unwrap();
    let refused = json!({"spec": {"volumes": [{"name": "data", "rbd": {"monitors": ["a"], "image": "i"}}]}});
    let mut deleted = pod("web", "u-1", refused.clone());
    deleted["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    deleted["metadata"]["deletionGracePeriodSeconds"] = json!(3);
    let all = published(
        root.path(),
        vec![
            Update::Stored(pod("web", "u-1", json!({}))),
            Update::Stored(pod("web", "u-1", refused.clone())),
            Update::Stored(deleted),
            Update::Stored(pod("other", "u-2", refused.clone())),
            Update::Deleted(pod("other", "u-2", refused)),
        ],
    )
    .await;
    let kept = &all[2].rejected["shop/web"];
    assert!(kept.kept.len() == 1 && kept.faults[0].path.contains("rbd"), "{kept:?}");
    assert_eq!(all[2].pods.values().next().unwrap().spec().volumes, None);
    assert_eq!(all[3].pods.values().next().unwrap().deletion().1, Some(3));
    assert!(names(&all[4]) == ["shop/web u-1"] && all[4].rejected["shop/other"].kept.is_empty());
    assert!(!all[5].rejected.contains_key("shop/other"));
}

fn at(version: u64, authority: &str) -> ClusterHistory {
    ClusterHistory { version, authorities: [authority.to_owned()].into(), service_uid: String::new() }
}

fn of_service(uid: &str, history: ClusterHistory) -> ClusterHistory {
    ClusterHistory { service_uid: uid.to_owned(), ..history }
}

/// A backup from before one of the pods was made, and another one in the place of the other.
#[tokio::test]
async fn what_a_restored_cluster_does_not_have_runs_on_until_it_is_accepted() {
    let root = tempfile::tempdir().unwrap();
    let before = vec![pod("web-0", "u-1", json!({})), pod("job", "u-2", json!({})), pod("old", "u-3", json!({}))];
    published(root.path(), vec![Update::Listed(before, at(900, "a")), Update::Reached("1000".to_owned())]).await;
    let restored = || vec![pod("web-0", "u-9", json!({})), pod("old", "u-3", json!({}))];
    let all = published(root.path(), vec![Update::Listed(restored(), at(850, "a"))]).await;
    let held = all.last().unwrap();
    assert_eq!(names(held), ["shop/job u-2", "shop/old u-3", "shop/web-0 u-1"]);
    let Health::Unavailable(why) = &held.health else { panic!("{:?}", held.health) };
    assert!(why.contains("older backup (version 850, 900 before)") && why.contains("shop/job, shop/web-0"), "{why}");

    // Also once the cluster has gone on, and over a restart. What it deletes itself ends.
    let (done, ended) = oneshot::channel();
    let all = published(
        root.path(),
        vec![
            Update::Listed(restored(), at(2000, "a")),
            Update::Deleted(pod("old", "u-3", json!({}))),
            Update::Stored(pod("web-0", "u-9", json!({"metadata": {"labels": {"new": "1"}}}))),
            Update::Accepted(done),
        ],
    )
    .await;
    let seen: Vec<Vec<String>> = all.iter().map(|snapshot| names(snapshot)).collect();
    let kept = ["shop/job u-2", "shop/web-0 u-1"].map(str::to_owned).to_vec();
    assert_eq!(seen[1..3], [["shop/job u-2", "shop/old u-3", "shop/web-0 u-1"].map(str::to_owned).to_vec(), kept]);
    let last = all.last().unwrap();
    assert!(names(last) == ["shop/web-0 u-9"] && last.health == Health::Good, "{last:?}");
    assert_eq!(last.pods.values().next().unwrap().pod.metadata.labels.as_ref().unwrap()["new"], "1");
    assert_eq!(ended.await.unwrap().iter().map(ToString::to_string).collect::<Vec<_>>(), ["shop/job", "shop/web-0"]);
    let again = published(root.path(), vec![Update::Listed(Vec::new(), at(2001, "a"))]).await;
    assert!(names(&again[1]).is_empty(), "from then on its lists count");
}

/// The cluster has gone back and come further than before, while the node did not see it.
#[tokio::test]
async fn a_lease_from_before_the_last_renewal_says_that_the_cluster_was_restored() {
    let root = tempfile::tempdir().unwrap();
    let time = |second: u8| {
        let time = format!("2026-11-25T02:00:{second:02}.000000Z");
        Renewal { time, version: 100 + u64::from(second) }
    };
    let known = vec![pod("web", "u-1", json!({})), pod("old", "u-3", json!({}))];
    published(root.path(), vec![Update::Renewed(time(10)), Update::Listed(known, at(900, "a"))]).await;
    let (answer, last) = oneshot::channel();
    published(root.path(), vec![Update::LastRenewal(answer)]).await;
    let last = last.await.unwrap();
    assert_eq!(last, time(10), "the renewal is known over a restart of the agent");
    assert_eq!(lease_break(&last, &time(10)), None);
    let older = Update::WentBack(lease_break(&last, &time(0)).unwrap());
    let restored = || vec![pod("old", "u-3", json!({}))];
    let all = published(root.path(), vec![older, Update::Listed(restored(), at(2000, "a"))]).await;
    assert_eq!(names(all.last().unwrap()), ["shop/old u-3", "shop/web u-1"]);
    let all = published(root.path(), vec![Update::Renewed(time(20)), Update::Listed(restored(), at(2001, "a"))]).await;
    let Health::Unavailable(why) = &all.last().unwrap().health else { panic!("{:?}", all.last()) };
    assert!(why.contains("lease is of 2026-11-25T02:00:00") && why.contains("shop/web"), "{why}");
    let all = published(
        root.path(),
        vec![
            Update::Listed(restored(), at(2001, "a")),
            Update::Accepted(oneshot::channel().0),
            Update::WentBack(HistoryBreak::Restored { before: 9, now: 8 }),
            Update::Listed(Vec::new(), at(3000, "a")),
        ],
    )
    .await;
    assert_eq!(names(all.last().unwrap()), ["shop/old u-3"], "versions of two renewals say the same");
}

#[tokio::test]
async fn another_cluster_ends_nothing_and_the_first_one_may_come_back() {
    let root = tempfile::tempdir().unwrap();
    let known = || vec![pod("web", "u-1", json!({}))];
    let other = vec![pod("other", "u-7", json!({}))];
    let all = published(
        root.path(),
        vec![
            Update::Listed(known(), at(10, "a")),
            Update::Listed(other, at(5000, "b")),
            Update::Listed(known(), at(11, "a")),
            Update::Listed(Vec::new(), at(12, "a")),
        ],
    )
    .await;
    let seen: Vec<(Vec<String>, bool)> =
        all[1..].iter().map(|snapshot| (names(snapshot), snapshot.health == Health::Good)).collect();
    let web = || vec!["shop/web u-1".to_owned()];
    let both = vec!["shop/other u-7".to_owned(), "shop/web u-1".to_owned()];
    assert_eq!(seen, [(web(), true), (both, false), (web(), true), (vec![], true)]);
    // Its lease is read first, and is older than the last renewal.
    published(root.path(), vec![Update::Listed(known(), at(20, "a"))]).await;
    let older = Update::WentBack(HistoryBreak::Restored { before: 20, now: 5 });
    let all = published(root.path(), vec![older, Update::Listed(Vec::new(), at(6, "b"))]).await;
    let Health::Unavailable(why) = &all.last().unwrap().health else { panic!("{:?}", all.last()) };
    assert!(why.contains("its certificate authority is a different one"), "{why}");
}

#[tokio::test]
async fn a_recreated_cluster_with_the_same_certificates_ends_nothing() {
    let root = tempfile::tempdir().unwrap();
    let known = vec![pod("web", "u-1", json!({}))];
    published(root.path(), vec![Update::Listed(known, of_service("s-1", at(10, "a")))]).await;
    // Further than the one before, so that versions say nothing.
    let recreated = || of_service("s-2", at(5000, "a"));
    let all = published(root.path(), vec![Update::Listed(Vec::new(), recreated())]).await;
    let held = all.last().unwrap();
    let Health::Unavailable(why) = &held.health else { panic!("{:?}", held.health) };
    assert!(names(held) == ["shop/web u-1"] && why.contains("its data is new"), "{why}");
    // A list without the Service's UID says nothing new.
    let unknown = || at(5001, "a");
    let all = published(root.path(), vec![Update::Listed(Vec::new(), unknown())]).await;
    assert_eq!(names(all.last().unwrap()), ["shop/web u-1"]);
    let accepted = Update::Accepted(oneshot::channel().0);
    let all = published(root.path(), vec![Update::Listed(Vec::new(), recreated()), accepted]).await;
    assert!(names(all.last().unwrap()).is_empty());
    let new = vec![pod("new", "u-2", json!({}))];
    let all =
        published(root.path(), vec![Update::Listed(new, recreated()), Update::Listed(Vec::new(), recreated())]).await;
    assert!(names(all.last().unwrap()).is_empty(), "the new cluster counts from then on");
}

#[tokio::test]
async fn a_pod_beyond_the_security_standard_is_refused_and_its_last_version_runs_on() {
    let root = tempfile::tempdir().unwrap();
    let levels = security::SecurityLevels::PRIVILEGED.with(SourceKind::Api, security::SecurityLevel::Baseline);
    let privileged = |name, uid| pod(name, uid, json!({ "spec": { "hostPID": true } }));
    let updates = vec![
        Update::Stored(pod("web", "u-1", json!({}))),
        Update::Stored(privileged("web", "u-1")),
        Update::Stored(privileged("other", "u-2")),
    ];
    let all = published_by(DECODER.with_security(levels), root.path(), updates).await;
    let last = all.last().unwrap();
    assert_eq!(names(last), ["shop/web u-1"]);
    for key in ["shop/web", "shop/other"] {
        let fault = last.rejected[key].faults[0].to_string();
        assert!(fault.contains("PodSecurity \"baseline:latest\": host namespaces (hostPID=true)"), "{fault}");
    }
}

/// What comes while the disk is busy is one write, and what only the lease needs does not wait for it.
#[test]
fn a_slow_disk_delays_no_lease_and_gets_few_writes() {
    // The store's calls run one after another.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().max_blocking_threads(1).build().unwrap();
    runtime.block_on(async {
        let root = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::open(&root.path().join("limpet.db")).unwrap().0);
        let ((send, inbox), (publish, mut published)) =
            (limpet_core::source::cluster_update::channel(), mpsc::unbounded_channel());
        let publish =
            move |snapshot: Arc<SourceSnapshot>| publish.send((snapshot.pods.len(), snapshot.objects.len())).unwrap();
        let running =
            tokio::spawn(ApiSource::new("edge1", store, DECODER).run(inbox, publish, CancellationToken::new()));
        assert_eq!(published.recv().await, Some((0, 0)));

        let (free, busy) = blocking::channel::<()>();
        tokio::task::spawn_blocking(move || busy.recv());
        let env: Vec<Value> = (0..50).map(|n| json!({ "configMapRef": { "name": format!("settings-{n}") } })).collect();
        let container = json!({ "name": "main", "image": "app:1", "envFrom": env });
        send.send(Update::Stored(pod("web", "u-1", json!({ "spec": { "containers": [container] } })))).await.unwrap();
        let (_, map) = settings("1");
        for n in 0..50 {
            let key = ObjectKey::new(ObjectKind::ConfigMap, "shop", format!("settings-{n}"));
            // The queue is shorter.
            let object = Update::Object(key, Some(Arc::clone(&map)));
            time::timeout(Duration::from_secs(10), send.send(object)).await.unwrap().unwrap();
        }
        let renewal = Renewal { time: "2026-11-25T02:00:00.000000Z".to_owned(), version: 7 };
        send.send(Update::Renewed(renewal.clone())).await.unwrap();
        let (answer, last) = oneshot::channel();
        send.send(Update::LastRenewal(answer)).await.unwrap();
        assert_eq!(time::timeout(Duration::from_secs(10), last).await.unwrap().unwrap(), renewal);
        assert!(published.try_recv().is_err(), "nothing is on disk");

        free.send(()).unwrap();
        let mut writes = 0;
        loop {
            writes += 1;
            match time::timeout(Duration::from_secs(10), published.recv()).await.unwrap() {
                Some((1, 50)) => break,
                // Published is what that write had.
                snapshot => assert!(
                    writes == 1 && snapshot.is_some_and(|(pods, objects)| pods == 1 && objects <= 16),
                    "{snapshot:?}"
                ),
            }
        }
        assert!(writes <= 2, "{writes}");
        drop(send);
        running.await.unwrap();
        assert_eq!(published.recv().await, None, "nothing is published twice");
    });
}

#[tokio::test]
async fn a_pod_whose_names_leave_its_directory_is_rejected_and_named() {
    let root = tempfile::tempdir().unwrap();
    let volume = |name: &str| json!({"spec": {"volumes": [{"name": name, "emptyDir": {}}]}});
    let all = published(
        root.path(),
        vec![
            Update::Stored(pod("web", "u-1", volume("data"))),
            Update::Stored(pod("web", "u-1", volume(".."))),
            Update::Stored(pod("other", "../../etc", volume("data"))),
            Update::Stored(pod("..", "u-3", volume("data"))),
        ],
    )
    .await;
    let last = all.last().unwrap();
    assert_eq!(names(last), ["shop/web u-1"], "the version that runs continues");
    let rejected: Vec<_> = last.rejected.iter().map(|(key, rejection)| (&**key, &*rejection.faults[0].path)).collect();
    assert_eq!(rejected, [("shop/other", "metadata.uid"), ("shop/web", "spec.volumes[0].name")]);
}

/// Time passes only where the test says so: blocking calls are under way.
#[tokio::test(start_paused = true)]
async fn a_write_that_hangs_holds_up_no_pod_and_is_made_up_for() {
    let root = tempfile::tempdir().unwrap();
    let store = Arc::new(Store::open(&root.path().join("limpet.db")).unwrap().0);
    let source = ApiSource::new("edge1", Arc::clone(&store), DECODER);
    let (pulse, stop) = (source.pulse(), CancellationToken::new());
    let (updates, inbox) = mpsc::channel(8);
    let (sender, mut published) = mpsc::unbounded_channel();
    let publish = move |snapshot| sender.send(snapshot).unwrap();
    let run = tokio::spawn(source.run(inbox, publish, stop.clone()));
    assert!(published.recv().await.unwrap().pods.is_empty());

    let (hangs, is_hanging) = std::sync::mpsc::channel();
    let (release, released) = std::sync::mpsc::channel::<()>();
    let disk = Arc::clone(&store);
    let hanging = std::thread::spawn(move || {
        let held = disk.hang();
        hangs.send(()).unwrap();
        released.recv().unwrap_err();
        drop(held);
    });
    is_hanging.recv().unwrap();
    updates.send(Update::Stored(pod("web", "u-1", json!({})))).await.unwrap();
    let mut first = None;
    for _ in 0..60 {
        tokio::time::advance(std::time::Duration::from_secs(1)).await;
        first = first.or(published.try_recv().ok());
    }
    assert_eq!(names(&first.unwrap()), ["shop/web u-1"]);
    assert!(pulse.persist_error().unwrap().contains("not ended within"));
    updates.send(Update::Stored(pod("job", "u-2", json!({})))).await.unwrap();
    assert_eq!(names(&published.recv().await.unwrap()), ["shop/job u-2", "shop/web u-1"]);

    drop(release);
    hanging.join().unwrap();
    stop.cancel();
    run.await.unwrap();
    let saved = published_by(
        DECODER,
        &{
            drop(store);
            root.path().to_owned()
        },
        Vec::new(),
    )
    .await;
    assert_eq!(names(&saved[0]), ["shop/job u-2", "shop/web u-1"]);
}
