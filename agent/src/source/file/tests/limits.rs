//! The kernel's limits: events that are lost, watches that it does not give.

use std::process::Command;

use super::*;

/// Makes this test's process the one in a user namespace, whose limits are its own.
const INSIDE: &str = "LIMPET_TEST_INOTIFY_LIMITS";

#[tokio::test]
async fn what_happened_while_events_were_lost_is_found() {
    let mut bench = Bench::new();
    bench.write("a.yaml", "pod a 1");
    bench.write("b.yaml", "pod b 1");
    bench.start();
    let before = bench.until(|now| now.pods.len() == 2).await;
    let limit = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap();
    // The source has no turn meanwhile: the queue is full before it looks.
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
fn without_watches_it_looks_every_so_often_and_says_so() {
    if std::env::var_os(INSIDE).is_some() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        return runtime.block_on(under_limits());
    }
    let allowed = Command::new("unshare").args(["--user", "--map-root-user", "true"]).status();
    if !allowed.is_ok_and(|status| status.success()) {
        println!("skipped: needs user namespaces and unshare");
        return;
    }
    let (program, name) = (std::env::current_exe().unwrap(), std::thread::current().name().unwrap().to_owned());
    let mut inside = Command::new("unshare");
    inside.args(["--user", "--map-root-user"]).arg(program).args([&name, "--exact", "--nocapture"]).env(INSIDE, "1");
    let output = inside.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}{}", String::from_utf8_lossy(&output.stderr));
}

fn allow(what: &str, number: usize) {
    fs::write(format!("/proc/sys/user/max_inotify_{what}"), number.to_string()).unwrap();
}

async fn under_limits() {
    let mut bench = Bench::new();
    bench.pace.blind = Duration::from_millis(20);
    bench.write("a.yaml", "pod a 0");
    // No instance, no watch, not all watches of the way.
    let way = bench.directory.ancestors().count();
    for (version, (what, number)) in (1..).zip([("instances", 0), ("watches", 0), ("watches", way - 1)]) {
        blind(&mut bench, what, number).await;
        // Nothing tells it, and it finds out all the same.
        bench.write("a.yaml", &format!("pod a {version}"));
        bench.until_pods(&[&format!("a {version} @ a.yaml")]).await;
        allow(what, 10_000);
        bench.until(|now| now.health == Health::Good).await;
        bench.stop().await;
    }
    // None for what a symlink leads to.
    let elsewhere = bench.root.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    fs::write(elsewhere.join("a.yaml"), "pod link 1").unwrap();
    symlink(elsewhere.join("a.yaml"), bench.directory.join("link.yaml")).unwrap();
    blind(&mut bench, "watches", way).await;
    fs::write(elsewhere.join("a.yaml"), "pod link 2").unwrap();
    bench.until_pods(&["a 3 @ a.yaml", "link 2 @ link.yaml"]).await;
    bench.stop().await;
}

/// Starts the source under a limit, and waits until it says that it is not told of changes.
async fn blind(bench: &mut Bench, what: &str, number: usize) {
    allow(what, number);
    bench.start();
    let word = format!("fs.inotify.max_user_{what}");
    let told = bench.until(|now| matches!(&now.health, Health::Blind(why) if why.contains(&word))).await;
    assert!(told.ready && !told.pods.is_empty(), "{what} {number}");
}
