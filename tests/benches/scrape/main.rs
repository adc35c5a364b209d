//! The cost of reading the metrics of a node with 50 pods: the time of each page, and the agent's memory before and after
//! 1,000 of them; of limpet and, with `--kubelet`, of a real kubelet.
//!
//! With kubelet the families of its pages are written, too: `target/bench/kubelet-metrics*.txt`.

mod families;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use limpet_tests::contender::{Contender, Stage, apply, remove, settle, wait_ready};
use limpet_tests::footprint::Footprint;
use limpet_tests::manifest::{IDLE, pod, shell, simple, with};
use limpet_tests::measure::{self, Durations};
use limpet_tests::wait;
use serde_json::json;

const PAGES: [&str; 4] = ["/metrics", "/metrics/resource", "/metrics/cadvisor", "/stats/summary"];

/// The pages whose families are written.
const RECORDED: [&str; 4] = ["/metrics", "/metrics/resource", "/metrics/cadvisor", "/metrics/probes"];

/// How often each page is read, which is 1,000 times altogether.
const SCRAPES: usize = 250;

const PODS: usize = 50;

/// How long the effects of the last start, and of the last scrape, may still last.
const SETTLE_TIME: Duration = Duration::from_secs(15);

fn main() -> Result<()> {
    let mut stage = Stage::set()?;
    let version = stage.node.containerd.version();
    println!("containerd {}.{}, {PODS} pods of one container, host network", version.0, version.1);
    let (durations, memory) = stage.measure(measure_all)?;
    println!("{}", durations.table());
    for (who, before, after) in &memory {
        println!("{who:<8} private memory, MiB: {:.1} before, {:.1} after 1,000 scrapes", mib(*before), mib(*after));
    }
    let of_memory =
        |(who, before, after): &(&str, u64, u64)| json!({ "who": who, "before_kib": before, "after_kib": after });
    let rows = json!({ "durations": durations.json(), "memory": memory.iter().map(of_memory).collect::<Vec<_>>() });
    measure::write(env!("CARGO_TARGET_TMPDIR"), "scrape", version, rows)?;
    stage.finish()
}

fn mib(kib: u64) -> f64 {
    kib as f64 / 1024.0
}

/// A contender and its private memory in KiB, before and after.
type Growth = (&'static str, u64, u64);

/// Measures the times, and how much each contender has grown.
fn measure_all(stage: &mut Stage) -> Result<(Durations, Vec<Growth>)> {
    let (contenders, containerd) = stage.parts();
    let (mut durations, mut memory) = (Durations::default(), Vec::new());
    for contender in contenders {
        contender.start()?;
        (0..PODS).try_for_each(|number| apply(contender, &simple(&format!("idle-{number}"), IDLE)))?;
        wait_ready(contender, PODS)?;
        wait::pass(SETTLE_TIME)?;
        let pid = contender.pid().with_context(|| format!("{} does not run", contender.name()))?;
        let before = Footprint::measure(pid).private;
        for page in PAGES {
            durations.add("50 pods", page, contender.name(), &scrape(contender, page)?);
        }
        wait::pass(SETTLE_TIME)?;
        memory.push((contender.name(), before, Footprint::measure(pid).private));
        if contender.name() == "kubelet" {
            record(contender)?;
        }
        (0..PODS).try_for_each(|number| remove(contender, &format!("idle-{number}")))?;
        settle(contender, containerd)?;
        contender.stop()?;
    }
    Ok((durations, memory))
}

fn scrape(contender: &dyn Contender, page: &str) -> Result<Vec<Duration>> {
    let once = |_| {
        let began = Instant::now();
        let answer = contender.get(page)?;
        ensure!(!answer.is_empty() && !wait::interrupted(), "{page} is empty, or somebody interrupted");
        Ok(began.elapsed())
    };
    (0..SCRAPES).map(once).collect()
}

/// Writes the families of every page, once containers have ended and probes have run.
fn record(contender: &dyn Contender) -> Result<()> {
    let probe = json!({ "exec": { "command": ["/bin/true"] }, "periodSeconds": 1 });
    let probed = with(shell("main", IDLE), json!({ "livenessProbe": probe, "readinessProbe": probe }));
    apply(contender, &pod("probed", json!({ "containers": [probed, shell("ends", "exit 3")] })))?;
    wait::until_true(wait::SOON, "results of probes", || {
        contender.get("/metrics/probes").is_ok_and(|page| String::from_utf8_lossy(&page).contains("readiness"))
    })?;
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let dir = scratch.parent().unwrap_or(scratch).join("bench");
    fs::create_dir_all(&dir)?;
    for page in RECORDED {
        let text = String::from_utf8(contender.get(page)?).with_context(|| page.to_owned())?;
        let file = dir.join(format!("kubelet{}.txt", page.replace('/', "-")));
        fs::write(&file, families::strip_values(&text)).with_context(|| format!("{}", file.display()))?;
    }
    remove(contender, "probed")
}
