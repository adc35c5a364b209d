//! The command line as kubelet's flag parser reads it.

use std::ffi::OsString;

use clap::{Arg, CommandFactory, Subcommand};

use super::*;
use crate::config::KubeletFlags;

#[derive(Debug, Parser)]
struct Limpet {
    #[command(subcommand)]
    command: Run,
}

#[derive(Debug, Subcommand)]
enum Run {
    Run(RunFlags),
}

/// The flags of `limpet run`, as the executable reads them.
fn parsed(arguments: &[&str]) -> Result<RunFlags, clap::Error> {
    let line = ["limpet", "run"].iter().chain(arguments).map(OsString::from);
    let (left, kubelet) = KubeletFlags::take(line);
    Limpet::try_parse_from(left).map(|Limpet { command: Run::Run(flags) }| RunFlags { kubelet, ..flags })
}

pub(super) fn loaded(arguments: &[&str]) -> Result<Config, Vec<String>> {
    match load(&parsed(arguments).unwrap_or_else(|error| panic!("{arguments:?}: {error}"))) {
        Ok((config, _)) => Ok(config),
        Err(ConfigError::Faults(faults)) => Err(faults.iter().map(ToString::to_string).collect()),
        Err(error) => panic!("{error}"),
    }
}

/// A value that the flag accepts.
fn example(flag: &Arg) -> &'static str {
    match flag.get_value_names().and_then(|names| names.first()).map(|name| name.as_str()) {
        Some("BOOL") => "true",
        Some("DURATION") => "30s",
        Some("PORT" | "LEVEL") => "7",
        Some("IP") => "192.0.2.1",
        _ => "a=1",
    }
}

#[test]
fn every_flag_may_be_repeated_and_written_with_underscores() {
    let command = Limpet::command();
    let run = command.find_subcommand("run").unwrap();
    let names: Vec<(&str, &'static str)> =
        run.get_arguments().filter_map(|flag| Some((flag.get_long()?, example(flag)))).collect();
    assert!(names.len() > 40, "{names:?}");
    for (name, value) in names.into_iter().filter(|(name, _)| *name != "help") {
        let flag = format!("--{name}={value}");
        let with_underscores = format!("--{}={value}", name.replace('-', "_"));
        let twice = parsed(&[&flag, &with_underscores]).unwrap_or_else(|error| panic!("{flag} twice: {error}"));
        assert_ne!(twice, RunFlags::default(), "{flag} was not read");
    }
}

#[test]
fn every_switch_is_read_as_by_go() {
    let command = Limpet::command();
    let run = command.find_subcommand("run").unwrap();
    let switches = run.get_arguments().filter(|flag| example(flag) == "true").filter_map(Arg::get_long);
    let mut count = 0;
    for name in switches {
        count += 1;
        for (text, on) in [("1", true), ("T", true), ("TRUE", true), ("True", true), ("f", false), ("False", false)] {
            let flags = parsed(&[&format!("--{name}={text}")]).unwrap_or_else(|error| panic!("{name} {text}: {error}"));
            assert_eq!(flags.values()[name], on, "--{name}={text}");
        }
        for text in ["", "yes", "tRUE"] {
            assert!(parsed(&[&format!("--{name}={text}")]).is_err(), "--{name}={text}");
        }
    }
    assert_eq!(count, 7);
}

#[test]
fn of_a_repeated_flag_the_last_value_counts_and_lists_grow() {
    let config = loaded(&[
        "--v=2",
        "-v",
        "4",
        "--node-ip=192.0.2.1",
        "--node-ip=192.0.2.2",
        "--port=1",
        "--port=0x2802",
        "--node_labels=a=1,b=2",
        "--node-labels= b = 3 ,c=",
        "--system-reserved=cpu=1",
        "--system-reserved=memory=1Gi",
        "--max-pods=5",
        "--max_pods=0x10",
        "--register-with-taints=a:NoSchedule",
        "--register-with-taints=b:NoSchedule,c:NoExecute",
    ])
    .unwrap();
    let labels: Vec<_> = config.cluster.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    assert_eq!((config.verbosity, config.server.port, config.node.max_pods), (4, 10242, 16));
    assert_eq!(
        (config.node.ip, labels.join(" ")),
        (["192.0.2.2".parse().unwrap()].into_iter().collect(), "a=1 b=3 c=".into())
    );
    let taints: Vec<_> = config.cluster.taints.iter().map(|taint| taint.key.as_str()).collect();
    assert_eq!(taints, ["b", "c"]);
    assert_eq!(config.node.reserved.system.resources, amounts("1", "1Gi", "0"));
    assert_eq!(["--v=99", "--v=-3"].map(|flag| loaded(&[flag]).unwrap().verbosity), [10, 0]);
}

#[test]
fn an_empty_value_is_none_and_overrides_the_file() {
    let empty: Vec<String> = [
        "config-dir",
        "hostname-override",
        "pod-manifest-path",
        "manifest-url",
        "manifest-url-header",
        "kubeconfig",
        "bootstrap-kubeconfig",
        "node-ip",
        "provider-id",
        "cloud-provider",
        "node-labels",
        "register-with-taints",
        "kube-reserved",
        "system-reserved",
        "image-credential-provider-config",
        "image-credential-provider-bin-dir",
        "address",
        "healthz-bind-address",
        "client-ca-file",
        "tls-cert-file",
        "tls-private-key-file",
        "cert-dir",
        "tls-min-version",
        "tls-cipher-suites",
        "cluster-dns",
        "resolv-conf",
    ]
    .iter()
    .map(|name| format!("--{name}="))
    .collect();
    let empty: Vec<&str> = empty.iter().map(String::as_str).collect();
    let nothing =
        Config { volumes: VolumeSettings { resolv_conf: None, ..VolumeSettings::default() }, ..Config::default() };
    assert_eq!(loaded(&[&["--config="], &*empty].concat()).unwrap(), nothing);

    let file = tempfile::NamedTempFile::new().unwrap();
    let text = format!(
        "{KUBELET_HEAD}staticPodPath: /m\nstaticPodURL: http://x/\nproviderID: x\nclusterDNS: [192.0.2.3]\n\
         kubeReserved: {{cpu: '1'}}\nsystemReserved: {{cpu: '1'}}\nregisterWithTaints: [{{key: a, effect: NoExecute}}]\n\
         tlsCertFile: /c\ntlsPrivateKeyFile: /k\ntlsMinVersion: VersionTLS13\n\
         tlsCipherSuites: [TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256]\n\
         authentication: {{x509: {{clientCAFile: /ca}}}}\n---\n{LIMPET_HEAD}nodeIP: 192.0.2.9\n"
    );
    std::fs::write(file.path(), text).unwrap();
    let file_flag = format!("--config={}", file.path().display());
    let config = loaded(&[&[&*file_flag], &*empty].concat()).unwrap();
    assert_eq!(Config { files: ConfigFiles::default(), ..config }, nothing);

    for (flag, message) in [
        ("--root-dir=", "flags: --root-dir: is empty; name a directory, or omit the flag"),
        ("--authorization-mode=", "flags: --authorization-mode: is empty; use AlwaysAllow or Webhook"),
        ("--address=x", "flags: --address: \"x\" is not an IP address"),
        ("--http-check-frequency=", "flags: --http-check-frequency: \"\" is not a duration such as 20s or 1m30s"),
        ("--max-pods=", "flags: --max-pods: expected a whole number, found text"),
    ] {
        assert_eq!(loaded(&[flag]).unwrap_err(), [message]);
    }
    for flag in ["--v=", "--port=", "--port=70000", "--streaming-connection-idle-timeout="] {
        assert!(parsed(&[flag]).is_err(), "{flag}");
    }
}
