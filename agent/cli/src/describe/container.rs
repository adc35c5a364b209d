//! One container in `limpet describe`.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStatus, EnvFromSource, EnvVar, EnvVarSource, Probe, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use limpet_model::probe::ProbeKind;

use crate::sheet::Sheet;
use limpet_wire::pods::ContainerDocument;

pub(super) fn describe(
    sheet: &mut Sheet,
    container: &Container,
    status: Option<&ContainerStatus>,
    held: Option<&ContainerDocument>,
) {
    sheet.indented(|sheet| {
        sheet.field(&container.name, "");
        sheet.indented(|sheet| {
            made_of(sheet, container, status, held);
            doing(sheet, status, held);
            settings(sheet, container);
        });
    });
}

/// A container of a template: it has no state.
pub(super) fn describe_template(sheet: &mut Sheet, container: &Container) {
    sheet.indented(|sheet| {
        sheet.field(&container.name, "");
        sheet.indented(|sheet| {
            made_of(sheet, container, None, None);
            settings(sheet, container);
        });
    });
}

fn made_of(
    sheet: &mut Sheet,
    container: &Container,
    status: Option<&ContainerStatus>,
    held: Option<&ContainerDocument>,
) {
    let id = status.and_then(|status| status.container_id.clone());
    let id = id.or_else(|| held.filter(|held| !held.id.is_empty()).map(|held| format!("containerd://{}", held.id)));
    sheet.optional("Container ID", id.as_deref());
    sheet.field("Image", container.image.as_deref().unwrap_or_default());
    sheet.optional("Image ID", status.map(|status| status.image_id.as_str()));
    let ports: Vec<String> = container
        .ports
        .iter()
        .flatten()
        .map(|port| format!("{}/{}", port.container_port, port.protocol.as_deref().unwrap_or("TCP")))
        .collect();
    sheet.optional("Ports", Some(&ports.join(", ")));
    sheet.list("Command", container.command.iter().flatten());
    sheet.list("Args", container.args.iter().flatten());
}

fn doing(sheet: &mut Sheet, status: Option<&ContainerStatus>, held: Option<&ContainerDocument>) {
    let Some(status) = status else {
        sheet.field("State", "not made yet");
        return;
    };
    state(sheet, "State", status.state.as_ref());
    if status.last_state.as_ref().is_some_and(|last| last.terminated.is_some()) {
        state(sheet, "Last State", status.last_state.as_ref());
    }
    sheet.field("Ready", if status.ready { "True" } else { "False" });
    sheet.field("Restart Count", &status.restart_count.to_string());
    if let Some(held) = held {
        sheet.optional("PID", held.pid.map(|pid| pid.to_string()).as_deref());
        sheet.optional("Logs", Some(&held.log_path.to_string_lossy()));
    }
}

fn state(sheet: &mut Sheet, label: &str, state: Option<&ContainerState>) {
    let Some(state) = state else {
        sheet.field(label, "Waiting");
        return;
    };
    if let Some(running) = &state.running {
        sheet.field(label, "Running");
        sheet.indented(|sheet| sheet.time("Started", running.started_at.as_ref()));
    } else if let Some(terminated) = &state.terminated {
        sheet.field(label, "Terminated");
        sheet.indented(|sheet| {
            sheet.optional("Reason", terminated.reason.as_deref());
            sheet.optional("Message", terminated.message.as_deref());
            match terminated.signal.filter(|signal| *signal != 0) {
                Some(signal) => sheet.field("Exit Code", &format!("{} (signal {signal})", terminated.exit_code)),
                None => sheet.field("Exit Code", &terminated.exit_code.to_string()),
            }
            sheet.time("Started", terminated.started_at.as_ref());
            sheet.time("Finished", terminated.finished_at.as_ref());
        });
    } else {
        sheet.field(label, "Waiting");
        let waiting = state.waiting.as_ref();
        sheet.indented(|sheet| {
            sheet.optional("Reason", waiting.and_then(|waiting| waiting.reason.as_deref()));
            sheet.optional("Message", waiting.and_then(|waiting| waiting.message.as_deref()));
        });
    }
}

fn settings(sheet: &mut Sheet, container: &Container) {
    if let Some(resources) = &container.resources {
        amounts(sheet, "Limits", resources.limits.as_ref());
        amounts(sheet, "Requests", resources.requests.as_ref());
    }
    sheet.optional("Working Dir", container.working_dir.as_deref());
    for kind in ProbeKind::ALL {
        sheet.optional(&kind.to_string(), kind.probe_of(container).map(probe).as_deref());
    }
    sheet.list("Environment From", container.env_from.iter().flatten().map(environment_from));
    let variables = container.env.as_deref().unwrap_or_default();
    if !variables.is_empty() {
        sheet.field("Environment", "");
        sheet.indented(|sheet| variables.iter().for_each(|variable| sheet.field(&variable.name, &value(variable))));
    }
    sheet.list("Mounts", container.volume_mounts.iter().flatten().map(mount));
}

/// A probe as kubectl shows it.
fn probe(probe: &Probe) -> String {
    let port = |port: &IntOrString| match port {
        IntOrString::Int(number) => number.to_string(),
        IntOrString::String(name) => name.clone(),
    };
    let handler = if let Some(exec) = &probe.exec {
        format!("exec [{}]", exec.command.iter().flatten().map(String::as_str).collect::<Vec<_>>().join(" "))
    } else if let Some(get) = &probe.http_get {
        let scheme = get.scheme.as_deref().unwrap_or("HTTP").to_ascii_lowercase();
        let (host, path) = (get.host.as_deref().unwrap_or_default(), get.path.as_deref().unwrap_or_default());
        format!("http-get {scheme}://{host}:{}/{}", port(&get.port), path.strip_prefix('/').unwrap_or(path))
    } else if let Some(tcp) = &probe.tcp_socket {
        format!("tcp-socket {}:{}", tcp.host.as_deref().unwrap_or_default(), port(&tcp.port))
    } else if let Some(grpc) = &probe.grpc {
        format!("grpc <pod>:{} {}", grpc.port, grpc.service.as_deref().unwrap_or_default())
    } else {
        "unknown".to_owned()
    };
    let number = |value: Option<i32>| value.unwrap_or_default();
    format!(
        "{handler} delay={}s timeout={}s period={}s #success={} #failure={}",
        number(probe.initial_delay_seconds),
        number(probe.timeout_seconds),
        number(probe.period_seconds),
        number(probe.success_threshold),
        number(probe.failure_threshold)
    )
}

fn amounts(sheet: &mut Sheet, label: &str, amounts: Option<&BTreeMap<String, Quantity>>) {
    let Some(amounts) = amounts.filter(|amounts| !amounts.is_empty()) else { return };
    let all: Vec<String> = amounts.iter().map(|(name, amount)| format!("{name} {}", amount.0)).collect();
    sheet.field(label, &all.join(", "));
}

/// A variable's value; a value from a Secret is shown by its reference only.
fn value(variable: &EnvVar) -> String {
    match (&variable.value, &variable.value_from) {
        (Some(value), _) => value.clone(),
        (None, Some(from)) => reference(from),
        (None, None) => String::new(),
    }
}

fn reference(from: &EnvVarSource) -> String {
    if let Some(field) = &from.field_ref {
        format!("({})", field.field_path)
    } else if let Some(resource) = &from.resource_field_ref {
        format!("({})", resource.resource)
    } else if let Some(key) = &from.config_map_key_ref {
        format!("<set to the key '{}' of config map '{}'>", key.key, key.name)
    } else if let Some(key) = &from.secret_key_ref {
        format!("<set to the key '{}' in secret '{}'>", key.key, key.name)
    } else {
        "<set from elsewhere>".to_owned()
    }
}

fn environment_from(from: &EnvFromSource) -> String {
    let prefix = from.prefix.as_ref().map(|prefix| format!(" with prefix '{prefix}'")).unwrap_or_default();
    match (&from.config_map_ref, &from.secret_ref) {
        (Some(map), _) => format!("{}  ConfigMap{prefix}", map.name),
        (None, Some(secret)) => format!("{}  Secret{prefix}", secret.name),
        (None, None) => format!("<unknown>{prefix}"),
    }
}

fn mount(mount: &VolumeMount) -> String {
    let mut flags = vec![if mount.read_only.unwrap_or(false) { "ro" } else { "rw" }.to_owned()];
    flags.extend(mount.sub_path.as_ref().map(|path| format!("path=\"{path}\"")));
    format!("{} from {} ({})", mount.mount_path, mount.name, flags.join(","))
}
