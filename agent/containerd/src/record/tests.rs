//! Golden files with records in every format that was ever written: the current version reads each of them.
//!
//! When a new field changes what is written, the current format gets a file of its own, and old files stay unchanged.

use std::collections::BTreeMap;
use std::net::IpAddr;

use jiff::Timestamp;
use limpet_model::container::{ContainerUser, Exit};
use limpet_model::probe::ProbeKind;
use limpet_model::stop_signal::StopSignal;
use limpet_model::verdict::PodVerdict;
use serde_json::value::RawValue;

use super::*;

/// The first format, with only the required fields.
const FIRST: &str = include_str!("golden/1-first.json");
/// The format after probes were added, with every field.
const WITH_PROBES: &str = include_str!("golden/2-probes.json");
/// The format before restarts of all containers.
const WITH_RESIZE: &str = include_str!("golden/3-resize.json");
/// The format before the user was recorded.
const WITH_RESTARTS: &str = include_str!("golden/4-restart-all.json");
/// The format before values of objects.
const WITH_USER: &str = include_str!("golden/5-user.json");
/// The current format, with every field.
const PRESENT: &str = include_str!("golden/6-start-values.json");

fn golden(text: &str) -> HashMap<String, Any> {
    let parts: BTreeMap<String, &RawValue> = serde_json::from_str(text).unwrap();
    parts.into_iter().map(|(key, value)| (key.clone(), any(&key, value.get().as_bytes().to_vec()))).collect()
}

/// The contents of every golden file, in the fields of the first format.
fn first_identity() -> ContainerIdentity {
    ContainerIdentity {
        namespace: "default".into(),
        pod: "web-node".into(),
        uid: "0123".into(),
        container: "web".into(),
        init: true,
        attempt: 3,
        source: "file".into(),
        origin: "web.yaml".into(),
        fingerprint: "aa".into(),
        image: "docker.io/library/web:1".into(),
        image_digest: "sha256:00".into(),
        log_path: "/var/log/pods/x/web/3.log".into(),
        backoff_seconds: 0,
        pod_start: None,
        pod_ips: Vec::new(),
        stop_signal: StopSignal::default(),
        sandbox: None,
        pod_restarts: 0,
        resized_at: None,
        ephemeral: None,
        devices: Vec::new(),
        user: None,
        start_values: Default::default(),
    }
}

/// Every field, as in the newest golden file.
fn present() -> (ContainerIdentity, ContainerState, ProbeRecord) {
    let identity = ContainerIdentity {
        backoff_seconds: 20,
        pod_start: Some(Timestamp::UNIX_EPOCH),
        pod_ips: vec![IpAddr::from([10, 0, 0, 2]), "fd00::2".parse().unwrap()],
        stop_signal: StopSignal::parse("SIGQUIT").unwrap(),
        sandbox: Some("1".into()),
        pod_restarts: 2,
        resized_at: Some(Timestamp::from_second(2).unwrap()),
        user: Some(ContainerUser { uid: 7, gid: 8, groups: vec![8, 9] }),
        start_values: serde_json::from_str(r#"{"config_maps": "000102030405060708090a0b0c0d0e0f"}"#).unwrap(),
        ..first_identity()
    };
    let finished_at = Timestamp::from_millisecond(1500).unwrap();
    let exit = Exit { code: 137, reason: "Error".into(), message: "why".into(), finished_at };
    let verdict = Some(PodVerdict::deadline_exceeded());
    let state = ContainerState { started_at: Some(Timestamp::UNIX_EPOCH), exit: Some(exit), verdict };
    (identity, state, ProbeRecord { started: true, ready: true, failed: Some(ProbeKind::Liveness) })
}

#[test]
fn the_first_record_is_read_with_defaults() {
    let read = recorded(&golden(FIRST)).unwrap();
    assert_eq!((read.identity, read.state), (first_identity(), ContainerState::default()));
    assert_eq!((read.probes, &*read.manifest), (ProbeRecord::default(), &br#"{"kind": "Pod"}"#[..]));
}

#[test]
fn the_records_since_probes_came_are_read() {
    let (identity, state, probes) = present();
    let with_user = ContainerIdentity { start_values: Default::default(), ..identity };
    let with_restarts = ContainerIdentity { user: None, ..with_user.clone() };
    let with_resize = ContainerIdentity { pod_restarts: 0, ..with_restarts.clone() };
    let with_probes = ContainerIdentity { resized_at: None, ..with_resize.clone() };
    for (text, identity) in
        [(WITH_PROBES, with_probes), (WITH_RESIZE, with_resize), (WITH_RESTARTS, with_restarts), (WITH_USER, with_user)]
    {
        let read = recorded(&golden(text)).unwrap();
        assert_eq!((&read.identity, &read.state, read.probes), (&identity, &state, probes));
    }
}

#[test]
fn the_present_record_is_read_and_written_as_it_is_kept() {
    let (identity, state, probes) = present();
    let read = recorded(&golden(PRESENT)).unwrap();
    assert_eq!((&read.identity, &read.state, read.probes), (&identity, &state, probes));
    let mut written = extensions(&identity, br#"{"kind": "Pod"}"#);
    written.insert(EXTENSION_STATE.into(), state_extension(&state));
    written.insert(EXTENSION_PROBES.into(), probes_extension(&probes));
    let values = |extensions: &HashMap<String, Any>| -> BTreeMap<String, serde_json::Value> {
        extensions.iter().map(|(key, any)| (key.clone(), serde_json::from_slice(&any.value).unwrap())).collect()
    };
    assert_eq!(values(&written), values(&golden(PRESENT)), "the format has changed: keep it as a further golden file");
}

#[test]
fn a_record_without_a_part_is_named() {
    for (key, needed) in
        [(EXTENSION_MANIFEST, true), (EXTENSION_IDENTITY, true), (EXTENSION_STATE, true), (EXTENSION_PROBES, false)]
    {
        let mut extensions = golden(PRESENT);
        extensions.remove(key);
        let error = recorded(&extensions).err();
        assert_eq!(error.is_some_and(|error| error.contains(key)), needed, "{key}");
        extensions.insert(key.to_owned(), any(key, b"{".to_vec()));
        let damaged = recorded(&extensions).err();
        assert_eq!(damaged.is_some_and(|error| error.contains(key)), key != EXTENSION_MANIFEST, "{key}");
    }
}
