//! The killed process: all sources, the store and the merge, controlled by commands, one per line.

use limpet_model::manifest;
use std::io::{BufRead, Write};
use std::path::Path;
use std::sync::Arc;

use limpet_core::merge::slot::Slots;
use limpet_core::merge::{Desired, Merged};
use limpet_core::source::Decoder;
use limpet_core::source::push::{self, Pusher};
use limpet_model::object::{ObjectKey, ObjectKind, ObjectRecord};
use limpet_model::pod::{PodKey, PodRecord};
use limpet_model::source::SourceKind;
use limpet_sources::file::FileSource;
use limpet_sources::http::{Address, HttpSettings, HttpSource};
use limpet_sources::push::{PushContext, PushSource};
use limpet_store::Store;
use limpet_tests::wait;
use limpet_worker::merge_loop;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::model::{self, State};

/// Passes the directory of the database and the manifests; makes this executable the child.
pub(crate) const DIRECTORY: &str = "LIMPET_KILLED_DIRECTORY";
/// Passes the URL's port.
pub(crate) const PORT: &str = "LIMPET_KILLED_PORT";

const DECODER: Decoder = Decoder::new(manifest::read, manifest::restore_last_good);
const NODE: &str = "edge1";

/// Runs until it is killed or gets the command to stop.
pub(crate) fn run(dir: &Path) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(serve(dir));
    runtime.shutdown_background();
}

async fn serve(dir: &Path) {
    let store = Arc::new(Store::open(&dir.join("limpet.db")).unwrap().0);
    let (slots, desired, stop, tasks) =
        (Arc::new(Slots::default()), Desired::default(), CancellationToken::new(), TaskTracker::new());
    let file = FileSource::new(&dir.join("manifests"), NODE, Arc::clone(&store), DECODER);
    let http = HttpSource::new(settings(), NODE, Arc::clone(&store), DECODER);
    let context =
        PushContext { slots: Arc::clone(&slots), observed: limpet_core::status::observed::Observed::default() };
    let push = PushSource::new(NODE, Arc::clone(&store), DECODER, context);
    let (pusher, inbox) = push::channel(NODE, DECODER);
    let (pushed, mut pushes) = mpsc::channel(1);
    let (to, halt) = (Arc::clone(&slots), stop.clone());
    tasks.spawn(async move { file.run(|snapshot| to.publish(SourceKind::File, snapshot), halt).await });
    let (to, halt) = (Arc::clone(&slots), stop.clone());
    tasks.spawn(async move { http.run(|snapshot| to.publish(SourceKind::Http, snapshot), halt).await });
    let (to, halt) = (Arc::clone(&slots), stop.clone());
    tasks.spawn(async move {
        let publish = |snapshot: Arc<limpet_core::source::SourceSnapshot>| {
            // Only the first one is waited for.
            let _ = pushed.try_send(state(snapshot.pods.values(), snapshot.objects.values()));
            to.publish(SourceKind::Push, snapshot);
        };
        push.run(inbox, publish, halt).await;
    });
    let (changes, mut merged) = mpsc::channel::<Merged>(1);
    tasks.spawn(merge_loop::run(Arc::clone(&slots), desired.clone(), changes, stop.clone()));
    let stands = || {
        let pushed = &slots.load()[SourceKind::Push.index()];
        state(desired.load().pods.values(), pushed.objects.values())
    };
    print_line(&serde_json::to_string(&pushes.recv().await.unwrap()).unwrap());

    let (line, mut lines) = mpsc::channel(1);
    std::thread::spawn(move || {
        for text in std::io::stdin().lock().lines().map_while(Result::ok) {
            if line.blocking_send(text).is_err() {
                return;
            }
        }
    });
    loop {
        let text = tokio::select! {
            Some(_) = merged.recv() => continue,
            Some(text) = lines.recv() => text,
            else => return,
        };
        if text == "stop" {
            stop.cancel();
            tasks.close();
            tasks.wait().await;
            print_line("stopped");
            return;
        }
        match text.strip_prefix("until ") {
            Some(wanted) => {
                let wanted: State = serde_json::from_str(wanted).unwrap();
                print_line(&until(&wanted, &stands, &mut merged).await);
            }
            None => print_line(&run_command(&text, &pusher).await),
        }
    }
}

fn settings() -> HttpSettings {
    let port = std::env::var(PORT).unwrap();
    HttpSettings {
        address: Address::parse(&format!("http://127.0.0.1:{port}/pods")).unwrap(),
        headers: reqwest::header::HeaderMap::new(),
        frequency: std::time::Duration::from_millis(20),
        ca_file: None,
        client_files: None,
    }
}

fn print_line(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").unwrap();
    out.flush().unwrap();
}

/// Pods by their image, ConfigMaps by their value.
fn state<'a>(
    pods: impl Iterator<Item = &'a Arc<PodRecord>>,
    maps: impl Iterator<Item = &'a Arc<ObjectRecord>>,
) -> State {
    let name = |key: &PodKey| key.name().trim_end_matches("-edge1").to_owned();
    let mut state: State =
        pods.map(|record| (name(&record.key), record.spec().containers[0].image.clone().unwrap())).collect();
    let value = |map: &ObjectRecord| map.data["k"].bytes.expose_text().unwrap().to_owned();
    state.extend(maps.map(|map| (format!("map/{}", map.key.name), value(map))));
    state
}

/// `reached`, or the actual state after a timeout that only a failing test reaches.
async fn until(wanted: &State, stands: &impl Fn() -> State, merged: &mut mpsc::Receiver<Merged>) -> String {
    let waiting = async {
        while stands() != *wanted {
            merged.recv().await.unwrap();
        }
    };
    match tokio::time::timeout(wait::soon(), waiting).await {
        Ok(()) => "reached".to_owned(),
        Err(_) => format!("{:?}", stands()),
    }
}

async fn run_command(command: &str, pusher: &Pusher) -> String {
    let words: Vec<&str> = command.split(' ').collect();
    let map = |name: &str| ObjectKey::new(ObjectKind::ConfigMap, "default", name);
    let done = match words[..] {
        ["put-map", name, value] => {
            let text = model::map(name, value).to_string().into_bytes();
            let stored = match pusher.object(&map(name), &text) {
                Ok(record) => pusher.put_object(record).await,
                Err(error) => Err(error),
            };
            stored.map(|stored| stored.verb.as_str())
        }
        ["delete-map", name] => pusher.delete_object(map(name)).await.map(|_| "deleted"),
        ["put", name, image] => {
            let text = model::pod(name, image).to_string().into_bytes();
            let stored = match pusher.pod("default", name, &text) {
                Ok(record) => pusher.put(record).await,
                Err(error) => Err(error),
            };
            stored.map(|stored| stored.verb.as_str())
        }
        ["delete", name] => pusher.delete("default", name, None).await.map(|_| "deleted"),
        _ => panic!("{command}"),
    };
    done.unwrap_or("refused").to_owned()
}
