//! Updates that do not work while something else happens on the node.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, ensure};
use limpet_tests::{TestNode, wait};
use serde_json::json;

use crate::stage::{
    End, Update, attempt, attempt_during, begin, container_with, has_ended, is_good, settings, spec_with, works,
};

fn never_ready(name: &'static str) -> Update {
    let probe = json!({ "exec": { "command": ["/bin/false"] }, "periodSeconds": 1 });
    // What was undone is not tried again, so each has something of its own.
    let environment = json!([{ "name": "UPDATE", "value": name }]);
    let text = container_with(json!({ "readinessProbe": probe, "env": environment }));
    Update { name, text, end: End::Undone("is not ready") }
}

fn is_on_trial(node: &TestNode) -> Result<()> {
    wait::until_true(wait::SOON, "the trial", || {
        node.agent.cli(&["status"]).is_ok_and(|reply| reply.stdout.contains("on trial: pod default/web-"))
    })
}

pub(crate) fn a_clock_that_jumps(node: &mut TestNode) -> Result<()> {
    node.agent.set_clock("+0")?;
    node.agent.start()?;
    begin(node)?;
    // A year forth would end a trial at once, and a year back never, by the clock.
    for time in ["+370d", "-370d"] {
        let update = never_ready(time);
        node.drop_text("all.yaml", &update.text)?;
        is_on_trial(node)?;
        node.agent.set_clock(time)?;
        is_on_trial(node)?;
        has_ended(node, update.end)?;
        works(node)?;
        begin(node)?;
    }
    Ok(())
}

pub(crate) fn a_containerd_that_ends(node: &mut TestNode) -> Result<()> {
    begin(node)?;
    node.drop_text("all.yaml", &never_ready("").text)?;
    is_on_trial(node)?;
    node.containerd.stop()?;
    node.containerd.start()?;
    has_ended(node, never_ready("").end)?;
    works(node)?;
    begin(node)
}

pub(crate) fn a_url_that_does_not_agree(node: &mut TestNode) -> Result<()> {
    let (listener, agrees) = (TcpListener::bind("127.0.0.1:0")?, Arc::new(AtomicBool::new(true)));
    let (address, asked) = (listener.local_addr()?, Arc::clone(&agrees));
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let status = if asked.load(Ordering::SeqCst) { "204 No Content" } else { "500 Internal Server Error" };
            let read = stream.read(&mut [0; 4096]);
            // A client that has left has its answer.
            let _ = read
                .and_then(|_| write!(stream, "HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"));
        }
    });
    let lines = settings(&format!(", check: {{url: 'http://{address}/works'}}"));
    node.agent.reconfigure(|settings| settings.limpet = vec![lines])?;
    node.agent.start()?;
    begin(node)?;
    let text = container_with(json!({ "env": [{ "name": "VERSION", "value": "2" }] }));
    let update = Update { name: "a check by URL", text, end: End::Undone("the check failed") };
    let answer = |value: bool| agrees.store(value, Ordering::SeqCst);
    answer(false);
    attempt_during(node, &update, |node| {
        has_ended(node, update.end)?;
        answer(true);
        Ok(())
    })
}

/// What was found good is not undone; the status says what is wrong, and the next version is judged as always.
pub(crate) fn a_probe_that_fails_later(node: &mut TestNode) -> Result<()> {
    begin(node)?;
    let probe =
        json!({ "exec": { "command": ["/bin/test", "-e", "/tmp/works"] }, "periodSeconds": 1, "failureThreshold": 1 });
    let script = "touch /tmp/works; trap 'exit 0' TERM; sleep 100000 & wait";
    let later = spec_with(json!({ "containers": [{ "name": "main", "image": limpet_tests::image::V1,
        "command": ["/bin/sh", "-c", script], "readinessProbe": probe,
        "volumeMounts": [{ "name": "tmp", "mountPath": "/tmp" }] }], "volumes": [{ "name": "tmp", "emptyDir": {} }] }));
    node.drop_text("all.yaml", &later)?;
    wait::until_true(wait::SOON, "the version with the probe to be good", || {
        is_good(node) && node.pod("web").is_some_and(|pod| pod["metadata"]["labels"]["version"] == "bad")
    })?;
    node.exec("web", "main", &["/bin/rm", "/tmp/works"])?;
    node.wait_pod("web", "not ready", |pod| pod["status"]["containerStatuses"][0]["ready"] == false)?;
    let status = node.agent.cli(&["status"])?.stdout;
    ensure!(!status.contains("was undone") && status.contains("2 running, 1 ready"), "{status}");
    ensure!(is_good(node), "a good generation is judged again");
    // A bad version after it returns to that one, whose failure is not the bad version's.
    let crash = Update {
        name: "",
        text: container_with(json!({ "command": ["/bin/sh", "-c", "exit 8"] })),
        end: End::Undone("ended with 8"),
    };
    node.drop_text("all.yaml", &crash.text)?;
    has_ended(node, crash.end)?;
    begin(node)?;
    attempt(node, &never_ready("after all of that"))
}
