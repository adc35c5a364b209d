use super::*;

fn keyring(text: &str) -> Keyring {
    let mut keyring = Keyring::default();
    keyring.add(text.as_bytes(), "config.json");
    keyring
}

fn user<'a>(keyring: &'a Keyring, host: &str, repository: &str) -> Option<&'a str> {
    match &keyring.find(host, repository, 0)?.credentials {
        Credentials::Password { user, .. } => Some(user),
        Credentials::IdentityToken(token) => Some(token),
    }
}

#[test]
fn keys_are_matched_as_kubelet_does() {
    let entry = |name: &str| format!(r#"{{"username": "{name}", "password": "p"}}"#);
    let table: &[(&str, &str, &str, bool)] = &[
        ("quay.io", "quay.io", "a/b", true),
        ("quay.io", "quay.io:443", "a/b", false),
        ("https://quay.io/v2/", "quay.io", "a/b", true),
        ("http://127.0.0.1:5000", "127.0.0.1:5000", "x", true),
        ("quay.io/a", "quay.io", "a/b", true),
        ("quay.io/a", "quay.io", "b/a", false),
        ("*.example.com", "r.example.com", "x", true),
        ("*.example.com", "a.r.example.com", "x", false),
        ("*.*.example.com", "a.r.example.com", "x", true),
        ("reg*.example.com:5000", "reg1.example.com:5000", "x", true),
        ("reg?.example.com", "reg.example.com", "x", false),
        ("*.example.com", "example.com", "x", false),
        ("https://index.docker.io/v1/", "docker.io", "library/busybox", true),
        ("docker.io", "registry-1.docker.io", "library/busybox", true),
        ("index.docker.io", "quay.io", "library/busybox", false),
    ];
    for (key, host, repository, wanted) in table {
        let ring = keyring(&format!(r#"{{"auths": {{"{key}": {}}}}}"#, entry("me")));
        assert_eq!(user(&ring, host, repository).is_some(), *wanted, "{key} {host}/{repository}");
    }
}

#[test]
fn the_longest_key_wins() {
    let ring = keyring(
        r#"{"auths": {"q.io": {"username": "all"}, "q.io/team/app": {"username": "app"},
            "q.io/team": {"username": "team"}}}"#,
    );
    assert_eq!(user(&ring, "q.io", "team/app"), Some("app"));
    assert_eq!(user(&ring, "q.io", "team/other"), Some("team"));
    assert_eq!(user(&ring, "q.io", "x"), Some("all"));
}

#[test]
fn every_form_of_credentials_is_read() {
    let ring = keyring(
        r#"{"auths": {"a": {"auth": "bWU6cGE6c3M="}, "b": {"auth": "bWU6cGE6c3M"}, "c": {"identitytoken": "tok"},
            "d": {"auth": "%%%"}, "e": {}}, "credsStore": "desktop"}"#,
    );
    let password = Credentials::Password { user: "me".into(), password: "pa:ss".into() };
    let credentials = |host| ring.find(host, "x", 0).map(|credentials| &credentials.credentials);
    assert_eq!(credentials("a"), Some(&password));
    assert_eq!(credentials("b"), Some(&password));
    assert_eq!(credentials("c"), Some(&Credentials::IdentityToken("tok".into())));
    assert_eq!(credentials("d"), None);
    assert_eq!(ring.complaints.len(), 3, "{:?}", ring.complaints);
    assert!(!format!("{password:?}").contains("pa:ss"));
}

#[test]
fn members_are_read_as_by_go() {
    let entries = [
        r#"{"auth": "dTpw", "email": null}"#,
        r#"{"auth": "dTpw", "username": null, "password": null, "identitytoken": null}"#,
        r#"{"Auth": "dTpw", "email": 5, "auths": []}"#,
        r#"{"auth": null, "username": "u", "password": "p"}"#,
        r#"{"auth": "", "AUTH": "dT\npw\n"}"#,
    ];
    let wanted = Credentials::Password { user: "u".into(), password: "p".into() };
    for entry in entries {
        let files = [
            format!(r#"{{"auths": {{"q.io": {entry}, "other.io": null}}}}"#),
            format!(r#"{{"auths": null, "Auths": {{"q.io": {entry}}}, "credHelpers": null, "credsStore": null}}"#),
            format!(r#"{{"HttpHeaders": {{"a": 1}}, "credHelpers": {{}}, "auths": {{"q.io": {entry}}}}}"#),
        ];
        for file in files {
            let ring = keyring(&file);
            assert_eq!(ring.find("q.io", "x", 0).map(|entry| &entry.credentials), Some(&wanted), "{file}");
        }
        let secret = secret("dockercfg", ".dockercfg", &format!(r#"{{"q.io": {entry}, "other.io": null}}"#));
        let ring = Keyring::new(&[secret], &[], &[]);
        assert_eq!(ring.find("q.io", "x", 0).map(|credential| &credential.credentials), Some(&wanted), "{entry}");
    }
}

fn secret(kind: &str, key: &str, text: &str) -> Arc<ObjectRecord> {
    let value = serde_json::json!({"kind": "Secret", "metadata": {"name": "pull", "uid": "u"},
        "type": format!("kubernetes.io/{kind}"), "stringData": {key: text}});
    let decoded = limpet_model::object::decode(&value, limpet_model::object::ObjectKind::Secret, Arc::from("f.yaml"));
    Arc::new(decoded.0.unwrap())
}

#[test]
fn a_pods_own_credentials_come_before_the_nodes_and_those_before_the_providers() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("config.json");
    std::fs::write(&file, r#"{"auths": {"q.io/team/app": {"username": "node"}, "other.io": {"username": "node"}}}"#)
        .unwrap();
    let json = secret("dockerconfigjson", ".dockerconfigjson", r#"{"auths": {"q.io": {"username": "json"}}}"#);
    let cfg = secret("dockercfg", ".dockercfg", r#"{"q.io/team": {"username": "cfg"}}"#);
    let provided = ["q.io", "q.io/team", "last.io"].map(|pattern| {
        let credentials = Credentials::Password { user: format!("plugin of {pattern}"), password: String::new() };
        Candidate { pattern: pattern.to_owned(), credentials, source: PullCredential::Node }
    });
    let ring = Keyring::new(&[json, cfg], &[file], &provided);
    let name = |turn| match &ring.find("q.io", "team/app", turn).unwrap().credentials {
        Credentials::Password { user, .. } => user.as_str(),
        Credentials::IdentityToken(token) => token,
    };
    assert_eq!(
        ([name(0), name(1), name(2), name(3), name(9)], ring.count("q.io", "team/app")),
        (["cfg", "json", "node", "plugin of q.io/team", "plugin of q.io"], 5)
    );
    assert_eq!(user(&ring, "other.io", "x"), Some("node"));
    assert_eq!((ring.count("none.io", "x"), ring.find("none.io", "x", 0)), (0, None));
    assert_eq!(ring.complaints, Vec::<String>::new());
}

#[test]
fn a_secrets_credentials_are_known_by_the_secret_and_kubelets_hash() {
    let auths = r#"{"auths": {"q.io": {"auth": "dXNlcjpwYXNzd29yZA=="}}}"#;
    let ring = Keyring::new(&[secret("dockerconfigjson", ".dockerconfigjson", auths)], &[], &[]);
    let wanted = PullCredential::Secret(PullSecret {
        uid: "u".to_owned(),
        namespace: "default".to_owned(),
        name: "pull".to_owned(),
        // The value is from kubelet's secrets_test.go.
        hash: CredentialHash::from_text("a55436fc140d516560d072c5fe8700385ce9f41629abf65c1edcbcb39fac691d".to_owned()),
    });
    let sources: Vec<_> = ring.candidates("q.io", "x").map(|candidate| &candidate.source).collect();
    assert_eq!((sources, ring.candidates("r.io", "x").count()), (vec![&wanted], 0));
}

#[test]
fn an_invalid_pull_secret_is_reported_without_its_values() {
    let other = secret("ssh-auth", "ssh-privatekey", "hunter2");
    let broken = secret("dockercfg", ".dockercfg", r#"{"q.io": {"username": ["hunter2"]}}"#);
    let ring = Keyring::new(&[other, broken], &[], &[]);
    let wanted = [
        "Secret default/pull is not of a type for registry credentials",
        "Secret default/pull: not docker's format at 1:23",
    ];
    assert_eq!(ring.complaints, wanted);
}

#[test]
fn an_invalid_file_is_reported_without_its_content() {
    let ring = keyring(r#"{"auths": {"a": {"auth": 5, "password": "secret"}}"#);
    assert_eq!(ring.complaints.len(), 1);
    assert!(!ring.complaints[0].contains("secret"));
    let ring = Keyring::read(&["/nonexistent/config.json".into()]);
    assert!(ring.complaints.is_empty());
}
