//! Heartbeats: the watch is ended before each, and no change by another client is missed.

use std::collections::VecDeque;

use super::*;

/// When another client changes the Node, relative to a report that requires a version.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Edit {
    None,
    Before,
    /// The change comes before the node has the answer.
    After,
}

/// An apiserver with one Node.
#[derive(Clone)]
struct Server {
    objects: Arc<Mutex<Objects>>,
    changed: watch::Sender<u64>,
}

struct Objects {
    node: Value,
    version: u64,
    /// Every version with the Node at that version.
    changes: Vec<(u64, Value)>,
    /// Whether each report required a version, and the answer's status.
    reports: Vec<(bool, u16)>,
    /// The versions that watches have sent.
    brought: Vec<u64>,
    edit: Edit,
}

impl Server {
    fn new(edit: Edit) -> Self {
        let objects = Objects {
            node: stored(1, false),
            version: 1,
            changes: Vec::new(),
            reports: Vec::new(),
            brought: Vec::new(),
            edit,
        };
        Self { objects: Arc::new(Mutex::new(objects)), changed: watch::Sender::new(0) }
    }

    fn link(&self) -> Link {
        let server = self.clone();
        fake::link(move |asked: Asked| {
            let server = server.clone();
            // The server answers only after the node's other tasks have run, so the watch has ended.
            async move {
                time::sleep(Duration::from_millis(1)).await;
                server.answer(&asked)
            }
        })
    }

    fn answer(&self, asked: &Asked) -> fake::Answer {
        let mut objects = self.objects.lock().unwrap();
        match (asked.method.clone(), &*asked.path) {
            (Method::PATCH, NODE_STATUS) => {
                let (code, answer) = objects.report(&asked.body);
                self.changed.send_modify(|count| *count += 1);
                if code == 200 { fake::whole(200, &answer) } else { fake::refusal(code) }
            }
            (_, NODES) if asked.is_watch() => {
                let from = asked.query.split('&').find_map(|part| part.strip_prefix("resourceVersion=")).unwrap();
                self.watch(from.parse().unwrap())
            }
            (_, NODES) => fake::whole(200, &list(&objects.node)),
            _ => fake::whole(200, &json!({})),
        }
    }

    fn watch(&self, from: u64) -> fake::Answer {
        let state = (self.clone(), self.changed.subscribe(), from, VecDeque::new());
        fake::lines(stream::unfold(state, |(server, mut changed, mut at, mut due)| async move {
            loop {
                if let Some((version, node)) = due.pop_front() {
                    server.objects.lock().unwrap().brought.push(version);
                    at = version;
                    let event = json!({ "type": "MODIFIED", "object": node });
                    return Some((Ok(event), (server, changed, at, due)));
                }
                due.extend(server.objects.lock().unwrap().changes.iter().filter(|(version, _)| *version > at).cloned());
                if due.is_empty() {
                    changed.changed().await.unwrap();
                }
            }
        }))
    }
}

impl Objects {
    fn change(&mut self, change: impl FnOnce(&mut Value)) {
        self.version += 1;
        change(&mut self.node);
        self.node["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.changes.push((self.version, self.node.clone()));
    }

    fn cordon(&mut self) {
        self.change(|node| node["spec"]["unschedulable"] = json!(true));
    }

    /// Applies a patch of the status. Returns the answer's status code and document.
    fn report(&mut self, patch: &Value) -> (u16, Value) {
        let required = &patch["metadata"]["resourceVersion"];
        let edit = if required.is_null() { Edit::None } else { std::mem::replace(&mut self.edit, Edit::None) };
        if edit == Edit::Before {
            self.cordon();
        }
        if !required.is_null() && *required != json!(self.version.to_string()) {
            self.reports.push((true, 409));
            return (409, Value::Null);
        }
        self.reports.push((!required.is_null(), 200));
        // A report that contains only times has no other fields.
        if required.is_null() {
            self.change(|node| node["status"] = patch["status"].clone());
        } else {
            self.change(|_| {});
        }
        let answer = self.node.clone();
        if edit == Edit::After {
            self.cordon();
        }
        (200, answer)
    }
}

fn is_cordoned(seen: &NodeFromApiserver) -> bool {
    seen.node().is_some_and(|node| node.unschedulable)
}

#[tokio::test(start_paused = true)]
async fn a_report_of_times_is_not_sent_back_and_the_watch_goes_on_after_it() {
    let (server, mut tasks) = (Server::new(Edit::None), JoinSet::new());
    let mut seen = start(&server.link(), &mut tasks);
    time::sleep(Duration::from_secs(20 * 60)).await;
    {
        let objects = server.objects.lock().unwrap();
        assert_eq!(objects.reports[..4], [(false, 200), (true, 200), (true, 200), (true, 200)]);
        assert_eq!(objects.brought, [2], "the first report, which is a whole one");
    }
    server.objects.lock().unwrap().cordon();
    server.changed.send_modify(|count| *count += 1);
    time::timeout(Duration::from_millis(100), seen.wait_for(is_cordoned)).await.unwrap().unwrap();
    let objects = server.objects.lock().unwrap();
    assert_eq!(objects.brought, [2, objects.version]);
}

#[tokio::test(start_paused = true)]
async fn a_change_by_another_client_at_the_moment_of_a_report_is_seen_and_the_report_is_sent() {
    for (edit, reports, brought) in [
        // The full report follows immediately.
        (Edit::Before, vec![(false, 200), (true, 409), (false, 200)], vec![2, 3, 4]),
        (Edit::After, vec![(false, 200), (true, 200)], vec![2, 4]),
    ] {
        let (server, mut tasks) = (Server::new(edit), JoinSet::new());
        let mut seen = start(&server.link(), &mut tasks);
        time::timeout(Duration::from_secs(8 * 60), seen.wait_for(is_cordoned)).await.unwrap().unwrap();
        time::sleep(Duration::from_secs(1)).await;
        let objects = server.objects.lock().unwrap();
        assert_eq!((&objects.reports, &objects.brought), (&reports, &brought), "{edit:?}");
    }
}
