#![allow(clippy::unwrap_used)]

use serde_json::json;

use super::keys::Key;
use super::*;
use feed::{Figures, Subscriptions};
use limpet_wire::pods::{DescribeDocument, PodEntry};

const NOW: &str = "2026-01-10T00:00:00Z";

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn entry(name: &str, waiting: Option<&str>, id: &str) -> PodEntry {
    let state = waiting.map_or(json!({"running": {}}), |reason| json!({"waiting": {"reason": reason}}));
    serde_json::from_value(json!({
        "source": "file", "origin": format!("{name}.yaml"), "manifestName": name, "fingerprint": "",
        "note": waiting.map(|_| "next try in 20s"),
        "pod": {
            "metadata": {"name": format!("{name}-edge1"), "namespace": "default", "uid": name,
                         "creationTimestamp": "2026-01-07T00:00:00Z"},
            "spec": {"containers": [{"name": "main", "image": "busybox:1"}, {"name": "side", "image": "busybox:1"}],
                     "nodeName": "edge1"},
            "status": {"phase": "Running", "containerStatuses": [
                {"name": "main", "ready": waiting.is_none(), "restartCount": 0, "image": "", "imageID": "",
                 "containerID": format!("containerd://{id}"), "state": state},
                {"name": "side", "ready": true, "restartCount": 0, "image": "", "imageID": "", "state": {"running": {}}},
            ]},
        },
    }))
    .unwrap()
}

fn ui(color: bool, size: (u16, u16), pods: Vec<PodEntry>) -> Ui {
    let mut ui = Ui::new(Screen { color, quiet: false }, true, size, at(NOW));
    for pod in pods {
        ui.news(Feed::Pod(PodChange::Added(Box::new(pod))), at(NOW));
    }
    ui.news(Feed::Pod(PodChange::Synced), at(NOW));
    // As at a terminal, keys are typed when a screen is shown.
    text(&mut ui);
    ui
}

fn three() -> Vec<PodEntry> {
    vec![entry("web", None, "c1"), entry("db", Some("CrashLoopBackOff"), "c2"), entry("größe", None, "c3")]
}

/// The screen as text, without blanks at the ends of its lines.
fn text(ui: &mut Ui) -> String {
    let cells = frame::frame(ui).cells;
    let line = |y: u16| {
        let line: String = (0..cells.area.width).map(|x| cells[(x, y)].symbol()).collect();
        format!("{}\n", line.trim_end())
    };
    (0..cells.area.height).map(line).collect()
}

fn press(ui: &mut Ui, keys: &str) {
    for key in Keys::default().feed(keys.as_bytes()) {
        assert_eq!(ui.key(key), None, "{key:?}");
        text(ui);
    }
}

fn event(message: &str, seen: &str) -> Box<k8s_openapi::api::core::v1::Event> {
    serde_json::from_value(json!({
        "metadata": {}, "type": "Normal", "reason": "Pulled", "count": 1, "message": message,
        "involvedObject": {"kind": "Pod", "name": "web-edge1"}, "lastTimestamp": seen,
    }))
    .unwrap()
}

fn figures() -> Box<Figures> {
    let usage = |uptime: u64, cpu: u64| {
        serde_json::from_value(json!({
            "time": NOW, "conditions": ["DiskPressure"],
            "pods": [{"namespace": "default", "name": "web-edge1", "uid": "web", "containers": [],
                      "reading": {"uptimeNanoseconds": uptime, "cpuNanoseconds": cpu, "memoryBytes": 12 << 20}}],
        }))
        .unwrap()
    };
    let psi = json!({"some": {"avg10": 1.25}, "full": {"avg10": 0.0}});
    let summary = json!({"node": {
        "cpu": {"usageNanoCores": 250_000_000, "psi": psi},
        "memory": {"workingSetBytes": 512 << 20, "availableBytes": 1024 << 20, "psi": psi},
        "fs": {"usedBytes": 3_u64 << 30, "availableBytes": 5_u64 << 30, "inodesUsed": 1000, "inodesFree": 9000},
        "rlimit": {"curproc": 120, "maxpid": 32768},
    }});
    Box::new(Figures { before: usage(1_000_000_000, 0), after: usage(2_000_000_000, 500_000_000), summary })
}

/// Every view at two sizes, one below the other.
fn screens() -> String {
    let mut all = String::new();
    for size in [(80, 24), (40, 12)] {
        let mut add =
            |ui: &mut Ui, what: &str| all.push_str(&format!("=== {what}, {}x{}\n{}", size.0, size.1, text(ui)));
        let mut ui = ui(false, size, three());
        add(&mut ui, "pods");
        press(&mut ui, "j/e");
        add(&mut ui, "a filter is typed");
        press(&mut ui, "\x7fdb\r");
        add(&mut ui, "filtered");
        ui.key(Key::Escape);
        press(&mut ui, "l");
        let log = ui.wanted().log.unwrap();
        ui.news(Feed::Log(log.clone(), (1..=30).map(|line| format!("line {line}")).collect()), at(NOW));
        add(&mut ui, "log");
        press(&mut ui, "k");
        ui.news(Feed::LogEnd(log, "ended".to_owned()), at(NOW));
        add(&mut ui, "log, a line up, ended");
        press(&mut ui, "qe");
        let events = ui.wanted().events.unwrap();
        ui.news(Feed::Event(events.clone(), event("Image is there", "2026-01-09T23:59:20Z")), at(NOW));
        ui.news(Feed::Event(events, event("Image was pulled", "2026-01-09T23:59:40Z")), at(NOW));
        add(&mut ui, "events");
        press(&mut ui, "qu");
        ui.news(Feed::Usage(Ok(figures())), at(NOW));
        add(&mut ui, "usage");
        press(&mut ui, "q?");
        add(&mut ui, "keys");
        press(&mut ui, "q");
        ui.news(Feed::Away("limpet is not running".to_owned()), at("2026-01-10T00:00:09Z"));
        add(&mut ui, "away");
    }
    all
}

#[test]
fn screens_are_as_they_were() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/ui/golden.txt");
    let screens = screens();
    if std::env::var_os("LIMPET_UPDATE_DOCS").is_some() {
        std::fs::write(path, &screens).unwrap();
    }
    assert_eq!(screens, std::fs::read_to_string(path).unwrap());
}

#[test]
fn colour_adds_nothing_to_the_text() {
    let (mut plain, mut coloured) = (ui(false, (80, 24), three()), ui(true, (80, 24), three()));
    assert_eq!(text(&mut plain), text(&mut coloured));
    let reds = |ui: &mut Ui| {
        let cells = frame::frame(ui).cells;
        let red = cells.content().iter().filter(|cell| cell.fg == ratatui_core::style::Color::Red);
        red.map(|cell| cell.symbol()).collect::<String>()
    };
    assert_eq!(reds(&mut coloured), "CrashLoopBackOff");
    assert_eq!(reds(&mut plain), "");
    assert!(!paint::bytes(None, &frame::frame(&mut plain)).windows(2).any(|two| two == b"\x1b[m"));
}

#[test]
fn without_utf8_only_ascii_is_sent() {
    let mut ui = ui(false, (80, 24), three());
    ui.utf8 = false;
    assert!(paint::bytes(None, &frame::frame(&mut ui)).is_ascii());
    assert!(text(&mut ui).contains("gr??e-edge1"));
}

#[test]
fn any_size_can_be_drawn_and_any_key_typed() {
    for width in [1, 2, 7, 20, 79, 400] {
        for height in [1, 2, 3, 4, 5, 6, 24] {
            let mut ui = ui(true, (width, height), three());
            for key in "jkGg lcpqeqtq?q/x\x7f\r\x1b[C\x1b[Dqj".bytes() {
                for key in Keys::default().feed(&[key]) {
                    ui.key(key);
                    paint::bytes(None, &frame::frame(&mut ui));
                }
            }
        }
    }
}

#[test]
fn the_selected_pod_stays_selected_and_in_sight() {
    let pods = (0..100).map(|number| entry(&format!("pod{number:03}"), None, "c")).collect();
    let mut ui = ui(false, (80, 24), pods);
    press(&mut ui, &"j".repeat(50));
    assert!(text(&mut ui).contains("> pod050-edge1"));
    ui.news(Feed::Pod(PodChange::Added(Box::new(entry("a-new-one", None, "c")))), at(NOW));
    assert!(text(&mut ui).contains("> pod050-edge1"));
    ui.news(Feed::Pod(PodChange::Deleted(Box::new(entry("pod050", None, "c")))), at(NOW));
    assert!(text(&mut ui).contains("> pod051-edge1"), "{}", text(&mut ui));
    press(&mut ui, "G");
    assert!(text(&mut ui).contains("> pod099-edge1"));
}

#[test]
fn what_is_not_shown_is_not_requested() {
    let mut ui = ui(false, (80, 24), three());
    assert_eq!(ui.wanted(), Subscriptions::default());
    for (key, view) in [('e', "events"), ('u', "usage"), ('l', "log")] {
        press(&mut ui, &key.to_string());
        let Subscriptions { events, detail, log, usage } = ui.wanted();
        let asked = [("events", events.is_some()), ("log", log.is_some()), ("usage", usage.is_some())];
        assert!(asked.into_iter().all(|(name, asked)| asked == (name == view)), "{view}: {asked:?}");
        assert_eq!(detail, None);
        ui.news(Feed::Away("gone".to_owned()), at(NOW));
        assert_eq!(ui.wanted(), Subscriptions::default(), "while the agent is away");
        ui.news(Feed::Pod(PodChange::Synced), at(NOW));
        press(&mut ui, "q");
    }
}

#[test]
fn a_description_is_read_again_when_its_pod_changes() {
    let mut ui = ui(false, (80, 24), three());
    press(&mut ui, "G\r");
    let (subject, first) = ui.wanted().detail.unwrap();
    ui.news(Feed::Pod(PodChange::Modified(Box::new(entry("db", None, "c2")))), at(NOW));
    assert_eq!(ui.wanted().detail.unwrap().1, first, "another pod");
    ui.news(Feed::Pod(PodChange::Modified(Box::new(entry("web", None, "c2")))), at(NOW));
    assert!(ui.wanted().detail.unwrap().1 > first);
    let document: DescribeDocument = serde_json::from_value(json!({
        "entry": serde_json::to_value(entry("web", None, "c2")).unwrap(), "containers": {}, "rejected": [], "events": [],
    }))
    .unwrap();
    ui.news(Feed::Detail(subject, Ok(Box::new(document))), at(NOW));
    assert!(text(&mut ui).contains("Name:             web-edge1"), "{}", text(&mut ui));
}

#[test]
fn a_log_continues_with_the_next_instance_and_restarts_with_the_agent() {
    let mut ui = ui(false, (80, 24), vec![entry("web", None, "c1")]);
    press(&mut ui, "l");
    let first = ui.wanted().log.unwrap();
    ui.news(Feed::Log(first.clone(), vec!["from the first".to_owned()]), at(NOW));
    ui.news(Feed::Pod(PodChange::Modified(Box::new(entry("web", None, "c2")))), at(NOW));
    let second = ui.wanted().log.unwrap();
    assert_eq!(second.instance.as_deref(), Some("containerd://c2"));
    ui.news(Feed::Log(first, vec!["too late".to_owned()]), at(NOW));
    ui.news(Feed::Log(second, vec!["from the second".to_owned()]), at(NOW));
    let shown = text(&mut ui);
    assert!(shown.contains("from the first\n--- another instance of main ---\nfrom the second\n"), "{shown}");
    ui.news(Feed::Away("gone".to_owned()), at(NOW));
    ui.news(Feed::Pod(PodChange::Added(Box::new(entry("web", None, "c2")))), at(NOW));
    ui.news(Feed::Pod(PodChange::Synced), at(NOW));
    assert!(!text(&mut ui).contains("from the first"));
    press(&mut ui, "cp");
    let log = ui.wanted().log.unwrap();
    assert_eq!((log.container.as_str(), log.previous), ("side", true));
}

#[test]
fn logs_and_events_are_bounded() {
    let mut ui = ui(false, (80, 24), three());
    press(&mut ui, "l");
    let log = ui.wanted().log.unwrap();
    for batch in 0..50 {
        let lines: Vec<String> = (0..100).map(|line| format!("{batch} {line}")).collect();
        ui.news(Feed::Log(log.clone(), lines), at(NOW));
    }
    let Some(state::View::Log(log)) = ui.views.last() else { panic!("no log") };
    assert_eq!(log.page.lines.len(), super::log::LOG_LINES);
    press(&mut ui, "qe");
    let events = ui.wanted().events.unwrap();
    for number in 0..1500 {
        ui.news(Feed::Event(events.clone(), event(&format!("event {number}"), NOW)), at(NOW));
    }
    assert!(text(&mut ui).contains("events: 1000"));
}

#[test]
fn keys_that_leave() {
    let mut ui = ui(false, (80, 24), three());
    assert_eq!(ui.key(Key::Control('z')), Some(Order::Suspend));
    assert_eq!(ui.key(Key::Control('l')), Some(Order::Redraw));
    press(&mut ui, "e");
    assert_eq!(ui.key(Key::Char('q')), None, "back");
    press(&mut ui, "/q");
    assert_eq!(ui.filter, "q", "a letter of the filter");
    assert_eq!(ui.key(Key::Control('c')), Some(Order::Quit));
    press(&mut ui, "\r");
    assert_eq!(ui.key(Key::Char('q')), Some(Order::Quit));
}

#[test]
fn a_first_screen_takes_less_than_three_seconds_at_9600_baud() {
    let pods = (0..21).map(|number| entry(&format!("gateway{number:02}"), None, "c")).collect();
    let mut ui = ui(false, (80, 24), pods);
    let first = frame::frame(&mut ui);
    let bytes = paint::bytes(None, &first);
    assert!(bytes.len() < 2400, "{}", bytes.len());
    let before = first;
    ui.news(Feed::Pod(PodChange::Modified(Box::new(entry("gateway07", Some("Error"), "c")))), at(NOW));
    let update = paint::bytes(Some(&before), &frame::frame(&mut ui));
    assert!(update.len() < 100, "{}", update.len());
    let before = frame::frame(&mut ui);
    press(&mut ui, "j");
    let moved = paint::bytes(Some(&before), &frame::frame(&mut ui));
    assert!(moved.len() <= 10, "{}", moved.len());
}
