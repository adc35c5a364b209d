//! Kubeconfigs, each with its result or error.

use super::*;

const WHOLE: &str = "apiVersion: v1\nkind: Config\ncurrent-context: edge\n\
    contexts: [{name: edge, context: {cluster: lab, user: node}}]\n\
    clusters: [{name: lab, cluster: {server: https://192.0.2.1:6443}}]\n\
    users: [{name: node, user: {token: secret-token}}]\n";

fn outcome(text: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kubeconfig");
    std::fs::write(&path, text).unwrap();
    match check(&path) {
        Ok(server) => server,
        Err(error) => error.to_string().replace(&format!("{}/", dir.path().display()), ""),
    }
}

#[test]
fn faults_are_reported_with_file_field_and_remedy() {
    let table = [
        ("edge\n", "edge\n", "https://192.0.2.1:6443"),
        (
            "current-context: edge\n",
            "",
            "kubeconfig: current-context: is not set; name one of the contexts of the file",
        ),
        (
            "current-context: edge",
            "current-context: far",
            "kubeconfig: current-context: \"far\" is not a context of the file: edge",
        ),
        (
            "cluster: lab",
            "cluster: none",
            "kubeconfig: contexts[edge].context.cluster: \"none\" is not a cluster of the file",
        ),
        (
            "https://192.0.2.1:6443",
            "''",
            "kubeconfig: cluster.server: is not set; it is a URL such as https://10.0.0.1:6443",
        ),
        (
            "https://192.0.2.1:6443",
            "192.0.2.1:6443/x",
            "kubeconfig: cluster.server: \"192.0.2.1:6443/x\" is not a URL such as https://10.0.0.1:6443",
        ),
        (
            "https://192.0.2.1:6443",
            "ftp://192.0.2.1",
            "kubeconfig: cluster.server: \"ftp://192.0.2.1\" is not a URL such as https://10.0.0.1:6443",
        ),
        (
            "6443}",
            "6443, certificate-authority-data: YQ==}",
            "kubeconfig: cluster.certificate-authority-data: contains no certificate in PEM that can be used",
        ),
        (
            "6443}",
            "6443, proxy-url: ftp://p}",
            "kubeconfig: cluster.proxy-url: has the scheme \"ftp\"; use http, https or socks5",
        ),
        (
            "6443}",
            "6443, certificate-authority: ca.crt}",
            "kubeconfig: cluster.certificate-authority: cannot read ca.crt: No such file or directory (os error 2)",
        ),
        (
            "token: secret-token",
            "tokenFile: token",
            "kubeconfig: users[node].user.tokenFile: cannot read token: No such file or directory (os error 2)",
        ),
        (
            "token: secret-token",
            "client-certificate-data: YQ==",
            "kubeconfig: users[node].user.client-key: is not set; the certificate needs its key",
        ),
        (
            "token: secret-token",
            "client-key-data: YQ==",
            "kubeconfig: users[node].user.client-certificate: is not set; the key needs its certificate",
        ),
    ];
    for (from, to, expected) in table {
        assert_eq!(outcome(&WHOLE.replace(from, to)), expected, "{to}");
    }
}

/// A certificate's base64 in two lines, and the PEM.
fn wrapped() -> (String, String) {
    let certificate = rcgen::generate_simple_self_signed(["lab".to_owned()]).unwrap().cert;
    let data = BASE64_STANDARD.encode(certificate.pem());
    let (first, second) = data.split_at(64);
    (first.to_owned(), second.to_owned())
}

#[test]
fn kubeconfigs_are_read_as_client_go_reads_them() {
    let (first, second) = wrapped();
    let authority = format!("6443, certificate-authority-data: \"{first}\\n{second}\\n\"}}");
    let data =
        "client-certificate-data: '', client-key-data: '', client-certificate: '', client-key: '', tokenFile: ''";
    let server = "https://192.0.2.1:6443";
    let table = [
        // The user does not exist, so nobody is logged in.
        ("user: node", "user: none", server),
        (", user: node", "", server),
        ("user: {token: secret-token}", "user: null", server),
        ("6443}", authority.as_str(), server),
        ("token: secret-token", data, server),
        ("token: secret-token", "token: \"a\\nb\"", server),
        ("6443}", "6443, proxy-url: 'socks5://p'}", server),
        ("6443}", "6443, proxy-url: '', certificate-authority: '', tls-server-name: ''}", server),
        (server, "192.0.2.1:6443", "http://192.0.2.1:6443"),
        (server, "api.lab:6443", "http://api.lab:6443"),
        (server, "api.lab", "http://api.lab"),
        ("https://192.0.2.1:6443", "192.0.2.1:6443, insecure-skip-tls-verify: true", server),
        (server, "https://192.0.2.1:6443/clusters/a", "https://192.0.2.1:6443/clusters/a"),
    ];
    for (from, to, expected) in table {
        assert_eq!(outcome(&WHOLE.replace(from, to)), expected, "{to}");
    }
    let long = WHOLE.replace(server, &format!("{server}/{}", "x".repeat(MAX_SERVER)));
    assert!(outcome(&long).starts_with("kubeconfig: cluster.server: has more than 4096 characters"));
}

#[test]
fn base64_is_one_text_however_it_is_wrapped() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kubeconfig");
    let (first, second) = wrapped();
    let data = format!("\"{first}\\n{second}\"");
    let user = format!("client-certificate-data: {data}, client-key-data: {data}");
    std::fs::write(&path, WHOLE.replace("token: secret-token", &user)).unwrap();
    let embedded = certificate(&path).unwrap().unwrap();
    assert!(embedded.is_embedded && embedded.pem.starts_with(b"-----BEGIN CERTIFICATE-----\n"), "{embedded:?}");
}

#[test]
fn a_kubeconfig_in_utf_16_is_read_and_one_that_is_cut_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kubeconfig");
    let read = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        check(&path).map_err(|error| error.to_string())
    };
    let units = |swap: bool| {
        let units = "\u{feff}".encode_utf16().chain(WHOLE.encode_utf16());
        units.flat_map(|unit| if swap { unit.to_be_bytes() } else { unit.to_le_bytes() }).collect::<Vec<_>>()
    };
    for swap in [false, true] {
        let mut bytes = units(swap);
        assert_eq!(read(&bytes).unwrap(), "https://192.0.2.1:6443");
        bytes.push(b'\n');
        assert!(read(&bytes).unwrap_err().ends_with("is not a kubeconfig: it is no text"), "{swap}");
    }
    assert_eq!(read(format!("\u{feff}{WHOLE}").as_bytes()).unwrap(), "https://192.0.2.1:6443");
}

#[test]
fn what_is_no_kubeconfig_is_named_without_its_content() {
    assert_eq!(outcome(WHOLE), "https://192.0.2.1:6443");
    let output = outcome("current-context: [secret-token\n");
    assert!(output.starts_with("kubeconfig: is not a kubeconfig: ") && !output.contains("secret-token"), "{output}");
    let missing = check(Path::new("/nowhere/kubeconfig")).unwrap_err().to_string();
    assert!(missing.starts_with("/nowhere/kubeconfig: there is no such file; "), "{missing}");
}
