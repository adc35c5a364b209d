//! Hooks: `postStart` and `preStop` of every kind, what waits for them, and the stop signal of a spec.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::mpsc::{Receiver, channel};
use std::{fs, thread};

use anyhow::{Result, ensure};
use limpet_tests::claim::Port;
use limpet_tests::image::V2;
use limpet_tests::manifest::{IDLE, pod, shell, with};
use limpet_tests::node::{container, container_id};
use limpet_tests::process::Daemon;
use limpet_tests::{TestNode, case, registry, suite, wait};
use serde_json::{Value, json};

fn main() -> ExitCode {
    suite::run([
        case!(hooks_of_every_kind).on(|node| node.cni = true),
        case!(hooks_ask_by_https_and_without_tls_where_there_is_none),
        case!(a_grace_of_zero_leaves_two_seconds),
        case!(a_hook_holds_back_the_next_container),
        case!(a_failed_post_start_restarts_its_container),
        case!(a_pre_stop_that_hangs_ends_with_the_grace),
        case!(a_pre_stop_that_fails_holds_up_nothing),
        case!(an_edit_runs_pre_stop_and_an_exit_does_not),
        case!(the_agent_goes_away_during_hooks),
        case!(the_spec_names_the_stop_signal),
    ])
}

/// Writes a line into the diary, which all containers of a test share.
fn note(line: &str) -> String {
    format!("echo '{line}' >> /shared/diary")
}

/// A container that ends on SIGTERM, and notes it.
fn idle(name: &str) -> String {
    format!(
        "trap \"{}; exit 0\" TERM; {}; sleep 100000 & wait",
        note(&format!("TERM {name}")),
        note(&format!("start {name}"))
    )
}

/// A hook that runs `script`.
fn exec(script: &str) -> Value {
    json!({ "exec": { "command": ["/bin/sh", "-c", script] } })
}

/// The command that waits until the file exists.
fn until(file: &str) -> String {
    format!("until test -e /shared/{file}; do sleep 0.1; done")
}

fn hooked(name: &str, script: &str, lifecycle: Value) -> Value {
    let mounts = json!([{ "name": "shared", "mountPath": "/shared" }]);
    with(shell(name, script), json!({ "lifecycle": lifecycle, "volumeMounts": mounts }))
}

/// A pod of these containers with the directory that they share.
fn sharing(node: &TestNode, grace: u64, containers: &[Value]) -> Result<Value> {
    let shared = node.dir().join("shared");
    fs::create_dir_all(&shared)?;
    Ok(pod(
        "web",
        json!({
            "terminationGracePeriodSeconds": grace,
            "containers": containers,
            "volumes": [{ "name": "shared", "hostPath": { "path": shared } }],
        }),
    ))
}

fn diary(node: &TestNode) -> Vec<String> {
    let text = fs::read_to_string(node.dir().join("shared/diary")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

fn count(node: &TestNode, line: &str) -> usize {
    diary(node).iter().filter(|known| *known == line).count()
}

fn wait_noted(node: &TestNode, line: &str, times: usize) -> Result<()> {
    wait::until_true(wait::SOON, &format!("{times} times {line:?} in the diary"), || count(node, line) >= times)
}

/// The index of a line that the diary has exactly once.
fn place(node: &TestNode, line: &str) -> Result<usize> {
    ensure!(count(node, line) == 1, "{line:?} in {:?}", diary(node));
    Ok(diary(node).iter().position(|known| known == line).unwrap_or_default())
}

fn allow(node: &TestNode, file: &str) -> Result<()> {
    Ok(fs::write(node.dir().join("shared").join(file), "")?)
}

fn hooks_of_every_kind(node: &mut TestNode) -> Result<()> {
    let serve = "mkdir -p /www/cgi-bin && \
        printf '#!/bin/sh\\necho \"$QUERY_STRING\" >> /shared/diary\\nprintf \"Content-Type: text/plain\\\\r\\\\n\\\\r\\\\nok\"\\n' > /www/cgi-bin/hook && \
        chmod 755 /www/cgi-bin/hook && exec httpd -f -p 8080 -h /www";
    // The hook waits until a process listens on port 8080.
    let listens = "until grep -q ':1F90 .* 0A ' /proc/net/tcp /proc/net/tcp6; do sleep 0.1; done";
    let last = "until grep -qx pre-http /shared/diary && grep -qx 'TERM tcp' /shared/diary; do sleep 0.1; done";
    let get = |what: &str| json!({ "httpGet": { "port": "web", "path": format!("/cgi-bin/hook?{what}") } });
    let socket = json!({ "tcpSocket": { "port": 8080 } });
    let pause = json!({ "sleep": { "seconds": 1 } });
    let http = hooked("http", &idle("http"), json!({ "postStart": get("post-http"), "preStop": get("pre-http") }));
    let containers = [
        hooked(
            "server",
            serve,
            json!({ "postStart": exec(listens), "preStop": exec(&format!("{last}; {}", note("pre-exec"))) }),
        ),
        with(http, json!({ "ports": [{ "name": "web", "containerPort": 8080 }] })),
        hooked("tcp", &idle("tcp"), json!({ "postStart": socket, "preStop": socket })),
        hooked("sleep", &idle("sleep"), json!({ "postStart": pause, "preStop": pause })),
    ];
    // The server is the first process of its namespace and does not handle SIGTERM, so it ends at the end of the grace
    // period.
    node.apply(&with(sharing(node, 20, &containers)?, json!({ "spec": { "hostNetwork": false } })))?;
    node.wait_running("web")?;
    ensure!(place(node, "post-http")? < place(node, "start tcp")?, "{:?}", diary(node));
    ensure!(place(node, "start tcp")? < place(node, "start sleep")?, "{:?}", diary(node));
    node.remove("web")?;
    node.wait_gone("web")?;
    ensure!(place(node, "pre-http")? < place(node, "TERM http")?, "{:?}", diary(node));
    ensure!(count(node, "pre-exec") == 1 && count(node, "TERM sleep") == 1, "{:?}", diary(node));
    let events = node.events()?;
    ensure!(!events.contains("FailedPostStartHook") && !events.contains("FailedPreStopHook"), "{events}");
    Ok(())
}

/// Starts a server with its own certificate, which serves the documents `post` and `pre` below `dir` and logs their
/// names.
fn https_server(dir: &Path, port: u16) -> Result<Daemon> {
    let site = dir.join("site");
    fs::create_dir(&site)?;
    registry::self_signed(&site.join("key"), &site.join("crt"))?;
    for name in ["post", "pre"] {
        fs::write(site.join(name), "well\n")?;
    }
    let mut openssl = Command::new("openssl");
    let files = ["-cert", "crt", "-key", "key"];
    openssl.args(["s_server", "-WWW", "-accept", &format!("127.0.0.1:{port}")]).args(files);
    let server = Daemon::start(openssl.current_dir(&site), &dir.join("https.log"))?;
    let listens = || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok();
    wait::until_true(wait::SOON, "the HTTPS server", listens)?;
    Ok(server)
}

/// Starts a server without TLS. The result receives the paths of its requests.
fn http_server(port: u16) -> Result<Receiver<String>> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
    let (asked, paths) = channel();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut request = [0; 4096];
            let length = stream.read(&mut request).unwrap_or_default();
            let line = String::from_utf8_lossy(&request[..length]).into_owned();
            let path = line.strip_prefix("GET ").and_then(|rest| rest.split(' ').next());
            let status = if path.is_some() { "200 OK" } else { "400 Bad Request" };
            // A client may be gone before the answer.
            let _ = write!(stream, "HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
            path.into_iter().for_each(|path| drop(asked.send(path.to_owned())));
        }
    });
    Ok(paths)
}

fn hooks_ask_by_https_and_without_tls_where_there_is_none(node: &mut TestNode) -> Result<()> {
    let (secure, plain) = (Port::claim()?, Port::claim()?);
    let server = https_server(node.dir(), secure.number)?;
    let paths = http_server(plain.number)?;
    let hooks = |port: u16| {
        let get =
            |path: &str| json!({ "httpGet": { "scheme": "HTTPS", "host": "127.0.0.1", "port": port, "path": path } });
        json!({ "postStart": get("/post"), "preStop": get("/pre") })
    };
    let containers =
        [("tls", secure.number), ("none", plain.number)].map(|(name, port)| hooked(name, &idle(name), hooks(port)));
    node.apply(&sharing(node, 20, &containers)?)?;
    node.wait_running("web")?;
    node.wait_event("LifecycleHTTPFallback")?;
    node.remove("web")?;
    node.wait_gone("web")?;
    let log = server.log();
    let served: Vec<_> = log.lines().filter_map(|line| line.strip_prefix("FILE:")).collect();
    ensure!(served == ["post", "pre"], "{served:?}");
    let asked: Vec<String> = paths.try_iter().collect();
    ensure!(asked == ["/post", "/pre"], "{asked:?}");
    let events = node.events()?;
    ensure!(!events.contains("FailedPostStartHook") && !events.contains("FailedPreStopHook"), "{events}");
    Ok(())
}

fn a_grace_of_zero_leaves_two_seconds(node: &mut TestNode) -> Result<()> {
    let trap = format!("trap \"{}; sleep 1.2; {}; exit 0\" TERM", note("TERM"), note("done"));
    let script = format!("{trap}; {}; sleep 100000 & wait", note("up"));
    node.apply(&sharing(node, 0, &[hooked("main", &script, json!({}))])?)?;
    wait_noted(node, "up", 1)?;
    node.remove("web")?;
    node.wait_gone("web")?;
    ensure!(diary(node) == ["up", "TERM", "done"], "{:?}", diary(node));
    Ok(())
}

fn a_hook_holds_back_the_next_container(node: &mut TestNode) -> Result<()> {
    let hook = exec(&format!("{}; {}; {}", note("hook"), until("go"), note("hook over")));
    let first = hooked("first", &idle("first"), json!({ "postStart": hook }));
    node.apply(&sharing(node, 5, &[first, hooked("second", &idle("second"), json!({}))])?)?;
    wait_noted(node, "hook", 1)?;
    let held = node.wait_pod("web", "shown with its hook", |pod| container(pod, "first")["containerID"].is_string())?;
    let waiting = &container(&held, "first")["state"]["waiting"];
    ensure!(waiting["reason"] == "ContainerCreating" && held["status"]["phase"] == "Pending", "{}", held["status"]);
    ensure!(container(&held, "second")["containerID"].is_null(), "{}", held["status"]);
    allow(node, "go")?;
    node.wait_running("web")?;
    wait_noted(node, "start second", 1)?;
    ensure!(place(node, "hook over")? < place(node, "start second")?, "{:?}", diary(node));
    Ok(())
}

fn a_failed_post_start_restarts_its_container(node: &mut TestNode) -> Result<()> {
    let hooks = json!({ "postStart": exec("echo too early; test -e /shared/go"), "preStop": exec(&note("pre")) });
    node.apply(&sharing(node, 5, &[hooked("main", &idle("main"), hooks)])?)?;
    node.wait_event("FailedPostStartHook")?;
    wait_noted(node, "TERM main", 1)?;
    ensure!(place(node, "pre")? < place(node, "TERM main")?, "{:?}", diary(node));
    allow(node, "go")?;
    let web = node.wait_running("web")?;
    let main = container(&web, "main");
    ensure!(main["restartCount"].as_u64() >= Some(1) && main["lastState"]["terminated"].is_object(), "{main}");
    let events = node.events()?;
    ensure!(!events.contains("too early"), "a hook's output is in an event: {events}");
    ensure!(node.agent.log().contains("too early"), "and it is not in the log");
    Ok(())
}

fn a_pre_stop_that_hangs_ends_with_the_grace(node: &mut TestNode) -> Result<()> {
    let hooks = json!({ "preStop": exec("exec sleep 100000") });
    node.apply(&sharing(node, 2, &[hooked("main", &idle("main"), hooks)])?)?;
    node.wait_running("web")?;
    node.remove("web")?;
    node.wait_gone("web")?;
    ensure!(diary(node) == ["start main", "TERM main"], "{:?}", diary(node));
    // Here the container ignores its signal, too, so the hook continues until the container is killed, as with kubelet.
    let hooks =
        json!({ "preStop": exec(&format!("{}; {}; exec sleep 100000", until("term"), note("hook after TERM"))) });
    let ignores = "trap 'touch /shared/term' TERM; while :; do sleep 0.1; done";
    node.apply(&sharing(node, 2, &[hooked("main", ignores, hooks)])?)?;
    node.wait_running("web")?;
    node.remove("web")?;
    node.wait_gone("web")?;
    ensure!(diary(node).last().is_some_and(|line| line == "hook after TERM"), "{:?}", diary(node));
    node.wait_nothing_runs()
}

fn a_pre_stop_that_fails_holds_up_nothing(node: &mut TestNode) -> Result<()> {
    let hooks = json!({ "preStop": { "httpGet": { "host": "127.0.0.1", "port": 1, "path": "/" } } });
    node.apply(&sharing(node, 60, &[hooked("main", &idle("main"), hooks)])?)?;
    node.wait_running("web")?;
    node.remove("web")?;
    node.wait_gone("web")?;
    ensure!(diary(node) == ["start main", "TERM main"], "{:?}", diary(node));
    node.wait_event("FailedPreStopHook")
}

fn an_edit_runs_pre_stop_and_an_exit_does_not(node: &mut TestNode) -> Result<()> {
    let script = format!("test -e /shared/quit || {{ {}; exit 0; }}; {}", until("quit"), idle("main"));
    let main = |image: Value| with(hooked("main", &script, json!({ "preStop": exec(&note("pre")) })), image);
    node.apply(&sharing(node, 30, &[main(json!({}))])?)?;
    let before = node.wait_running("web")?;
    allow(node, "quit")?;
    let first = container_id(&before, "main")?;
    let again = node.wait_pod("web", "running again", |pod| {
        container(pod, "main")["state"]["running"].is_object() && container_id(pod, "main").is_ok_and(|id| id != first)
    })?;
    wait_noted(node, "start main", 1)?;
    ensure!(diary(node) == ["start main"], "it ended by itself: {:?}", diary(node));
    let second = container_id(&again, "main")?;
    node.apply(&sharing(node, 30, &[main(json!({ "image": V2 }))])?)?;
    node.wait_pod("web", "running its second image", |pod| {
        container(pod, "main")["state"]["running"].is_object() && container_id(pod, "main").is_ok_and(|id| id != second)
    })?;
    wait_noted(node, "start main", 2)?;
    ensure!(diary(node) == ["start main", "pre", "TERM main", "start main"], "{:?}", diary(node));
    Ok(())
}

fn the_agent_goes_away_during_hooks(node: &mut TestNode) -> Result<()> {
    let hooks = json!({
        "postStart": exec(&format!("{}; {}", note("post"), until("never"))),
        "preStop": exec(&format!("{}; {}; {}", note("pre"), until("go"), note("pre over"))),
    });
    let second = hooked("second", IDLE, json!({}));
    node.apply(&sharing(node, 120, &[hooked("main", &idle("main"), hooks), second])?)?;
    wait_noted(node, "post", 1)?;
    node.agent.kill();
    node.agent.start()?;
    let adopted = node.wait_running("web")?;
    ensure!(container(&adopted, "main")["restartCount"] == 0, "{}", adopted["status"]);
    ensure!(count(node, "post") == 1, "as kubelet, it does not run it again: {:?}", diary(node));
    node.remove("web")?;
    wait_noted(node, "pre", 1)?;
    node.agent.kill();
    node.agent.start()?;
    wait_noted(node, "pre", 2)?;
    ensure!(count(node, "TERM main") == 0, "{:?}", diary(node));
    allow(node, "go")?;
    node.wait_gone("web")?;
    ensure!(place(node, "pre over")? < place(node, "TERM main")?, "{:?}", diary(node));
    Ok(())
}

fn the_spec_names_the_stop_signal(node: &mut TestNode) -> Result<()> {
    let script = format!("trap '' TERM; trap \"{}; exit 0\" USR1; sleep 100000 & wait", note("USR1"));
    let main = hooked("main", &script, json!({ "stopSignal": "SIGUSR1" }));
    node.apply(&with(sharing(node, 60, &[main])?, json!({ "spec": { "os": { "name": "linux" } } })))?;
    let web = node.wait_running("web")?;
    ensure!(container(&web, "main")["stopSignal"] == "SIGUSR1", "{}", web["status"]);
    node.remove("web")?;
    node.wait_gone("web")?;
    ensure!(diary(node) == ["USR1"], "{:?}", diary(node));
    Ok(())
}
