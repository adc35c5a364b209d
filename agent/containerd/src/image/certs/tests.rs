//! Directories of `certs.d` as users write them.

use super::*;

#[test]
fn the_registrys_credentials_are_for_its_name_and_its_server() {
    let server = |text: &str| -> Vec<bool> {
        parse(text, Path::new("/"), "r.test:5000").unwrap().iter().map(|endpoint| endpoint.server).collect()
    };
    assert_eq!(server("[host.\"http://r.test:5000\"]\n[host.\"https://mirror\"]"), [true, false, true]);
    assert_eq!(server("server = \"https://s\"\n[host.\"https://s\"]\n[host.\"http://s\"]"), [true, false, true]);
}

fn bases(endpoints: &[Endpoint]) -> Vec<&str> {
    endpoints.iter().map(|endpoint| endpoint.base.as_str()).collect()
}

#[test]
fn without_a_file_containerds_defaults_apply() {
    let table = [
        ("docker.io", "https://registry-1.docker.io/v2", false),
        ("quay.io", "https://quay.io/v2", false),
        ("quay.io:8443", "https://quay.io:8443/v2", false),
        ("localhost:5000", "http://localhost:5000/v2", true),
        ("127.0.0.1:5000", "http://127.0.0.1:5000/v2", true),
        ("127.9.9.9:80", "http://127.9.9.9:80/v2", false),
        ("[::1]:5000", "http://[::1]:5000/v2", true),
        ("localhost", "https://localhost/v2", true),
        ("localhost:443", "https://localhost:443/v2", true),
        ("10.0.0.1:5000", "https://10.0.0.1:5000/v2", false),
    ];
    for (host, base, skip_verify) in table {
        let defaults = endpoints(Path::new("/nonexistent"), host).unwrap();
        assert_eq!(bases(&defaults), [base]);
        assert_eq!(defaults[0].skip_verify, skip_verify, "{host}");
        // TLS is the alternative only on a loopback port without a fixed meaning.
        let other = base.starts_with("http:").then(|| base.replace("http:", "https:"));
        assert_eq!(defaults[0].other_base, other.filter(|_| skip_verify), "{host}");
        assert!(!defaults[0].mirror && defaults[0].pull && defaults[0].resolve);
    }
}

#[test]
fn hosts_are_tried_in_the_order_of_the_file_and_the_server_last() {
    let text = r#"
        server = "https://upstream.example"
        [host."http://z-mirror:5000"]
          capabilities = ["pull"]
        [host."https://a-mirror/v2"]
          skip_verify = true
          ca = "ca.pem"
          client = [["/c.pem", "k.pem"], ["both.pem", ""]]
          [host."https://a-mirror/v2".header]
            X-Meta = ["one", "two"]
            X-One = "1"
        [host."https://cache.example/proxy/hub"]
          override_path = true
    "#;
    let parsed = parse(text, Path::new("/certs"), "docker.io").unwrap();
    assert_eq!(
        bases(&parsed),
        [
            "http://z-mirror:5000/v2",
            "https://a-mirror/v2",
            "https://cache.example/proxy/hub",
            "https://upstream.example/v2"
        ]
    );
    assert!(!parsed[0].resolve && parsed[0].pull && parsed[0].mirror);
    assert!(parsed[1].skip_verify && parsed[1].resolve);
    assert_eq!(parsed[1].ca, [PathBuf::from("/certs/ca.pem")]);
    let pairs = [("/c.pem".into(), Some("/certs/k.pem".into())), ("/certs/both.pem".into(), None)];
    assert_eq!(parsed[1].client, pairs);
    let headers = [("X-Meta", "one"), ("X-Meta", "two"), ("X-One", "1")];
    assert_eq!(parsed[1].headers, headers.map(|(name, value)| (name.to_owned(), value.to_owned())));
}

#[test]
fn without_a_server_the_registry_itself_is_last() {
    let parsed = parse("[host.\"http://mirror\"]\n", Path::new("/"), "docker.io").unwrap();
    assert_eq!(bases(&parsed), ["http://mirror/v2", "https://registry-1.docker.io/v2"]);
    assert!(parsed[0].mirror && !parsed[1].mirror);
    let parsed = parse("server = \"http://10.0.0.1:5000\"\n", Path::new("/"), "10.0.0.1:5000").unwrap();
    assert_eq!(bases(&parsed), ["http://10.0.0.1:5000/v2"]);
    assert!(!parsed[0].mirror);
    let parsed = parse("skip_verify = true\n", Path::new("/"), "quay.io").unwrap();
    assert!(parsed[0].skip_verify);
}

#[test]
fn an_invalid_file_is_an_error() {
    for text in [
        "server = ",
        "server = \"ftp://x\"",
        "[host.\"http://m\"]\nca = 3",
        "[host.\"http://m\".header]\nx = 3",
        "[host.\"http://m\"]\nclient = [[\"a\", \"b\", \"c\"]]",
    ] {
        assert!(parse(text, Path::new("/"), "docker.io").is_err(), "{text}");
    }
}

#[test]
fn capabilities_are_read_as_by_containerd() {
    let table = [
        ("", true, true),
        ("capabilities = []", true, true),
        ("capabilities = [\"Pull\", \"RESOLVE\"]", true, true),
        ("capabilities = [\"push\"]", false, false),
        ("capabilities = [\"pull\", \"referrers\"]", true, false),
    ];
    for (capabilities, pull, resolve) in table {
        let text = format!("[host.\"http://m\"]\n{capabilities}\n");
        let parsed = parse(&text, Path::new("/"), "docker.io").unwrap();
        assert_eq!((parsed[0].pull, parsed[0].resolve), (pull, resolve), "{capabilities}");
    }
}

#[test]
fn an_http_url_with_settings_for_tls_is_tried_with_tls_first() {
    let table = [
        ("http://m:5000", "skip_verify = true", "https://m:5000/v2", Some("http://m:5000/v2")),
        ("http://m:5000", "ca = \"a.pem\"", "https://m:5000/v2", Some("http://m:5000/v2")),
        ("http://m:5000", "", "http://m:5000/v2", None),
        ("http://m:80", "ca = \"a.pem\"", "http://m/v2", None),
        ("http://m", "ca = \"a.pem\"", "http://m/v2", None),
        ("https://m:5000", "ca = \"a.pem\"", "https://m:5000/v2", None),
    ];
    for (url, setting, base, other) in table {
        let text = format!("server = \"http://m:5000\"\n[host.\"{url}\"]\n{setting}\n");
        let parsed = parse(&text, Path::new("/"), "docker.io").unwrap();
        assert_eq!((parsed[0].base.as_str(), parsed[0].other_base.as_deref()), (base, other), "{url} {setting}");
        assert_eq!(parsed[0].server, url == "http://m:5000", "{url} {setting}");
    }
}

#[test]
fn certificate_files_count_where_there_is_no_hosts_toml() {
    let dir = tempfile::tempdir().unwrap();
    let of_host = dir.path().join("r.test:5000");
    let fallback = dir.path().join("_default");
    std::fs::create_dir(&fallback).unwrap();
    std::fs::write(fallback.join("hosts.toml"), "server = \"http://fallback\"").unwrap();
    let resolved = || endpoints(dir.path(), "r.test:5000").unwrap();
    assert_eq!(bases(&resolved()), ["http://fallback/v2"]);
    // As in containerd, an existing directory is enough.
    std::fs::create_dir(&of_host).unwrap();
    assert_eq!(resolved(), [Endpoint::default_for("r.test:5000")]);
    for name in ["ca.crt", "b.crt", "me.cert", "me.key", "alone.cert", "notes.txt"] {
        std::fs::write(of_host.join(name), "").unwrap();
    }
    let in_dir = |name: &str| of_host.join(name);
    let wanted = Endpoint {
        ca: vec![in_dir("b.crt"), in_dir("ca.crt")],
        client: vec![(in_dir("alone.cert"), None), (in_dir("me.cert"), Some(in_dir("me.key")))],
        ..Endpoint::default_for("r.test:5000")
    };
    assert_eq!(resolved(), std::slice::from_ref(&wanted));
    std::fs::write(in_dir("hosts.toml"), "").unwrap();
    assert_eq!(resolved(), [wanted]);
    std::fs::write(in_dir("hosts.toml"), "server = \"http://s\"").unwrap();
    assert_eq!(bases(&resolved()), ["http://s/v2"]);
}

#[test]
fn the_directory_of_the_host_is_found() {
    let dir = std::env::temp_dir().join(format!("limpet-certs-{}", std::process::id()));
    let put = |name: &str, server: &str| {
        std::fs::create_dir_all(dir.join(name)).unwrap();
        std::fs::write(dir.join(name).join("hosts.toml"), format!("server = \"http://{server}\"")).unwrap();
    };
    put("_default", "fallback");
    assert_eq!(bases(&endpoints(&dir, "quay.io:80").unwrap()), ["http://fallback/v2"]);
    put("quay.io:80", "colon");
    assert_eq!(bases(&endpoints(&dir, "quay.io:80").unwrap()), ["http://colon/v2"]);
    put("quay.io_80_", "underscore");
    assert_eq!(bases(&endpoints(&dir, "quay.io:80").unwrap()), ["http://underscore/v2"]);
    std::fs::remove_dir_all(&dir).unwrap();
}
