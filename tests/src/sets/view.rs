//! The lines of what is seen of a set.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use serde_json::Value;

use super::aliases::{Aliases, is_minutes};
use super::files::{Set, kind_and_name};
use super::lookup::{Kind, Question};
use super::stage::{Service, Snapshot, Stage};
use crate::view::View;
use crate::view::status;

/// The parts of a view.
const SECTIONS: [&str; 12] = [
    "claims",
    "containers",
    "environment",
    "files",
    "jobs",
    "labels",
    "logs",
    "names",
    "pods",
    "rollout",
    "services",
    "spec",
];
/// The parts of a pod's spec that its controller or its manifest decides.
const SPEC: [&str; 9] = [
    "dnsPolicy",
    "enableServiceLinks",
    "hostNetwork",
    "hostname",
    "nodeSelector",
    "restartPolicy",
    "securityContext",
    "subdomain",
    "terminationGracePeriodSeconds",
];
/// The labels and annotations of Jobs.
const OF_JOBS: &str = "batch.kubernetes.io/";
/// Where a pod has its token.
const TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// The most characters of a file that are compared.
const FILE: usize = 200;

/// All sections of a set, as it is in that snapshot.
pub fn view(set: &Set, version: usize, snapshot: &Snapshot, stage: &dyn Stage, aliases: &Aliases) -> View {
    // A section that is empty is one that is compared.
    let mut view: View = SECTIONS.iter().map(|section| ((*section).to_owned(), Vec::new())).collect();
    let mut add = |section: &str, lines: Vec<String>| {
        view.entry(section.to_owned()).or_default().extend(lines.iter().map(|line| aliases.normal(line)));
    };
    for pod in snapshot.pods_in(&set.name).filter(|pod| is_compared(pod)) {
        add("pods", vec![pod_line(pod)]);
        add("labels", labels(pod));
        add("spec", spec(pod));
        add("containers", containers(pod));
        add("environment", environment(pod, snapshot));
        add("files", files(pod, snapshot));
        add("logs", logs(pod, &stage.logs()));
    }
    add(
        "services",
        snapshot.services_in(&set.name).map(|service| service_line(service, set, version, aliases)).collect(),
    );
    add("claims", claims(set, snapshot));
    add("jobs", jobs(set, snapshot));
    view.values_mut().for_each(|lines| *lines = counted(std::mem::take(lines)));
    view
}

/// The lines in order, each once, with how often it is there. How many Jobs a schedule has begun depends on the moment.
fn counted(lines: Vec<String>) -> Vec<String> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    lines.into_iter().for_each(|line| *counts.entry(line).or_default() += 1);
    let shown = |(line, count): (String, usize)| match count {
        1 => line,
        _ if line.contains("MINUTES") => line,
        count => format!("{line} (x {count})"),
    };
    counts.into_iter().map(shown).collect()
}

/// Of the pods of a schedule those that have ended: the others come and go.
fn is_compared(pod: &Value) -> bool {
    let job = pod["metadata"]["labels"]["batch.kubernetes.io/job-name"].as_str().unwrap_or_default();
    let is_of_schedule = job.rsplit('-').next().is_some_and(is_minutes);
    !is_of_schedule || pod["status"]["phase"] == "Succeeded"
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn name(pod: &Value) -> &str {
    text(&pod["metadata"]["name"])
}

fn items<'a>(value: &'a Value, list: &str) -> impl Iterator<Item = &'a Value> {
    value[list].as_array().map_or(&[][..], Vec::as_slice).iter()
}

/// Whether the pod is ready and not about to end.
pub fn is_ready(pod: &Value) -> bool {
    pod["metadata"]["deletionTimestamp"].is_null()
        && items(&pod["status"], "conditions").any(|it| it["type"] == "Ready" && it["status"] == "True")
}

/// Whether the pod is about to end.
pub fn is_ending(pod: &Value) -> bool {
    !pod["metadata"]["deletionTimestamp"].is_null()
}

fn pod_line(pod: &Value) -> String {
    let owner = &pod["metadata"]["ownerReferences"][0];
    let owner = if owner.is_null() {
        "no controller".to_owned()
    } else {
        format!("{}/{}", text(&owner["kind"]), text(&owner["name"]))
    };
    let ready = if is_ready(pod) { ", ready" } else { "" };
    let ending = if is_ending(pod) { ", ending" } else { "" };
    let class = text(&pod["status"]["qosClass"]);
    format!("{}: of {owner}, {}{ready}{ending}, {class}", name(pod), text(&pod["status"]["phase"]))
}

fn labels(pod: &Value) -> Vec<String> {
    let metadata = &pod["metadata"];
    let pairs = |list: &str, prefix: &'static str| {
        let all = metadata[list].as_object().into_iter().flatten();
        all.filter(move |(key, _)| key.starts_with(prefix)).map(|(key, value)| format!("{key}={}", text(value)))
    };
    let all = pairs("labels", "").chain(pairs("annotations", OF_JOBS).map(|it| format!("annotation {it}")));
    all.map(|pair| format!("{}: {pair}", name(pod))).collect()
}

fn spec(pod: &Value) -> Vec<String> {
    let spec = &pod["spec"];
    let kept: serde_json::Map<String, Value> =
        SPEC.iter().filter(|key| !spec[**key].is_null()).map(|key| ((*key).to_owned(), spec[*key].clone())).collect();
    let volumes = items(spec, "volumes").filter(|volume| !is_token(text(&volume["name"])));
    let volumes = volumes.flat_map(status::lines).map(|line| format!("volume: {line}"));
    status::lines(&Value::Object(kept))
        .into_iter()
        .chain(volumes)
        .map(|line| format!("{}: {line}", name(pod)))
        .collect()
}

/// The volume that an apiserver adds to each pod.
fn is_token(volume: &str) -> bool {
    volume.starts_with("kube-api-access-")
}

fn containers(pod: &Value) -> Vec<String> {
    let status = &pod["status"];
    let all = ["initContainerStatuses", "containerStatuses"].into_iter().flat_map(|list| items(status, list));
    all.map(|container| {
        let image = text(&container["image"]).rsplit('/').next().unwrap_or_default();
        let state = container["state"].as_object().and_then(|state| state.iter().next());
        let (state, details) = state.map_or(("unknown", &Value::Null), |(state, details)| (state.as_str(), details));
        let reason = text(&details["reason"]);
        let code = details["exitCode"].as_u64().map(|code| format!(" with {code}")).unwrap_or_default();
        let ready = if container["ready"] == true { ", ready" } else { "" };
        let (who, restarts) = (text(&container["name"]), &container["restartCount"]);
        format!("{}/{who}: {image}, {state} {reason}{code}{ready}, {restarts} restarts", name(pod))
    })
    .collect()
}

/// The containers that run, with their first processes and their specs.
fn running<'a>(pod: &'a Value, snapshot: &'a Snapshot) -> impl Iterator<Item = (&'a Value, u32)> {
    let status = &pod["status"];
    let statuses = ["initContainerStatuses", "containerStatuses"].into_iter().flat_map(|list| items(status, list));
    statuses.filter_map(|container| {
        let id = text(&container["containerID"]).strip_prefix("containerd://")?;
        let lists = ["initContainers", "containers"].into_iter().flat_map(|list| items(&pod["spec"], list));
        let spec = lists.into_iter().find(|spec| spec["name"] == container["name"])?;
        Some((spec, *snapshot.processes.get(id)?))
    })
}

fn environment(pod: &Value, snapshot: &Snapshot) -> Vec<String> {
    let of_container = |(spec, process): (&Value, u32)| {
        let bytes = fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
        let variables = bytes.split(|byte| *byte == 0).filter(|variable| !variable.is_empty());
        let who = format!("{}/{}", name(pod), text(&spec["name"]));
        variables.map(|variable| format!("{who}: {}", String::from_utf8_lossy(variable))).collect::<Vec<_>>()
    };
    running(pod, snapshot).flat_map(of_container).collect()
}

/// What containers find where their volumes are, in `/etc/resolv.conf`, and as their host's name.
fn files(pod: &Value, snapshot: &Snapshot) -> Vec<String> {
    let mut lines = Vec::new();
    for (spec, process) in running(pod, snapshot) {
        let who = format!("{}/{}", name(pod), text(&spec["name"]));
        let root = format!("/proc/{process}/root");
        let resolver = fs::read_to_string(format!("{root}/etc/resolv.conf")).unwrap_or_default();
        lines.extend(resolver.lines().map(|line| format!("{who}: /etc/resolv.conf: {line}")));
        for mount in items(spec, "volumeMounts") {
            let path = text(&mount["mountPath"]);
            let is_of_host = items(&pod["spec"], "volumes")
                .any(|volume| volume["name"] == mount["name"] && volume["hostPath"].is_object());
            let mut seen = Vec::new();
            if path == TOKEN || is_of_host {
                seen.push("is there".to_owned());
            } else {
                contents(Path::new(&format!("{root}{path}")), "", &mut seen);
            }
            lines.extend(seen.into_iter().map(|file| format!("{who}: {path}: {file}")));
        }
    }
    lines
}

/// The files at `path` and below it, without those of versions of a volume.
fn contents(path: &Path, relative: &str, lines: &mut Vec<String>) {
    if path.is_dir() {
        let names = fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.file_name());
        let mut names: Vec<_> = names.map(|name| name.to_string_lossy().into_owned()).collect();
        names.retain(|name| !name.starts_with(".."));
        names.sort();
        lines.extend(names.is_empty().then(|| format!("{relative} is empty").trim_start().to_owned()));
        for name in names {
            contents(&path.join(&name), format!("{relative}/{name}").trim_start_matches('/'), lines);
        }
    } else {
        let text: String = fs::read_to_string(path).unwrap_or_default().chars().take(FILE).collect();
        lines.push(format!("{relative} = {}", text.replace('\n', "\\n")).trim_start().to_owned());
    }
}

/// What containers have written that have ended.
fn logs(pod: &Value, logs: &Path) -> Vec<String> {
    let (metadata, status) = (&pod["metadata"], &pod["status"]);
    let dir = format!("{}_{}_{}", text(&metadata["namespace"]), name(pod), text(&metadata["uid"]));
    let all = ["initContainerStatuses", "containerStatuses"].into_iter().flat_map(|list| items(status, list));
    let ended = all.filter(|container| container["state"]["terminated"].is_object());
    let of_container = |container: &Value| {
        let who = text(&container["name"]);
        let log = fs::read_to_string(logs.join(&dir).join(who).join("0.log")).unwrap_or_default();
        let line = |line: &str| Some(format!("{}/{who}: {}", name(pod), line.splitn(4, ' ').nth(3)?));
        log.lines().filter_map(line).collect::<Vec<_>>()
    };
    ended.flat_map(of_container).collect()
}

fn service_line(service: &Service, set: &Set, version: usize, aliases: &Aliases) -> String {
    let is_chosen = |port: u64| {
        set.versions[version].iter().any(|it| items(&it["spec"], "ports").any(|its| its["nodePort"] == port))
    };
    let ports = service.ports.iter().map(|port| {
        let of_node = |number: u64| if is_chosen(number) { format!(":{number}") } else { ":PORT".to_owned() };
        let of_node = port.node_port.map(of_node).unwrap_or_default();
        let mut ends: Vec<_> = port.endpoints.iter().map(|end| aliases.normal(end)).collect();
        ends.sort();
        let ends = if ends.is_empty() { "nothing".to_owned() } else { ends.join(" ") };
        format!("; {} {}{of_node}/{} to {ends}", port.name, port.port, port.protocol)
    });
    format!("{}: {} {}{}", service.name, service.kind, service.addresses.join(","), ports.collect::<String>())
}

fn claims(set: &Set, snapshot: &Snapshot) -> Vec<String> {
    let prefix = format!("{}/", set.name);
    snapshot.claims.iter().filter_map(|claim| claim.strip_prefix(&prefix).map(str::to_owned)).collect()
}

/// What the events say of Jobs and CronJobs, each once. What a schedule removes depends on the moment.
fn jobs(set: &Set, snapshot: &Snapshot) -> Vec<String> {
    let events = snapshot.events.iter().filter(|event| event["involvedObject"]["namespace"] == set.name.as_str());
    let lines: BTreeSet<String> = events
        .filter_map(|event| {
            let (object, reason) = (&event["involvedObject"], text(&event["reason"]));
            let is_compared = match text(&object["kind"]) {
                "Job" => true,
                "CronJob" => ["SawCompletedJob", "SuccessfulCreate"].contains(&reason),
                _ => false,
            };
            is_compared.then(|| format!("{}/{}: {reason}", text(&object["kind"]), text(&object["name"])))
        })
        .collect();
    lines.into_iter().collect()
}

/// The questions whose answers are part of the view of a set: the names that its Services and its pods have.
pub fn questions(set: &Set, version: usize) -> Vec<Question> {
    let services = set.versions[version].iter().filter(|document| document["kind"] == "Service");
    let ask = |name: String, kind: Kind| Question { name: format!("{name}.{}.svc.cluster.local", set.name), kind };
    let mut questions = Vec::new();
    for service in services {
        let of_service = text(&service["metadata"]["name"]);
        questions.push(ask(of_service.to_owned(), Kind::Address));
        for port in items(&service["spec"], "ports").filter(|port| port["name"].is_string()) {
            let protocol = port["protocol"].as_str().unwrap_or("TCP").to_lowercase();
            questions.push(ask(format!("_{}._{protocol}.{of_service}", text(&port["name"])), Kind::Service));
        }
    }
    for document in &set.versions[version] {
        let (spec, template) = (&document["spec"], &document["spec"]["template"]["spec"]);
        if let ("StatefulSet", Some(service)) = (text(&document["kind"]), spec["serviceName"].as_str()) {
            let first = spec["ordinals"]["start"].as_u64().unwrap_or(0);
            let last = first + spec["replicas"].as_u64().unwrap_or(1);
            let name = text(&document["metadata"]["name"]);
            questions.extend((first..last).map(|at| ask(format!("{name}-{at}.{service}"), Kind::Address)));
        }
        if let (Some(host), Some(domain)) = (template["hostname"].as_str(), template["subdomain"].as_str()) {
            questions.push(ask(format!("{host}.{domain}"), Kind::Address));
        }
    }
    questions
}

/// The lines of those answers.
pub fn names(questions: &[Question], answers: &[Vec<String>], aliases: &Aliases) -> Vec<String> {
    let line = |(question, answers): (&Question, &Vec<String>)| {
        let mut answers: Vec<_> = answers.iter().map(|answer| aliases.normal(answer)).collect();
        answers.sort();
        let said = if answers.is_empty() { "nothing".to_owned() } else { answers.join(", ") };
        format!("{}: {said}", question.name)
    };
    let mut lines: Vec<_> = questions.iter().zip(answers).map(line).collect();
    lines.sort();
    lines
}

/// Whether a document makes pods that are replaced when its template changes.
pub fn is_rolled_out(document: &Value) -> bool {
    ["Deployment", "ReplicaSet", "StatefulSet", "DaemonSet"]
        .iter()
        .any(|kind| kind_and_name(document).starts_with(kind))
}
