//! The images that a provider is called for, its valid answers, and how long they are cached.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use super::*;

mod tokens;

const V1: &str = "credentialprovider.kubelet.k8s.io/v1";

fn provider(program: &Path, match_images: &[&str]) -> CredentialProvider {
    CredentialProvider {
        name: "test".to_owned(),
        program: program.to_owned(),
        match_images: match_images.iter().map(|&glob| glob.to_owned()).collect(),
        default_cache_duration: Duration::from_secs(600),
        api_version: V1.to_owned(),
        args: vec!["get".to_owned()],
        env: vec![("WHO".to_owned(), "me".to_owned())],
        token_attributes: None,
    }
}

fn answer(scope: &str, rest: &str) -> String {
    format!(
        r#"{{"apiVersion": "{V1}", "kind": "CredentialProviderResponse", "cacheKeyType": "{scope}"{rest},
            "auth": {{"q.io": {{"username": "u", "password": "hunter2"}}}}}}"#
    )
}

fn parsed(text: &str) -> Result<Answer, String> {
    Answer::parse(text.as_bytes(), &provider(Path::new("/p"), &["q.io"]))
}

fn name(image: &str) -> ImageName {
    ImageName::parse(image).unwrap()
}

#[test]
fn images_are_matched_as_kubelet_does() {
    let table: &[(&str, &str, bool)] = &[
        ("q.io", "q.io/a:v1", true),
        ("*.q.io", "a.q.io/x", true),
        ("*.q.io", "q.io/x", false),
        ("*.q.io", "b.a.q.io/x", false),
        ("app*.q.io", "app1.q.io/x", true),
        ("q.io/team", "q.io/team/app", true),
        ("q.io/team", "q.io/other/app", false),
        ("q.io", "q.io:5000/a", false),
        ("q.io:5000", "q.io:5000/a", true),
        ("docker.io", "busybox", true),
        ("docker.io/library", "busybox", true),
        ("index.docker.io", "busybox", false),
    ];
    for (glob, image, wanted) in table {
        assert_eq!(provider(Path::new("/p"), &[glob]).matches(&name(image)), *wanted, "{glob} {image}");
    }
}

#[test]
fn an_answer_says_for_what_and_how_long_it_is_cached() {
    let table = [
        ("Image", "", Scope::Image, 600),
        ("Registry", r#", "cacheDuration": "1m30s""#, Scope::Registry, 90),
        ("Global", r#", "cacheDuration": "0s""#, Scope::Global, 0),
        ("Global", r#", "cacheDuration": "-1h""#, Scope::Global, 0),
        ("Image", r#", "cacheDuration": null"#, Scope::Image, 600),
    ];
    let user = Credentials::Password { user: "u".into(), password: "hunter2".into() };
    for (scope, rest, wanted, seconds) in table {
        let entries = vec![("q.io".to_owned(), user.clone())];
        let wanted = Answer { scope: wanted, lasts: Duration::from_secs(seconds), entries };
        assert_eq!(parsed(&answer(scope, rest)), Ok(wanted), "{scope} {rest}");
    }
    let none = format!(
        r#"{{"apiVersion": "{V1}", "kind": "CredentialProviderResponse", "cacheKeyType": "Image", "auth": null}}"#
    );
    assert_eq!(parsed(&none).unwrap().entries, []);
}

#[test]
fn an_invalid_answer_is_reported_without_its_values() {
    let good = answer("Image", "");
    let table = [
        (
            good.replace("/v1\"", "/v1beta1\""),
            "it answered with apiVersion \"credentialprovider.kubelet.k8s.io/v1beta1\" instead of \"credentialprovider.kubelet.k8s.io/v1\"",
        ),
        (
            good.replace("Response", "Request"),
            "it answered with kind \"CredentialProviderRequest\" instead of CredentialProviderResponse",
        ),
        (good.replace("\"Image\"", "\"Pod\""), "its cacheKeyType \"Pod\" is none of Image, Registry, Global"),
        (answer("Image", r#", "cacheDuration": "hunter2""#), "its cacheDuration is not a duration such as 10m"),
        (good.replace("\"password\"", "\"secret\""), "its answer is invalid at 2:55"),
        ("hunter2".to_owned(), "its answer is invalid at 1:1"),
        (String::new(), "its answer is invalid at 1:0"),
    ];
    for (text, wanted) in table {
        assert_eq!(parsed(&text), Err(wanted.to_owned()), "{text}");
    }
}

fn subject(image: &str, registry: &str) -> Subject {
    Subject { image: image.to_owned(), registry: registry.to_owned(), account: String::new() }
}

#[test]
fn an_answer_is_cached_for_the_image_its_registry_or_all() {
    let now = Instant::now();
    let table = [("Image", true, false, false), ("Registry", true, true, false), ("Global", true, true, true)];
    for (scope, same, sibling, other) in table {
        let mut cache = Cache::default();
        cache.put(&parsed(&answer(scope, "")).unwrap(), &subject("q.io/a", "q.io"), now);
        let cached = |image: &str, registry: &str, after: u64| {
            cache.get(&subject(image, registry), now + Duration::from_secs(after)).is_some()
        };
        assert_eq!(
            (cached("q.io/a", "q.io", 600), cached("q.io/b", "q.io", 0), cached("r.io/a", "r.io", 0)),
            (same, sibling, other),
            "{scope}"
        );
        assert!(!cached("q.io/a", "q.io", 601), "{scope} after its time");
    }
    let mut cache = Cache::default();
    cache.put(&parsed(&answer("Global", r#", "cacheDuration": "0""#)).unwrap(), &subject("q.io/a", "q.io"), now);
    assert!(cache.get(&subject("q.io/a", "q.io"), now).is_none());
}

/// A program that runs `script` to print its answer, and counts its calls in the file `calls`.
fn program(dir: &Path, script: &str) -> PathBuf {
    let path = dir.join("provider");
    let text = format!("#!/bin/sh\ncat >{0}/request\necho \"$1 $WHO\" >>{0}/calls\n{script}\n", dir.display());
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

#[tokio::test]
async fn a_program_is_asked_once_while_its_answer_is_cached() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("answer"), answer("Registry", "")).unwrap();
    let path = program(dir.path(), &format!("cat {}/answer", dir.path().display()));
    let providers = CredentialProviders::new(vec![provider(&path, &["q.io"])]);
    for image in ["q.io/a:v1", "q.io/b", "r.io/a"] {
        let provided = providers.credentials(&name(image), None).await;
        assert_eq!((provided.entries.len(), provided.failures.len()), (usize::from(image != "r.io/a"), 0), "{image}");
    }
    let request: serde_json::Value = serde_json::from_slice(&fs::read(dir.path().join("request")).unwrap()).unwrap();
    let wanted = serde_json::json!({"kind": "CredentialProviderRequest", "apiVersion": V1, "image": "q.io/a"});
    assert_eq!(request, wanted);
    assert_eq!(fs::read_to_string(dir.path().join("calls")).unwrap(), "get me\n");
}

#[tokio::test]
async fn a_program_that_fails_takes_nothing_from_the_others() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let broken = program(dirs[0].path(), "echo no such role >&2; exit 3");
    fs::write(dirs[1].path().join("answer"), answer("Image", "")).unwrap();
    let sound = program(dirs[1].path(), &format!("cat {}/answer", dirs[1].path().display()));
    let missing = Path::new("/nonexistent/provider");
    let all = [broken.as_path(), &sound, missing].map(|path| provider(path, &["q.io"]));
    let provided = CredentialProviders::new(all.into()).credentials(&name("q.io/a"), None).await;
    assert_eq!(provided.entries.len(), 1);
    let wanted = [
        "credential provider test: it failed: no such role",
        "credential provider test: cannot be run: No such file or directory (os error 2)",
    ];
    assert_eq!(provided.failures, wanted);
}
