//! `docs/fields.md`: every field of the Pod API with limpet's treatment of it, generated from the table of
//! [`super::unsupported`]. `LIMPET_UPDATE_DOCS=1 cargo test -p limpet-model fields` writes it again.

mod api;
mod views;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

use crate::pod::unsupported::{NEEDS_APISERVER, NO_EFFECT, NOT_ON_LINUX, REFUSED, TOLERATIONS, UsedIf};
use crate::taint::MEMORY_PRESSURE;

/// The parts of the page: a heading, the path above its fields, and the fields that have a separate part.
const PARTS: &[(&str, &str)] = &[
    ("Pod", "spec"),
    ("Containers and init containers", "spec.C"),
    ("Security context of a container", "spec.C.securityContext"),
    ("Security context of the pod", "spec.securityContext"),
    ("Volumes", "spec.volumes[]"),
];

const WORKS: &str = "works";
/// Works, and warns without an apiserver.
const GATES: &str = "spec.readinessGates";
/// Works, except in one combination.
const USERS: &str = "spec.hostUsers";
/// Works in a running pod, but in no manifest.
const EPHEMERAL: &str = "spec.ephemeralContainers";

/// Fields that work, and that kubelet 1.37 ignores unless a feature gate is enabled: how their paths begin and end,
/// and the gate.
const BEHIND_GATES: &[(&str, &str, &str)] = &[
    ("spec.C", ".lifecycle.stopSignal", "ContainerStopSignals"),
    ("spec.volumes[]", ".emptyDir.mode", "EmptyDirVolumeMode"),
    ("spec.volumes[]", ".defaultUser", "AtomicWriteVolumeUserFields"),
    ("spec.volumes[]", ".user", "AtomicWriteVolumeUserFields"),
];

/// How many lines the list of refusals may have: one screen.
const MAX_REFUSALS: usize = 24;

const INTRODUCTION: &str = "# Fields of a Pod

What limpet makes of every field of a Pod's `spec`, as of the Kubernetes API 1.37. A field that is refused stops the Pod, with this
field's name: no Pod runs without what it asks for. `limpet validate FILE` says the same of a manifest of yours.

This page is generated from the table that validation uses.
";

#[test]
fn the_page_of_fields_equals_the_table() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/fields.md");
    let text = page_text();
    if std::env::var_os("LIMPET_UPDATE_DOCS").is_some() {
        std::fs::write(&page, &text).unwrap();
    }
    let written = std::fs::read_to_string(&page).unwrap_or_default();
    assert!(
        written == text,
        "docs/fields.md is not what the table says: LIMPET_UPDATE_DOCS=1 cargo test -p limpet-model fields"
    );
}

#[test]
fn every_pattern_of_the_tables_names_a_field() {
    let fields = api::fields();
    let patterns =
        REFUSED.iter().map(|(pattern, ..)| *pattern).chain(NEEDS_APISERVER.iter().map(|(pattern, _)| *pattern));
    let silent = NO_EFFECT.iter().map(|(pattern, _)| *pattern);
    for pattern in patterns.chain(silent.filter(|pattern| pattern.starts_with("spec."))) {
        // `limits` has free keys; init containers have the fields of the others.
        let field = pattern.strip_suffix(".ephemeral-storage").unwrap_or(pattern).replace("initContainers[]", "C");
        assert!(fields.contains(&field), "{pattern} is no field of the API");
    }
}

#[test]
fn the_refusals_fit_on_a_screen() {
    let lines = refusals().lines().count();
    assert!(lines <= MAX_REFUSALS, "{lines} lines");
    for (pattern, _, why) in REFUSED {
        let end = pattern.rsplit('.').next().unwrap();
        assert!(refusals().lines().any(|line| line.contains(why) && line.contains(end)), "{pattern}");
    }
}

/// What is refused: the fields of each reason.
fn refusals() -> String {
    let mut reasons: Vec<&str> = Vec::new();
    for (.., why) in REFUSED {
        if !reasons.contains(why) {
            reasons.push(why);
        }
    }
    let mut text = "\n## Refused\n\nWhatever is not in this list works, or needs what its line below names.\n\n\
                    | field | why it is refused |\n|---|---|\n"
        .to_owned();
    for reason in reasons {
        let of_reason = REFUSED.iter().filter(|(.., why)| *why == reason);
        let names = of_reason.map(|(pattern, used, _)| format!("`{}`{}", short(pattern), when(*used)));
        let names: BTreeSet<String> = names.collect();
        let _ = writeln!(text, "| {} | {reason} |", names.into_iter().collect::<Vec<_>>().join(", "));
    }
    text
}

/// The field's path without `spec` and, for a volume, its list; one name for the three probes, and for the two hooks.
fn short(pattern: &str) -> String {
    let path = pattern.strip_prefix("spec.").unwrap_or(pattern);
    let path = path.strip_prefix("volumes[].").unwrap_or(path).replace("C.", "containers[].");
    let alike = [("livenessProbe", "*Probe"), ("readinessProbe", "*Probe"), ("startupProbe", "*Probe")];
    let hooks = [("postStart", "*"), ("preStop", "*")];
    alike.iter().chain(&hooks).fold(path, |path, (name, short)| path.replace(name, short))
}

fn page_text() -> String {
    let mut page = INTRODUCTION.to_owned() + &refusals();
    let fields = api::fields();
    for (heading, root) in PARTS {
        let _ = write!(
            page,
            "\n## {heading}\n\nBelow `{}`. A field inside another is listed where it differs.\n\n| field | |\n|---|---|\n",
            root.replace(".C", ".containers[]")
        );
        let inside = fields.iter().filter_map(|field| Some((field, below(field, root)?)));
        for (field, name) in inside.filter(|(field, _)| is_shown(field, root)) {
            let _ = writeln!(page, "| `{name}` | {} |", verdict(field));
        }
    }
    page
}

/// The field's path below `root`.
fn below<'f>(field: &'f str, root: &str) -> Option<&'f str> {
    field.strip_prefix(root)?.strip_prefix('.')
}

/// Whether the field belongs to the part of `root`, and not to another part or below a field that is refused as a
/// whole. A field further down is shown if it is treated differently from the one above.
fn is_shown(field: &str, root: &str) -> bool {
    let is_deep = below(field, root).is_some_and(|name| name.contains('.'));
    if is_deep && verdict(field) == WORKS {
        return false;
    }
    let elsewhere = PARTS.iter().any(|(_, other)| other.len() > root.len() && below(field, other).is_some());
    !elsewhere && !is_decided_above(field)
}

/// Whether a field above it is refused, needs an apiserver or has no effect as a whole.
fn is_decided_above(field: &str) -> bool {
    let decided = |pattern: &str| field.strip_prefix(pattern).is_some_and(|rest| rest.starts_with(['.', '[']));
    let whole = REFUSED
        .iter()
        .filter(|(_, used, _)| matches!(used, UsedIf::Always | UsedIf::Filled))
        .map(|(pattern, ..)| *pattern);
    let silent = NO_EFFECT.iter().map(|(pattern, _)| *pattern);
    let whole = whole.chain(NEEDS_APISERVER.iter().map(|(pattern, _)| *pattern)).chain(silent);
    whole.chain(NOT_ON_LINUX.iter().copied()).any(decided)
}

fn verdict(field: &str) -> String {
    if let Some((_, used, why)) = REFUSED.iter().find(|(pattern, ..)| *pattern == field) {
        return format!("refused{}, because {why}", when(*used));
    }
    if let Some((_, what)) = NEEDS_APISERVER.iter().find(|(pattern, _)| *pattern == field) {
        return format!("needs an apiserver: {what}");
    }
    if field == GATES {
        return "works; without an apiserver the pod is never ready, as with kubelet".to_owned();
    }
    if field == USERS {
        return "works; `false` on a node that has what it needs: [pods](pods.md#users-of-its-own)".to_owned();
    }
    if field == EPHEMERAL {
        return "added to a running pod: `limpet debug`, `kubectl debug`".to_owned();
    }
    if NOT_ON_LINUX.contains(&field) {
        return "no effect on Linux".to_owned();
    }
    if field == TOLERATIONS {
        return format!("without an apiserver: only `{MEMORY_PRESSURE}`, of a pushed pod");
    }
    let is_gated = |(root, end, _): &&(&str, &str, &str)| field.starts_with(root) && field.ends_with(end);
    if let Some((.., gate)) = BEHIND_GATES.iter().find(is_gated) {
        return format!("works; kubelet needs its feature gate `{gate}`");
    }
    match NO_EFFECT.iter().find(|(pattern, _)| *pattern == field) {
        Some((_, UsedIf::Unless(texts))) => format!("without an apiserver: only {}", texts.map_join()),
        Some(_) => "no effect without an apiserver".to_owned(),
        None => WORKS.to_owned(),
    }
}

/// The condition of a refusal, in words.
fn when(used: UsedIf) -> String {
    match used {
        UsedIf::Always => String::new(),
        UsedIf::Filled => " unless empty".to_owned(),
        UsedIf::Unless(texts) => format!(" unless {}", texts.map_join()),
    }
}

trait MapJoin {
    fn map_join(&self) -> String;
}

impl MapJoin for [&str] {
    fn map_join(&self) -> String {
        self.iter().map(|text| format!("`{text}`")).collect::<Vec<_>>().join(" or ")
    }
}
