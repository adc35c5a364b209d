//! Log directories with symlinks that lead out, and services without a journal.

use std::fs;
use std::os::unix::fs::symlink;

use axum::body::to_bytes;
use axum::http::Request;
use tempfile::TempDir;
use tower::ServiceExt as _;

use super::super::caller::tests::for_host;
use super::*;

/// A log directory, and next to it a file that must not be served.
fn dir() -> TempDir {
    let dir = TempDir::new().unwrap();
    let log = dir.path().join("log");
    fs::create_dir_all(log.join("pods")).unwrap();
    fs::write(dir.path().join("secret"), "secret").unwrap();
    fs::write(log.join("syslog"), "a line\n").unwrap();
    fs::write(log.join("app.log"), "of app\n").unwrap();
    fs::write(log.join("pods/0.log"), "of a pod\n").unwrap();
    fs::write(log.join("a b&c"), "odd\n").unwrap();
    symlink(log.join("pods/0.log"), log.join("linked.log")).unwrap();
    symlink("pods/0.log", log.join("relative.log")).unwrap();
    symlink(dir.path().join("secret"), log.join("out.log")).unwrap();
    symlink("../secret", log.join("out-relative.log")).unwrap();
    symlink(log.join("../secret"), log.join("out-dots.log")).unwrap();
    symlink("/proc/self/root", log.join("root")).unwrap();
    symlink(dir.path(), log.join("up")).unwrap();
    symlink("loop", log.join("loop")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        log.join("fifo"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    dir
}

async fn get(dir: &TempDir, queries: bool, path: &str) -> (u16, String) {
    let state = NodeLogState::new(dir.path().join("log"), queries);
    let app = for_host(routes(state).into_router());
    let answer = app.oneshot(Request::builder().uri(path).body(axum::body::Body::empty()).unwrap()).await.unwrap();
    let status = answer.status().as_u16();
    let location = answer.headers().get("location").map(|value| value.to_str().unwrap().to_owned());
    let body = to_bytes(answer.into_body(), 1 << 20).await.unwrap();
    (status, location.unwrap_or_else(|| String::from_utf8(body.to_vec()).unwrap()))
}

#[tokio::test]
async fn files_are_shown_and_directories_are_pages_of_links() {
    let dir = dir();
    let table = [
        ("/logs/syslog", 200, "a line\n"),
        ("/logs/pods/0.log", 200, "of a pod\n"),
        ("/logs/linked.log", 200, "of a pod\n"),
        ("/logs/relative.log", 200, "of a pod\n"),
        ("/logs/a%20b%26c", 200, "odd\n"),
        ("/logs/pods", 301, "pods/"),
        ("/logs/syslog/", 301, "../syslog"),
        ("/logs/none", 404, "404 page not found\n"),
    ];
    for (path, status, text) in table {
        assert_eq!(get(&dir, false, path).await, (status, text.to_owned()), "{path}");
    }
    let (_, page) = get(&dir, false, "/logs/").await;
    assert!(
        page.contains("<a href=\"pods/\">pods/</a>\n") && page.contains("<a href=\"a%20b%26c\">a b&amp;c</a>\n"),
        "{page}"
    );
}

#[tokio::test]
async fn no_path_and_no_link_leads_out() {
    let dir = dir();
    let table = [
        "/logs/../secret",
        "/logs/%2e%2e/secret",
        "/logs/..%2fsecret",
        "/logs/pods/../../secret",
        "/logs//secret",
        "/logs/%2fetc/passwd",
        "/logs/out.log",
        "/logs/out-relative.log",
        "/logs/out-dots.log",
        "/logs/root/etc/passwd",
        "/logs/up/secret",
        "/logs/loop",
        "/logs/fifo",
        "/logs/secret%00",
        "/logs/?query=%2F..%2Fsecret",
        "/logs/?query=%5C..%5Csecret",
        "/logs/?query=out&query=..",
    ];
    for path in table {
        for queries in [false, true] {
            let (status, body) = get(&dir, queries, path).await;
            let is_page = status == 200 && body.contains("<pre>") && path.contains('?');
            let says_so = status == 200 && body.contains("log not found for");
            assert!((400..500).contains(&status) || is_page || says_so, "{path}: {status} {body}");
            assert!(!body.starts_with("secret") && !body.contains("root:"), "{path}: {body}");
        }
    }
}

#[tokio::test]
async fn a_service_that_the_journal_does_not_know_has_its_file() {
    let dir = dir();
    let table = [
        ("/logs/?query=app", 200, "of app\n"),
        ("/logs/?query=%2Fpods%2F0.log", 200, "of a pod\n"),
        ("/logs/?query=nobody", 200, "\nlog not found for nobody\n"),
        ("/logs/?query=out", 200, "\nlog not found for out\n"),
        (
            "/logs/?query=app&tailLines=1",
            200,
            "\noptions present and query resolved to log files for [app]\ntry without specifying options\n",
        ),
        ("/logs/syslog?query=app", 406, "path not allowed in query mode\n"),
        ("/logs/?query=", 400, "query: Invalid value: \"\": may not be empty\n"),
    ];
    for (path, status, text) in table {
        assert_eq!(get(&dir, true, path).await, (status, text.to_owned()), "{path}");
    }
    let (status, page) = get(&dir, false, "/logs/?query=app").await;
    assert!(status == 200 && page.contains("<pre>"), "queries are turned off: {page}");
}
