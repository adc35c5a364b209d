//! The listeners on the network: keys, flags, and contradictions between them.

use super::*;

#[test]
fn an_impossible_server_is_an_error_and_one_that_admits_no_caller_a_warning() {
    let text = format!(
        "{KUBELET_HEAD}staticPodPath: /m\nport: 70000\naddress: everywhere\ntlsCertFile: /a.crt\ntlsMinVersion: VersionTLS14\n\
         authorization:\n  mode: RBAC\n---\n{LIMPET_HEAD}serverAllowedNames: ['group:']\n"
    );
    let expected = [
        "config.yaml:5:10: address: \"everywhere\" is not an IP address",
        "config.yaml:4:7: port: 70000 is not a port: 0 to 65535",
        "config.yaml:7:16: tlsMinVersion: \"VersionTLS14\" is neither VersionTLS12 nor VersionTLS13",
        "config.yaml:9:9: authorization.mode: \"RBAC\" is neither AlwaysAllow nor Webhook",
        "config.yaml:13:22: serverAllowedNames: a name is empty",
        "config.yaml:6:14: tlsCertFile: needs tlsPrivateKeyFile too",
    ];
    assert_eq!(load_text(&text, &[]).0.unwrap_err(), expected);
    let text = format!("{KUBELET_HEAD}staticPodPath: /m\nauthentication: {{x509: {{clientCAFile: /ca.crt}}}}\n");
    let expected = "config.yaml: authorization.mode: is Webhook, and without --kubeconfig there is no apiserver that could \
                    decide: kubelet's API refuses every caller; list names in serverAllowedNames, or set AlwaysAllow";
    assert_eq!(load_text(&text, &[]).1, [expected]);
    let text =
        format!("{KUBELET_HEAD}staticPodPath: /m\nauthentication: {{webhook: {{enabled: true, cacheTTL: soon}}}}\n");
    let expected = "config.yaml:4:53: authentication.webhook.cacheTTL: \"soon\" is not a duration such as 2m";
    assert_eq!(load_text(&text, &[]).0.unwrap_err(), [expected]);
    let expected =
        "config.yaml: authentication.webhook: has no effect without --kubeconfig: no bearer token is accepted";
    assert_eq!(load_text(&text.replace("soon", "0s"), &[]).1, [expected]);
    let text = format!("{KUBELET_HEAD}staticPodPath: /m\nserverTLSBootstrap: true\n");
    let expected =
        "config.yaml: serverTLSBootstrap: needs --kubeconfig: it is the apiserver that issues the certificate";
    assert_eq!(load_text(&text, &[]).0.unwrap_err(), [expected]);
}

#[test]
fn flags_of_the_server_win_over_the_file() {
    let text = format!(
        "{KUBELET_HEAD}staticPodPath: /m\nport: 1\nreadOnlyPort: 2\ntlsCertFile: /a.crt\ntlsMinVersion: VersionTLS13\n\
         authentication: {{anonymous: {{enabled: true}}}}\nauthorization: {{mode: AlwaysAllow}}\n"
    );
    let flags = [
        "--port=10350",
        "--address=::1",
        "--healthz-port=0",
        "--healthz-bind-address=10.0.0.1",
        "--anonymous-auth=false",
        "--client-ca-file=/ca.crt",
        "--authentication-token-webhook=false",
        "--authentication-token-webhook-cache-ttl=1m",
        "--authorization-mode=Webhook",
        "--authorization-webhook-cache-authorized-ttl=2m",
        "--authorization-webhook-cache-unauthorized-ttl=0s",
        "--tls-private-key-file=/a.key",
        "--tls-min-version=VersionTLS12",
        "--tls-cipher-suites=TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
        "--cert-dir=/pki",
        "--enable-server",
        "--enable-debugging-handlers=false",
        "--streaming-connection-idle-timeout=0",
    ];
    let server = load_text(&text, &flags).0.unwrap().server;
    let expected = ServerSettings {
        address: "::1".parse().unwrap(),
        port: 10_350,
        read_only_port: 2,
        healthz_address: "10.0.0.1".parse().unwrap(),
        healthz_port: 0,
        certificate: Some(("/a.crt".into(), "/a.key".into())),
        certificate_dir: Some("/pki".into()),
        cipher_suites: vec![rustls::CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256],
        client_ca: Some("/ca.crt".into()),
        tokens: false,
        token_lifetime: std::time::Duration::from_secs(60),
        allowed_lifetime: std::time::Duration::from_secs(120),
        stream_idle_timeout: None,
        debug: DebugHandlers { enabled: false, ..ServerSettings::default().debug },
        ..ServerSettings::default()
    };
    assert_eq!(server, expected);
    let wrong =
        ["--authorization-mode=RBAC", "--tls-min-version=1", "--tls-cipher-suites=TLS_RSA_WITH_AES_128_CBC_SHA"];
    let expected = [
        "flags: --authorization-mode: \"RBAC\" is neither AlwaysAllow nor Webhook",
        "flags: --tls-min-version: \"1\" is neither VersionTLS12 nor VersionTLS13",
        "flags: --tls-cipher-suites: none of TLS_RSA_WITH_AES_128_CBC_SHA is supported; name an ECDHE suite with GCM or CHACHA20",
    ];
    assert_eq!(load_text(&text.replace("tlsCertFile: /a.crt\n", ""), &wrong).0.unwrap_err(), expected);
}

#[test]
fn an_idle_timeout_of_zero_is_the_default_in_the_file_and_none_as_a_flag() {
    let timeout = |line: &str, flags: &[&str]| {
        let (config, ..) = load_text(&format!("{KUBELET_HEAD}staticPodPath: /m\n{line}"), flags);
        config.map(|config| config.server.stream_idle_timeout)
    };
    let (key, flag) = ("streamingConnectionIdleTimeout: ", "--streaming-connection-idle-timeout");
    let seconds = |seconds| Ok(Some(std::time::Duration::from_secs(seconds)));
    assert_eq!(timeout(&format!("{key}0s\n"), &[]), seconds(14_400));
    assert_eq!(timeout(&format!("{key}5m\n"), &[]), seconds(300));
    assert_eq!(timeout(&format!("{key}5m\n"), &[&format!("{flag}=1m")]), seconds(60));
    assert_eq!(timeout(&format!("{key}5m\n"), &[&format!("{flag}=0")]), Ok(None));
    let expected = "config.yaml:4:33: streamingConnectionIdleTimeout: \"soon\" is not a duration such as 4h";
    assert_eq!(timeout(&format!("{key}soon\n"), &[]), Err(vec![expected.to_owned()]));
}
