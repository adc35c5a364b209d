//! What a fleet costs its server: requests and bytes while nothing changes, and for each stage of a roll-out, in which exactly
//! the nodes change that the hash of their names selects.
//!
//! The nodes ask at a short interval here. Figures of an hour are those of each request at the default interval.
#![allow(clippy::unwrap_used, missing_docs)]

#[path = "../../tests/fleet/nodes.rs"]
mod nodes;

use std::time::{Duration, Instant};

use limpet_bundle::settings::BundleSettings;
use limpet_tests::file_server::FileServer;
use limpet_tests::hollow::NODES_VARIABLE;
use limpet_tests::measure;
use limpet_tests::wire::{Traffic, Wire};
use nodes::Fleet;
use serde_json::{Value, json};

/// How large a bundle is: a delta of one layer.
const SIZE: usize = 1_000_000;
/// The longest that a step may take, in intervals.
const LONGEST: u32 = 20;

fn main() {
    let count = measure::setting(NODES_VARIABLE, 500).unwrap();
    let seconds = measure::setting(measure::SECONDS_VARIABLE, 60).unwrap();
    let interval = Duration::from_secs((seconds as u64 / 2).max(1));
    println!("{count} nodes that ask every {interval:?}, plain HTTP, a bundle of {SIZE} bytes");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let rows = runtime.block_on(Bench::new(count, interval).measure());
    let document = json!({ "nodes": count, "interval_seconds": interval.as_secs(), "rows": rows });
    measure::write_document(env!("CARGO_TARGET_TMPDIR"), "fleet", &document).unwrap();
}

struct Bench {
    _dir: tempfile::TempDir,
    server: FileServer,
    wire: Wire,
    fleet: Fleet,
    count: usize,
    interval: Duration,
    rows: Vec<Value>,
}

impl Bench {
    fn new(count: usize, interval: Duration) -> Self {
        // Its files are those of many nodes, each of which has a flash of its own.
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let server = FileServer::start().unwrap();
        let wire = Wire::to(server.port()).unwrap();
        let url = format!("http://127.0.0.1:{}/plant.limpet", wire.port);
        let fleet = Fleet::new(dir.path(), url, interval);
        Self { _dir: dir, server, wire, fleet, count, interval, rows: Vec::new() }
    }

    async fn measure(mut self) -> Vec<Value> {
        let filler = "x".repeat(SIZE);
        self.server.serve(self.fleet.bundle(1, None, &filler), None);
        let begun = self.mark();
        self.fleet.start(self.count);
        let all = self.fleet.settled(1, self.interval * LONGEST).await.unwrap();
        assert_eq!(all.len(), self.count);
        self.row("the first bundle, at once", self.count, &begun);

        // As after a power cut: they do not ask together.
        self.fleet.stop().await;
        self.fleet.start(self.count);
        self.idle("the first interval after a common start", self.interval).await;
        self.idle("idle", self.interval * 2).await;

        for (serial, rollout) in [(2, Some(10)), (3, Some(50)), (4, None)] {
            let percent = rollout.unwrap_or(100);
            self.server.serve(self.fleet.bundle(serial, rollout, &filler), None);
            let begun = self.mark();
            let changed = self.fleet.settled(serial, self.interval * LONGEST).await.unwrap();
            assert_eq!(changed, self.fleet.stage(percent), "not the nodes of the stage");
            self.row(&format!("the stage of {percent} %"), changed.len(), &begun);
        }
        self.fleet.stop().await;
        self.rows
    }

    /// Measures while nothing changes.
    async fn idle(&mut self, what: &str, window: Duration) {
        let begun = self.mark();
        let mut most = 0;
        while begun.0.elapsed() < window {
            let before = self.wire.traffic().connections;
            tokio::time::sleep(Duration::from_secs(1)).await;
            most = most.max(self.wire.traffic().connections - before);
        }
        let traffic = self.row(what, 0, &begun);
        let requests = self.server.requests();
        let since = requests.len().saturating_sub(traffic.connections as usize);
        let unchanged = requests[since..].iter().filter(|request| *request == "0 304").count();
        let an_hour = 3_600.0 / BundleSettings::DEFAULT_INTERVAL.as_secs_f64();
        let each = traffic.bytes() as f64 / traffic.connections.max(1) as f64;
        println!(
            "    {unchanged} answers of 304, at most {most} requests in a second; at the default interval of {:?}: {:.0} requests \
             and {:.1} kB an hour a node, {:.0} requests and {:.1} MB of all",
            BundleSettings::DEFAULT_INTERVAL,
            an_hour,
            an_hour * each / 1e3,
            an_hour * self.count as f64,
            an_hour * each * self.count as f64 / 1e6,
        );
        self.rows.push(json!({ "what": what, "most_a_second": most, "unchanged": unchanged, "bytes_a_request": each }));
    }

    fn mark(&self) -> (Instant, Traffic) {
        (Instant::now(), self.wire.traffic())
    }

    fn row(&mut self, what: &str, changed: usize, (at, before): &(Instant, Traffic)) -> Traffic {
        let (took, traffic) = (at.elapsed(), self.wire.traffic() - *before);
        println!(
            "{what:<42} {:>6.1} s {:>6} requests {:>9.1} kB sent {:>11.1} kB received {changed:>5} nodes changed",
            took.as_secs_f64(),
            traffic.connections,
            traffic.sent as f64 / 1e3,
            traffic.received as f64 / 1e3,
        );
        self.rows.push(json!({
            "what": what, "seconds": took.as_secs_f64(), "requests": traffic.connections, "sent": traffic.sent,
            "received": traffic.received, "changed": changed,
        }));
        traffic
    }
}
