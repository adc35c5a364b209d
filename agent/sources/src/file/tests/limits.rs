//! The kernel's limits: lost events, and inotify watches that cannot be added.

use std::process::Command;

use limpet_tests::need;

use super::*;

/// Set if the test runs in a user namespace with its own limits.
const INSIDE: &str = "LIMPET_TEST_INOTIFY_LIMITS";

#[tokio::test]
async fn changes_during_lost_events_are_found() {
    let mut bench = Bench::new();
    bench.write("a.yaml", "pod a 1");
    bench.write("b.yaml", "pod b 1");
    bench.start();
    let before = bench.until(|now| now.pods.len() == 2).await;
    let limit = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap();
    // The source is not polled meanwhile: the queue is full before it reads.
    for _ in 0..limit.trim().parse::<usize>().unwrap() {
        fs::write(bench.directory.join("noise"), "").unwrap();
        fs::remove_file(bench.directory.join("noise")).unwrap();
    }
    fs::remove_file(bench.directory.join("b.yaml")).unwrap();
    bench.write("c.yaml", "pod c 1");
    let after = bench.until_pods(&["a 1 @ a.yaml", "c 1 @ c.yaml"]).await;
    assert!(Arc::ptr_eq(before.pods.values().next().unwrap(), after.pods.values().next().unwrap()));
    bench.stop().await;
}

#[test]
fn without_watches_it_polls_and_reports_it() {
    if std::env::var_os(INSIDE).is_some() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        return runtime.block_on(under_limits());
    }
    let Some(mut probe) = need::program("unshare") else { return };
    if !probe.args(["--user", "--map-root-user", "true"]).status().unwrap().success() {
        return need::kernel_lacks("user namespaces are refused");
    }
    let (program, name) = (std::env::current_exe().unwrap(), std::thread::current().name().unwrap().to_owned());
    let mut inside = Command::new("unshare");
    inside.args(["--user", "--map-root-user"]).arg(program).args([&name, "--exact", "--nocapture"]).env(INSIDE, "1");
    let output = inside.output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && stdout.contains("1 passed"),
        "{stdout}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

fn allow(what: &str, number: usize) {
    fs::write(format!("/proc/sys/user/max_inotify_{what}"), number.to_string()).unwrap();
}

async fn under_limits() {
    let mut bench = Bench::new();
    bench.periods.blind = Duration::from_millis(20);
    bench.write("a.yaml", "pod a 0");
    // The limits leave no inotify instance, no watch, or not all watches of the path.
    let way = bench.directory.ancestors().count();
    for (version, (what, number)) in (1..).zip([("instances", 0), ("watches", 0), ("watches", way - 1)]) {
        blind(&mut bench, what, number).await;
        // It gets no notification, but finds the change.
        bench.write("a.yaml", &format!("pod a {version}"));
        bench.until_pods(&[&format!("a {version} @ a.yaml")]).await;
        allow(what, 10_000);
        bench.until(|now| now.health == Health::Good).await;
        bench.stop().await;
    }
    // There is no watch for a symlink's target.
    let elsewhere = bench.root.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    fs::write(elsewhere.join("a.yaml"), "pod link 1").unwrap();
    symlink(elsewhere.join("a.yaml"), bench.directory.join("link.yaml")).unwrap();
    blind(&mut bench, "watches", way).await;
    fs::write(elsewhere.join("a.yaml"), "pod link 2").unwrap();
    bench.until_pods(&["a 3 @ a.yaml", "link 2 @ link.yaml"]).await;
    bench.stop().await;
}

/// Starts the source under a limit, and waits until it reports that it has no change notifications.
async fn blind(bench: &mut Bench, what: &str, number: usize) {
    allow(what, number);
    bench.start();
    let limit = format!("fs.inotify.max_user_{what}");
    let now = bench.until(|now| matches!(&now.health, Health::Blind(why) if why.contains(&limit))).await;
    assert!(now.ready && !now.pods.is_empty(), "{what} {number}");
}
