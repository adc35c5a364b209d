#![allow(clippy::unwrap_used, clippy::expect_used)]

use clap::Parser;

use reqwest::header::HeaderMap;

use super::*;
use crate::config::ConfigFiles;
use crate::executor::settings::{PullSettings, RestartSettings};
use limpet_bpf::{GuardMode, GuardSettings};
use limpet_bundle::settings::BundleSettings;
use limpet_cluster::settings::ClusterSettings;
use limpet_containerd::container::runtime::{RUNC_SHIM, RuntimeClass};
use limpet_containerd::settings::{ContainerSettings, ImageSettings, LogSettings, RuntimeSettings, Shim};
use limpet_containerd::spec::ShimGroup;
use limpet_core::cpu_allocation::CpuPolicyOptions;
use limpet_core::fixtures::amounts;
use limpet_core::image_access::{Allowlist, VerificationPolicy};
use limpet_core::image_gc::ImageGcPolicy;
use limpet_core::node_object::Frequencies;
use limpet_core::node_shutdown::ShutdownPolicy;
use limpet_core::pull_rate::PullRate;
use limpet_cpus::CpuPolicySettings;
use limpet_host::cgroup::{CgroupDriver, CgroupSettings};
use limpet_host::network::CniSettings;
use limpet_host::volume::{ClusterDns, VolumeSettings};
use limpet_log::LogRotation;
use limpet_model::attribution::ManifestWatch;
use limpet_model::node::{Device, NodeAddresses};
use limpet_model::pod::PodKey;
use limpet_model::pod::compute_resources::CpuQuotas;
use limpet_model::pod::field_validation::{FieldValidation, FieldValidations};
use limpet_model::pod::memory_qos::MemoryQos;
use limpet_model::pod::security::{SecurityLevel, SecurityLevels};
use limpet_model::pod::swap::SwapBehavior;
use limpet_model::source::SourceKind;
use limpet_node::settings::{KernelSettings, NodeSettings, Reservation, Reserved, ReservedCgroup};
use limpet_plugins::settings::{PluginDirectory, PluginSettings};
use limpet_server::settings::{AuthorizationMode, CriSocket, DebugHandlers, LocalSettings, ServerSettings};
use limpet_sources::http::{Address, HttpSettings};
use limpet_sources::settings::SourceSettings;
use limpet_worker::settings::WorkerSettings;

mod credential_providers;
mod flags;
mod images;
mod kernel;
mod kubeadm;
mod layers;
mod limpet;
mod memory_qos;
mod places;
mod processors;
mod server;

#[derive(Debug, Parser)]
struct Command {
    #[command(flatten)]
    flags: RunFlags,
}

fn flags(arguments: &[&str]) -> RunFlags {
    Command::try_parse_from(std::iter::once(&"limpet").chain(arguments)).unwrap().flags
}

/// Loads `text` as `/…/config.yaml`; the directory is removed from messages.
pub(super) fn load_text(text: &str, more: &[&str]) -> (Result<Config, Vec<String>>, Vec<String>, PathBuf) {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("config.yaml");
    std::fs::write(&path, text).unwrap();
    let messages = |faults: Vec<Fault>| -> Vec<String> {
        let prefix = format!("{}/", root.path().display());
        faults.iter().map(|fault| fault.to_string().replace(&prefix, "")).collect()
    };
    let config = flags(&[&["--config", path.to_str().unwrap()], more].concat());
    let directory = root.path().to_owned();
    match load(&config) {
        Ok((config, warnings)) => (Ok(config), messages(warnings), directory),
        Err(ConfigError::Faults(faults)) => (Err(messages(faults)), Vec::new(), directory),
        Err(error) => panic!("{error}"),
    }
}

pub(super) const KUBELET_HEAD: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
const LIMPET_HEAD: &str = "apiVersion: limpet.dev/v1beta1\nkind: LimpetConfiguration\n";

#[test]
fn without_flags_everything_is_the_default_and_one_warning_names_the_missing_key() {
    let (config, warnings) = load(&flags(&[])).unwrap();
    assert_eq!(config, Config::default());
    assert_eq!(warnings.len(), 1);
    assert_eq!(warnings[0].path, "staticPodPath");
}

#[test]
fn every_supported_key_has_an_effect() {
    let text = include_str!("tests/supported.yaml");
    for key in KUBELET.iter().chain(LIMPET).filter(|key| key.support == Support::Acts) {
        assert!(text.contains(&format!("\n{}:", key.name)) || text.starts_with(key.name), "{} is not tried", key.name);
    }
    let (config, warnings, directory) = load_text(text, &[]);
    let mut allowlist = Allowlist::default();
    ["q.io/base", "r.io/*"].iter().for_each(|pattern| allowlist.add(pattern).unwrap());
    let expected = Config {
        root_dir: "/r".into(),
        run_dir: "/x".into(),
        verbosity: 2,
        secret_key: Some(limpet_store::KeyLocation::Credential("limpet".to_owned())),
        files: ConfigFiles { main: Some(directory.join("config.yaml")), ..ConfigFiles::default() },
        node: NodeSettings {
            hostname_override: None,
            ip: NodeAddresses::single("192.168.1.5".parse().unwrap()),
            max_pods: 20,
            pods_per_core: Some(4),
            reserved: Reserved {
                kube: Reservation { resources: amounts("200m", "0", "0"), pids: 0 },
                system: Reservation { resources: amounts("0", "1Mi", "0"), pids: 100 },
                kube_cgroup: Some(ReservedCgroup { group: "/runtime.slice".into(), compressible_only: true }),
                system_cgroup: Some(ReservedCgroup { group: "/system.slice".into(), compressible_only: false }),
            },
            limit_all_pods: false,
            kernel: KernelSettings { fail_swap_on: true, protect_defaults: Some(true) },
            ignore_other_agents: true,
        },
        sources: SourceSettings {
            manifest_path: Some(directory.join("manifests")),
            manifest_url: Some(HttpSettings {
                address: Address::parse("https://fleet.example/pods").unwrap(),
                headers: [("x-node", "a"), ("x-node", "b")].into_iter().fold(
                    HeaderMap::new(),
                    |mut all, (name, value)| {
                        all.append(name, value.parse().unwrap());
                        all
                    },
                ),
                frequency: std::time::Duration::from_secs(90),
                ca_file: Some("/ca.pem".into()),
                client_files: Some(("/cert.pem".into(), "/key.pem".into())),
            }),
            bundle_url: Some(HttpSettings {
                address: Address::parse("https://fleet.example/plant.limpet").unwrap(),
                headers: HeaderMap::new(),
                frequency: std::time::Duration::from_secs(60),
                ca_file: Some("/ca.pem".into()),
                client_files: None,
            }),
            watch: ManifestWatch::Inotify,
            pod_security: SecurityLevels::PRIVILEGED
                .with(SourceKind::File, SecurityLevel::Baseline)
                .with(SourceKind::Http, SecurityLevel::Restricted),
            field_validation: FieldValidations::STRICT.with(SourceKind::File, FieldValidation::Warn),
        },
        bundle: Some(BundleSettings {
            keys: vec!["/bundle.pub".into()],
            directory: Some("/media/stick".into()),
            image: Some("registry.example/plant/bundle:stable".to_owned()),
            interval: std::time::Duration::from_secs(60),
            max_size: 1 << 30,
        }),
        workers: WorkerSettings { probe_timer_slack: 5, allowed_unsafe_sysctls: vec!["net.*".to_owned()] },
        containers: ContainerSettings {
            seccomp_default: true,
            swap_behavior: SwapBehavior::LimitedSwap,
            single_process_oom_kill: true,
        },
        restarts: RestartSettings { max_pause: std::time::Duration::from_secs(40) },
        runtime: RuntimeSettings {
            endpoint: "/run/c.sock".into(),
            request_timeout: std::time::Duration::from_secs(90),
            containerd_config: "/containerd.toml".into(),
            snapshotter: "native".to_owned(),
            binary: Some("/usr/bin/crun".into()),
            shim: Shim::Limpet(Some("/opt/containerd-shim-limpet-v1".into())),
            shim_group: ShimGroup::Node,
            classes: [
                (
                    "crun",
                    RuntimeClass {
                        binary: Some("/usr/bin/crun".into()),
                        no_pivot_root: true,
                        no_new_keyring: true,
                        devices: vec!["nvidia.com/gpu=all".to_owned()],
                        ..RuntimeClass::with_runtime(RUNC_SHIM)
                    },
                ),
                (
                    "runsc",
                    RuntimeClass {
                        config: Some("/runsc.toml".into()),
                        ..RuntimeClass::with_runtime("io.containerd.runsc.v1")
                    },
                ),
                ("wasm", RuntimeClass { wasm: true, ..RuntimeClass::with_runtime("io.containerd.wasmtime.v1") }),
            ]
            .map(|(name, class)| (name.to_owned(), class))
            .into(),
        },
        images: ImageSettings {
            registry_config_dir: "/certs".into(),
            credential_providers: Vec::new(),
            policy: Some(super::image_policy::tests::tried()),
        },
        pulls: PullSettings {
            rate: Some(PullRate { per_second: 7, burst: 9 }),
            max_parallel: 3,
            verification: VerificationPolicy::NeverVerifyAllowlistedImages(allowlist),
            local_when_unreachable: true,
        },
        logs: LogSettings {
            pods_dir: "/l".into(),
            containers_dir: "/cl".into(),
            rotation: LogRotation { max_size: 5 << 20, max_files: 3 },
        },
        cgroups: CgroupSettings {
            driver: CgroupDriver::Systemd,
            root: "/edge".into(),
            pod_pids_limit: Some(512),
            cpu_quotas: CpuQuotas::InPeriods(20_000),
            memory_qos: MemoryQos { keeps_requests: true, throttling: Some(0.8) },
        },
        cpus: CpuPolicySettings {
            policy: Some(CpuPolicyOptions { full_cores_only: true, ..CpuPolicyOptions::default() }),
            reconcile_period: std::time::Duration::from_secs(20),
            reserved: None,
        },
        network: CniSettings { config_dir: "/cni".into(), binary_dirs: vec!["/bin1".into(), "/bin2".into()] },
        volumes: VolumeSettings {
            plugin_dir: "/v".into(),
            resolv_conf: None,
            claims_dir: Some("/data/volumes".into()),
            cluster: ClusterDns {
                nameservers: vec!["10.0.0.10".parse().unwrap(), "fd00::10".parse().unwrap()],
                domain: "cluster.local".to_owned(),
            },
            stats_period: std::time::Duration::from_secs(120),
        },
        plugins: PluginSettings {
            devices: [(
                "example.com/modem".to_owned(),
                Device {
                    paths: vec!["/dev/ttyS0".into()],
                    cdi: vec!["nvidia.com/gpu=all".to_owned()],
                    exclusive: true,
                    permissions: "rw".to_owned(),
                },
            )]
            .into(),
            cdi_dirs: vec!["/cdi".into()],
            directory: PluginDirectory::At("/plugins".into()),
        },
        generations: super::generations::tests::tried(),
        updates: super::updates::tests::tried(),
        report: Some(HttpSettings {
            address: Address::parse("https://fleet.example/nodes/{node}").unwrap(),
            headers: HeaderMap::new(),
            frequency: std::time::Duration::from_secs(1_800),
            ca_file: Some("/ca.pem".into()),
            client_files: None,
        }),
        services: super::services::tests::ranged(),
        image_gc: ImageGcPolicy {
            high_percent: 90,
            low_percent: 70,
            min_age: std::time::Duration::from_secs(300),
            max_age: Some(std::time::Duration::from_secs(7 * 86_400)),
        },
        eviction: super::eviction::tests::tried(),
        shutdown: Some(ShutdownPolicy::of_periods(
            std::time::Duration::from_secs(30),
            std::time::Duration::from_secs(10),
        )),
        server: ServerSettings {
            enabled: true,
            address: [10, 0, 0, 5].into(),
            port: 10_350,
            read_only_port: 10_355,
            healthz_address: "::1".parse().unwrap(),
            healthz_port: 10_348,
            certificate: Some((directory.join("node.crt"), "/node.key".into())),
            certificate_by_request: false,
            certificate_dir: None,
            tls13_only: true,
            cipher_suites: vec![rustls::CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256],
            key_exchanges: vec![rustls::NamedGroup::X25519, rustls::NamedGroup::secp256r1],
            client_ca: Some("/ca.crt".into()),
            anonymous: true,
            reviews: false,
            tokens: false,
            token_lifetime: std::time::Duration::from_secs(60),
            mode: AuthorizationMode::AlwaysAllow,
            allowed_lifetime: std::time::Duration::from_secs(120),
            denied_lifetime: std::time::Duration::from_secs(3),
            allowed_names: vec!["kube-apiserver".to_owned(), "group:readers".to_owned()],
            stream_idle_timeout: Some(std::time::Duration::from_secs(600)),
            debug: DebugHandlers {
                enabled: false,
                system_logs: true,
                system_log_query: true,
                profiling: false,
                flags: false,
            },
        },
        local: LocalSettings {
            socket: None,
            allowed_pods: vec![PodKey::new("default", "deployer"), PodKey::new("lab", "ci")],
            cri_socket: CriSocket::At("/run/cri.sock".into()),
            metrics_address: Some("127.0.0.1:10249".parse().unwrap()),
        },
        guard: GuardSettings {
            mode: Some(GuardMode::Strict),
            required: false,
            executables: vec!["/usr/bin/dpkg".into()],
            cgroups: vec!["/sys/fs/cgroup/system.slice/ansible.service".into()],
        },
        cluster: ClusterSettings {
            register: false,
            rotate_certificates: true,
            provider_id: Some("edge://7".to_owned()),
            taints: vec![limpet_core::node_object::NodeTaint {
                key: "a".to_owned(),
                value: "b".to_owned(),
                effect: "NoSchedule".to_owned(),
            }],
            frequencies: Frequencies {
                report: std::time::Duration::from_secs(60),
                correction: std::time::Duration::from_secs(20),
            },
            max_images: None,
            lease_duration: std::time::Duration::from_secs(20),
            ..ClusterSettings::default()
        },
    };
    assert_eq!(config.unwrap(), expected);
    let open = "config.yaml: authentication.anonymous.enabled: with authorization.mode AlwaysAllow: whoever reaches the \
                port may run commands in every container";
    let alone = "config.yaml: rotateCertificates: has no effect without --kubeconfig";
    assert_eq!(warnings, [alone, open]);
}

#[test]
fn flags_override_the_file() {
    let text = format!("{KUBELET_HEAD}staticPodPath: /file\ncontainerRuntimeEndpoint: unix:///file.sock\n");
    let arguments = [
        "--pod-manifest-path=/flag",
        "--container-runtime-endpoint",
        "unix:///flag.sock",
        "--root-dir=/root-flag",
        "--hostname-override=Edge1",
        "--v=4",
    ];
    let config = load_text(&text, &arguments).0.unwrap();
    assert_eq!(config.sources.manifest_path, Some("/flag".into()));
    assert_eq!(config.runtime.endpoint, PathBuf::from("/flag.sock"));
    assert_eq!(config.root_dir, PathBuf::from("/root-flag"));
    assert_eq!((config.node.hostname_override.as_deref(), config.verbosity), (Some("Edge1"), 4));
    assert_eq!(flags(&["-v", "3"]).verbosity, Some(3));
    assert!(Command::try_parse_from(["limpet", "--v=high"]).is_err());
    assert_eq!(flags(&["--kubeconfig=/x"]).kubeconfig, Some("/x".into()));
    assert!(Command::try_parse_from(["limpet", "--runonce"]).is_err());
}

#[test]
fn all_errors_are_reported_at_once_with_their_positions() {
    let text = format!(
        "{KUBELET_HEAD}staticPodPth: /m\nmaxPods: \"110\"\nclusterDNS:\n- 10.0.0.10\n- 7\nclusterDomain: yes\n\
         containerLogMaxSize: 10MB\nauthentication:\n  webhok: {{}}\ncgroupDriver: systemdd\nmaxParallelImagePulls: 4\n\
         serializeImagePulls: true\n---\n{LIMPET_HEAD}metricsAddress: 0.0.0.0:80\nrunDirectory: run\nstaticPodPath: /m\nsnapshotter: blockfile\n"
    );
    let faults = load_text(&text, &["--container-runtime-endpoint=tcp://x"]).0.unwrap_err();
    let expected = [
        "config.yaml:3:1: staticPodPth: no such key; did you mean staticPodPath?",
        "config.yaml:4:10: maxPods: expected a whole number, found text",
        "config.yaml:7:3: clusterDNS: expected a list of texts, found a whole number",
        "config.yaml:8:16: clusterDomain: expected text, found true or false",
        "config.yaml:11:3: authentication.webhok: no such key; did you mean webhook?",
        "config.yaml:20:1: staticPodPath: no such key; it belongs in KubeletConfiguration",
        "config.yaml:12:15: cgroupDriver: \"systemdd\" is neither cgroupfs nor systemd",
        "config.yaml:9:22: containerLogMaxSize: \"10MB\" is not a size such as 10Mi",
        "config.yaml:13:24: maxParallelImagePulls: 4 is not possible while serializeImagePulls is true",
        "config.yaml:19:15: runDirectory: \"run\" is not an absolute path",
        "config.yaml:21:14: snapshotter: blockfile is not supported: its snapshots need loop devices; use overlayfs, native, \
         btrfs or devmapper",
        "config.yaml:18:17: metricsAddress: 0.0.0.0:80 is not on loopback; only 127.0.0.0/8 and [::1] are allowed",
        "flags: --container-runtime-endpoint: \"tcp://x\" is not a socket such as unix:///run/containerd/containerd.sock",
    ];
    assert_eq!(faults, expected);
}

#[test]
fn values_of_flags_are_shown_and_credentials_are_not() {
    let given =
        ["--port=1", "--v=4", "--manifest-url-header=authorization:secret", "--manifest-url=https://a:secret@b/c"];
    let values = flags(&given).values();
    assert_eq!(
        (&values["port"], &values["v"], &values["kubeconfig"]),
        (&1.into(), &4.into(), &serde_json::Value::Null)
    );
    assert!(!values.to_string().contains("secret"), "{values}");
}

#[test]
fn documents_are_recognized_by_kind_and_version() {
    let cases = [
        ("kind: Pod\n", "config.yaml:1:7: kind: must be KubeletConfiguration or LimpetConfiguration"),
        ("a: 1\n", "config.yaml:1:1: kind: must be KubeletConfiguration or LimpetConfiguration"),
        ("- a\n", "config.yaml:1:1: expected a map, found a list"),
        (
            "kind: LimpetConfiguration\napiVersion: limpet.dev/v2\n",
            "config.yaml:2:13: apiVersion: must be limpet.dev/v1beta1",
        ),
        ("kind: LimpetConfiguration\n", "config.yaml:1:1: apiVersion: must be limpet.dev/v1beta1"),
    ];
    for (text, expected) in cases {
        assert_eq!(load_text(text, &[]).0.unwrap_err(), [expected], "{text}");
    }
    let earlier = "apiVersion: limpet.dev/v1alpha1\nkind: LimpetConfiguration\ncontainerdConfig: /c.toml\n";
    let (config, warnings, _) = load_text(earlier, &[]);
    assert_eq!(config.unwrap().runtime.containerd_config, Path::new("/c.toml"));
    let expected = [
        "config.yaml:1:13: apiVersion: limpet.dev/v1alpha1 is an earlier version, still accepted: write limpet.dev/v1beta1",
        "config.yaml:3:1: containerdConfig: is an earlier name, still accepted: write containerdConfigFile",
    ];
    assert_eq!(warnings[..2], expected, "{warnings:?}");
    let both = format!("{LIMPET_HEAD}containerdConfig: /c.toml\ncontainerdConfigFile: /d.toml\n");
    let errors = load_text(&both, &[]).0.unwrap_err();
    assert!(errors.len() == 1 && errors[0].starts_with("config.yaml:3:1: containerdConfig: "), "{errors:?}");
    let twice = format!("{LIMPET_HEAD}---\n{LIMPET_HEAD}");
    assert_eq!(load_text(&twice, &[]).0.unwrap_err(), ["config.yaml:4:1: kind: a second LimpetConfiguration"]);
    let broken = load_text("a: [1\nb: }\n", &[]).0.unwrap_err();
    assert!(broken.len() == 1 && broken[0].starts_with("config.yaml:2:"), "{broken:?}");
    assert!(load_text("", &[]).0.is_ok());
}

#[test]
fn unsupported_keys_cause_a_warning_unless_they_match_limpets_behaviour() {
    let text = format!(
        "{KUBELET_HEAD}staticPodPath: /m\nqosReserved: {{memory: 100%}}\nfailSwapOn: false\nregistryBurst: null\n\
         syncFrequency: 1m\nauthentication:\n  anonymous:\n    enabled: false\n  webhook:\n    enabled: false\nport: null\n"
    );
    let (config, warnings, _) = load_text(&text, &[]);
    config.unwrap();
    let expected = [
        "config.yaml:4:1: qosReserved: is not supported yet and has no effect",
        "config.yaml:7:1: syncFrequency: has no effect: changes are seen as they happen, without a period",
    ];
    assert_eq!(warnings, expected);
}

#[test]
fn the_file_must_exist_and_be_small() {
    let missing = load(&flags(&["--config", "/nonexistent/config.yaml"])).unwrap_err();
    assert!(missing.to_string().starts_with("cannot read configuration /nonexistent/config.yaml: No such file"));
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("config.yaml");
    std::fs::write(&path, vec![b'#'; 2 << 20]).unwrap();
    let large = load(&flags(&["--config", path.to_str().unwrap()])).unwrap_err();
    assert!(large.to_string().contains("larger than"), "{large}");
}

#[test]
fn the_packaged_configuration_loads_without_warnings() {
    let path = Path::new(&std::env::var_os("CARGO_MANIFEST_DIR").unwrap()).join("../deploy/config.yaml");
    let (config, warnings) = load(&flags(&["--config", path.to_str().unwrap()])).unwrap();
    assert_eq!(warnings, []);
    assert!(config.containers.seccomp_default);
    assert_eq!(config.sources.manifest_path, Some("/etc/limpet/manifests".into()));
}

#[test]
fn errors_in_the_url_settings_are_reported_without_secrets() {
    let text = format!(
        "{KUBELET_HEAD}staticPodURL: ftp://u:pa55@x/\nhttpCheckFrequency: 10ms\nstaticPodURLHeader:\n  X-A: tok\n  X B: [tok]\n---\n\
         {LIMPET_HEAD}staticPodURLCAFile: ca.pem\nstaticPodURLCertFile: /cert.pem\n"
    );
    let faults = load_text(&text, &["--manifest-url-header=tok"]).0.unwrap_err();
    let expected = [
        "config.yaml:6:8: staticPodURLHeader.X-A: expected a list of texts, found text",
        "config.yaml:11:21: staticPodURLCAFile: \"ca.pem\" is not an absolute path",
        "flags: --manifest-url-header: a header must be name:value",
        "config.yaml:4:21: httpCheckFrequency: 10ms is shorter than 1s",
        "config.yaml: staticPodURLCertFile: needs staticPodURLKeyFile too",
        "config.yaml:3:15: staticPodURL: begins with ftp:, not with http: or https:",
    ];
    assert_eq!(faults, expected);
    let flags = flags(&["--manifest-url=http://x/", "--http-check-frequency=5s", "--manifest-url-header=a:1"]);
    let url = load(&flags).unwrap().0.sources.manifest_url.unwrap();
    assert_eq!((url.address.to_string().as_str(), url.frequency.as_secs(), url.headers.len()), ("http://x/", 5, 1));
}
