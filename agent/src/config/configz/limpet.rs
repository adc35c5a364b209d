//! The document of a LimpetConfiguration.

use serde_json::{Value, json};

use crate::config::Config;
use crate::generations::GenerationSettings;
use limpet_bundle::settings::BundleSettings;
use limpet_containerd::container::runtime::RuntimeClass;
use limpet_containerd::image::WASM;
use limpet_generations::{CheckAction, Policy};
use limpet_image_policy::policy::{ImagePolicy, Requirement, Rule};
use limpet_model::go_duration;
use limpet_model::node::Device;
use limpet_model::source::SourceKind;
use limpet_services::settings::ServiceSettings;
use limpet_sources::http::HttpSettings;
use limpet_updates::{GateSettings, UpdateSettings, Window};

/// All fields but those that kubelet's document has, too.
pub(super) fn limpet_document(config: &Config) -> Value {
    let class = |(name, class): (&String, &RuntimeClass)| {
        let RuntimeClass { runtime, binary, config, no_pivot_root, no_new_keyring, wasm, devices } = class;
        let fields = json!({
            "runtime": runtime, "binary": binary, "config": config, "noPivotRoot": no_pivot_root,
            "noNewKeyring": no_new_keyring,
            "platform": wasm.then_some(WASM), "devices": devices,
        });
        (name.clone(), fields)
    };
    let device = |(name, device): (&String, &Device)| {
        let Device { paths, cdi, exclusive, permissions } = device;
        (name.clone(), json!({ "paths": paths, "cdi": cdi, "exclusive": exclusive, "permissions": permissions }))
    };
    let devices: serde_json::Map<String, Value> = config.plugins.devices.iter().map(device).collect();
    let classes: serde_json::Map<String, Value> = config.runtime.classes.iter().map(class).collect();
    json!({
        "hostnameOverride": config.node.hostname_override,
        "kubeconfig": config.cluster.kubeconfig,
        "rootDirectory": config.root_dir,
        "runDirectory": config.run_dir,
        "socket": config.socket(),
        "containerLogsDirectory": config.logs.containers_dir,
        "staticPodURLCAFile": config.sources.manifest_url.as_ref().and_then(|url| url.ca_file.clone()),
        "nodeIP": (!config.node.ip.is_empty()).then(|| config.node.ip.to_string()),
        "snapshotter": config.runtime.snapshotter,
        "runtimeBinary": config.runtime.binary,
        "shim": config.runtime.shim.to_string(),
        "shimGroup": config.runtime.shim_group.to_string(),
        "runtimeClasses": classes,
        "devices": devices,
        "persistentVolumesDirectory": config.volumes.claims_dir(&config.root_dir),
        "registryConfigDirectory": config.images.registry_config_dir,
        "containerdConfigFile": config.runtime.containerd_config,
        "imagePolicy": config.images.policy.as_ref().map(image_policy),
        "bundle": config.bundle.as_ref().map(|settings| bundle(settings, config.sources.bundle_url.as_ref())),
        "generations": generations(&config.generations),
        "updates": updates(&config.updates, config.report.as_ref()),
        "services": services(&config.services),
        "cniConfigDirectory": config.network.config_dir,
        "cniBinaryDirectories": config.network.binary_dirs,
        "metricsAddress": config.local.metrics_address,
        "serverAllowedNames": config.server.allowed_names,
        "criSocket": config.cri_socket(),
        "pluginDirectory": config.plugin_dir(),
        "cdiSpecDirectories": config.plugins.cdi_dirs,
        "secretEncryptionKey": config.secret_key.as_ref().map(ToString::to_string),
        "socketAllowedPods": config.local.allowed_pods.iter().map(ToString::to_string).collect::<Vec<_>>(),
    })
}

/// Where bundles come from, and whose keys may have signed them.
fn bundle(bundle: &BundleSettings, url: Option<&HttpSettings>) -> Value {
    json!({ "keys": bundle.keys, "directory": bundle.directory, "image": bundle.image,
        "url": url.map(|url| url.address.to_string()), "urlCAFile": url.and_then(|url| url.ca_file.as_ref()),
        "interval": go_duration::show(bundle.interval), "maxSize": bundle.max_size.to_string() })
}

/// When updates are downloaded and applied.
fn updates(UpdateSettings { gate, bandwidth }: &UpdateSettings, report: Option<&HttpSettings>) -> Value {
    let GateSettings { windows, download, apply } = gate;
    let window = |window: &Window| json!({ "start": window.written, "duration": go_duration::show(window.duration) });
    let list = |all: &[Window]| all.iter().map(window).collect::<Vec<_>>();
    json!({
        "timeZone": windows.zone.iana_name(), "withoutClock": go_duration::show(windows.without_clock),
        "bandwidth": bandwidth.map(|rate| rate.to_string()),
        "download": { "windows": list(&download.windows), "meteredCommand": download.metered_command },
        "report": report.map(|report| {
            json!({ "url": report.address.to_string(), "interval": go_duration::show(report.frequency),
                "caFile": report.ca_file })
        }),
        "apply": { "windows": list(&apply.windows), "lockFile": apply.lock_file, "vetoURL": apply.veto_url },
    })
}

/// Where Services have their addresses and ports.
fn services(services: &ServiceSettings) -> Value {
    let (first, last) = services.node_ports.clone().into_inner();
    let ranges: Vec<String> = services.ranges.iter().map(ToString::to_string).collect();
    json!({ "clusterIPRanges": ranges, "nodePortRange": format!("{first}-{last}") })
}

/// Which sources have generations, and by what they are judged.
fn generations(GenerationSettings { settings, boot_check_dir }: &GenerationSettings) -> Value {
    let policies = SourceKind::ALL.into_iter().map(|source| (source, settings.policies.policy(source)));
    let policies = policies.filter(|(_, policy)| *policy != Policy::Off);
    let policy: serde_json::Map<String, Value> =
        policies.map(|(source, policy)| (source.as_str().to_owned(), policy.as_str().into())).collect();
    let check = settings.check.as_ref().map(|check| match check {
        CheckAction::Command(words) => json!({ "command": words }),
        CheckAction::Url(url) => json!({ "url": url }),
    });
    json!({
        "policy": policy,
        "progressDeadline": go_duration::show(settings.progress_deadline),
        "minReadySeconds": settings.min_ready.as_secs(),
        "maxRestarts": settings.max_restarts,
        "historyLimit": settings.history_limit,
        "check": check,
        "bootCheckDirectory": boot_check_dir,
    })
}

/// The rules, as they are written.
fn image_policy(policy: &ImagePolicy) -> Value {
    let required = |requirement: &Requirement| {
        let mut fields = serde_json::Map::new();
        fields.insert("require".to_owned(), requirement.as_str().into());
        if !requirement.keys().is_empty() {
            fields.insert("keys".to_owned(), json!(requirement.keys()));
        }
        fields
    };
    let rule = |rule: &Rule| {
        let mut fields = required(&rule.requirement);
        fields.insert("images".to_owned(), rule.images.iter().map(ToString::to_string).collect());
        fields
    };
    json!({ "rules": policy.rules.iter().map(rule).collect::<Vec<_>>(), "default": required(&policy.default) })
}
