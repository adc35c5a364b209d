//! The values of ConfigMaps and Secrets that a container reads only when it starts: those in its environment, and those
//! of files that it mounts by `subPath`. A hash of them tells whether a container runs with what is true now.

use std::fmt;

use k8s_openapi::api::core::v1::{Container, KeyToPath, Volume, VolumeMount};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest, Sha256};

use crate::object::{ObjectKind, PodObjects};
use crate::pod::PodRecord;
use crate::pod::restart_on_change::RestartOnChange;

/// 128 bits of a hash.
#[derive(Clone, Copy, PartialEq, Eq)]
struct ValuesHash(u128);

impl fmt::Debug for ValuesHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl Serialize for ValuesHash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{self:?}"))
    }
}

impl<'de> Deserialize<'de> for ValuesHash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        u128::from_str_radix(&text, 16).map(Self).map_err(serde::de::Error::custom)
    }
}

/// Hashes of what one container reads at its start, for each kind of objects; `None` for a kind of which it reads nothing, or
/// of which something that it needs is missing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartValues {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    config_maps: Option<ValuesHash>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    secrets: Option<ValuesHash>,
}

impl StartValues {
    /// What a container that starts with these objects reads. The hashes of two pods differ although their values do not.
    pub fn new(pod: &PodRecord, container: &Container, objects: &PodObjects) -> Self {
        let hash = |kind| Reading::new(pod, kind, objects).container(pod, container);
        Self { config_maps: hash(ObjectKind::ConfigMap), secrets: hash(ObjectKind::Secret) }
    }

    /// Whether it reads nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether a container that has read `started` has to be restarted for these. What is missing restarts nothing: the
    /// container could not start without it.
    pub fn demand_restart(self, started: Self, wanted: RestartOnChange) -> bool {
        let differ = |now: Option<ValuesHash>, then: Option<ValuesHash>| now.zip(then).is_some_and(|(a, b)| a != b);
        wanted.config_maps && differ(self.config_maps, started.config_maps)
            || wanted.secrets && differ(self.secrets, started.secrets)
    }
}

/// Reads the values of one kind of objects.
struct Reading<'a> {
    kind: ObjectKind,
    objects: &'a PodObjects,
    digest: Sha256,
    reads_any: bool,
    is_complete: bool,
}

impl<'a> Reading<'a> {
    fn new(pod: &PodRecord, kind: ObjectKind, objects: &'a PodObjects) -> Self {
        let mut reading = Self { kind, objects, digest: Sha256::new(), reads_any: false, is_complete: true };
        reading.add(pod.uid.as_str().as_bytes());
        reading
    }

    fn container(mut self, pod: &PodRecord, container: &Container) -> Option<ValuesHash> {
        self.environment(container);
        for mount in container.volume_mounts.iter().flatten() {
            let volume = pod.spec().volumes.iter().flatten().find(|volume| volume.name == mount.name);
            if let Some((volume, path)) = volume.zip(SubPath::of_mount(mount)) {
                self.volume(volume, path);
            }
        }
        let (is_known, digest) = (self.reads_any && self.is_complete, self.digest.finalize());
        let half = digest.first_chunk::<16>().copied().map(u128::from_be_bytes);
        half.filter(|_| is_known).map(ValuesHash)
    }

    fn environment(&mut self, container: &Container) {
        for source in container.env_from.iter().flatten() {
            let reference = match (self.kind, &source.config_map_ref, &source.secret_ref) {
                (ObjectKind::ConfigMap, Some(map), _) => Some((&map.name, map.optional)),
                (ObjectKind::Secret, _, Some(secret)) => Some((&secret.name, secret.optional)),
                _ => None,
            };
            if let Some((name, optional)) = reference {
                self.object(name, optional, |_| true);
            }
        }
        for source in container.env.iter().flatten().filter_map(|variable| variable.value_from.as_ref()) {
            let reference = match (self.kind, &source.config_map_key_ref, &source.secret_key_ref) {
                (ObjectKind::ConfigMap, Some(map), _) => Some((&map.name, &map.key, map.optional)),
                (ObjectKind::Secret, _, Some(secret)) => Some((&secret.name, &secret.key, secret.optional)),
                _ => None,
            };
            if let Some((name, key, optional)) = reference {
                self.value(name, key, optional);
            }
        }
    }

    /// The files of a volume below a path.
    fn volume(&mut self, volume: &Volume, path: SubPath<'_>) {
        match self.kind {
            ObjectKind::ConfigMap => {
                if let Some(map) = &volume.config_map {
                    self.files(&map.name, map.items.as_deref(), map.optional, path);
                }
            }
            _ => {
                if let Some(secret) = &volume.secret {
                    let name = secret.secret_name.as_deref().unwrap_or_default();
                    self.files(name, secret.items.as_deref(), secret.optional, path);
                }
            }
        }
        for source in volume.projected.iter().flat_map(|projected| projected.sources.iter().flatten()) {
            match (self.kind, &source.config_map, &source.secret) {
                (ObjectKind::ConfigMap, Some(map), _) => {
                    self.files(&map.name, map.items.as_deref(), map.optional, path);
                }
                (ObjectKind::Secret, _, Some(secret)) => {
                    self.files(&secret.name, secret.items.as_deref(), secret.optional, path);
                }
                _ => {}
            }
        }
    }

    fn files(&mut self, name: &str, items: Option<&[KeyToPath]>, optional: Option<bool>, path: SubPath<'_>) {
        match items {
            Some(items) if !items.is_empty() => {
                for item in items.iter().filter(|item| path.contains(&item.path)) {
                    self.add(item.path.as_bytes());
                    self.value(name, &item.key, optional);
                }
            }
            _ => self.object(name, optional, |key| path.contains(key)),
        }
    }

    /// The values of an object whose keys are wanted.
    fn object(&mut self, name: &str, optional: Option<bool>, wants: impl Fn(&str) -> bool) {
        self.reads_any = true;
        let objects = self.objects;
        let Some(object) = objects.get(self.kind, name) else { return self.missing(name, optional) };
        self.add(name.as_bytes());
        for (key, entry) in object.data.iter().filter(|(key, _)| wants(key)) {
            self.add(key.as_bytes());
            self.add(entry.bytes.expose());
        }
    }

    /// One value of an object.
    fn value(&mut self, name: &str, key: &str, optional: Option<bool>) {
        self.reads_any = true;
        let objects = self.objects;
        match objects.get(self.kind, name).and_then(|object| object.data.get(key)) {
            Some(entry) => {
                self.add(name.as_bytes());
                self.add(key.as_bytes());
                self.add(entry.bytes.expose());
            }
            None => self.missing(name, optional),
        }
    }

    fn missing(&mut self, name: &str, optional: Option<bool>) {
        // An optional object that its source has not reported yet may exist.
        self.is_complete &= optional == Some(true) && !self.objects.has_unknown();
        self.add(name.as_bytes());
        self.add(b"");
    }

    /// Each part with its length, so that two lists of parts never have the same bytes.
    fn add(&mut self, part: &[u8]) {
        self.digest.update((part.len() as u64).to_be_bytes());
        self.digest.update(part);
    }
}

/// The part of a volume that a container mounts.
#[derive(Debug, Clone, Copy)]
enum SubPath<'a> {
    Known(&'a str),
    /// It is made of variables, so it may be any.
    Expression,
}

impl<'a> SubPath<'a> {
    /// `None`: the whole volume is mounted, and its files follow an edit without a restart.
    fn of_mount(mount: &'a VolumeMount) -> Option<Self> {
        let text = |path: &'a Option<String>| path.as_deref().filter(|path| !path.is_empty());
        text(&mount.sub_path).map(Self::Known).or(text(&mount.sub_path_expr).map(|_| Self::Expression))
    }

    fn contains(self, file: &str) -> bool {
        let names = |path: &'a str| path.split('/').filter(|name| !matches!(*name, "" | "."));
        match self {
            Self::Expression => true,
            Self::Known(path) => {
                let mut file = file.split('/');
                names(path).all(|name| file.next() == Some(name))
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;
    use crate::object::{ObjectKey, ObjectRecord, ObjectState};

    const BOTH: RestartOnChange = RestartOnChange { config_maps: true, secrets: true };

    fn pod() -> PodRecord {
        crate::fixtures::record_of_spec(json!({
            "containers": [
                {"name": "key", "image": "x",
                    "env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "map", "key": "a"}}}]},
                {"name": "all", "image": "x", "envFrom": [{"configMapRef": {"name": "map"}}]},
                {"name": "maybe", "image": "x", "envFrom": [{"configMapRef": {"name": "map", "optional": true}}]},
                {"name": "secret", "image": "x", "envFrom": [{"secretRef": {"name": "secret"}}]},
                {"name": "file", "image": "x",
                    "volumeMounts": [{"name": "v", "mountPath": "/a", "subPath": "./b"}]},
                {"name": "moved", "image": "x",
                    "volumeMounts": [{"name": "w", "mountPath": "/a", "subPath": "etc/x"}]},
                {"name": "made", "image": "x",
                    "volumeMounts": [{"name": "v", "mountPath": "/a", "subPathExpr": "$(A)"}]},
                {"name": "whole", "image": "x", "volumeMounts": [{"name": "v", "mountPath": "/a"}]},
                {"name": "none", "image": "x", "env": [{"name": "A", "value": "a"}]},
            ],
            "volumes": [
                {"name": "v", "configMap": {"name": "map"}},
                {"name": "w", "projected": {"sources": [
                    {"configMap": {"name": "map", "items": [{"key": "a", "path": "etc/x/a"}, {"key": "b", "path": "b"}]}},
                ]}},
            ],
        }))
    }

    fn objects(pod: &PodRecord, map: &Value, secret: &str) -> PodObjects {
        PodObjects::collect(pod, |key: &ObjectKey| {
            let texts: Vec<(String, String)> = match key.kind {
                ObjectKind::Secret => vec![("s".to_owned(), secret.to_owned())],
                _ if map.is_null() => return ObjectState::Absent,
                _ => serde_json::from_value::<std::collections::BTreeMap<_, _>>(map.clone())
                    .unwrap()
                    .into_iter()
                    .collect(),
            };
            ObjectState::Known(Arc::new(ObjectRecord::of_texts(key.clone(), "o", texts)))
        })
    }

    /// The containers that are restarted for a change of the objects.
    fn restarted(before: (&Value, &str), after: (&Value, &str), wanted: RestartOnChange) -> Vec<String> {
        let pod = pod();
        let [before, after] = [before, after].map(|(map, secret)| objects(&pod, map, secret));
        let is_restarted = |container: &&Container| {
            let [before, after] = [&before, &after].map(|objects| StartValues::new(&pod, container, objects));
            after.demand_restart(before, wanted)
        };
        pod.spec().containers.iter().filter(is_restarted).map(|container| container.name.clone()).collect()
    }

    #[test]
    fn only_values_that_do_not_reach_a_running_container_restart_it() {
        let (none, ab, xb, ax) =
            (json!(null), json!({"a": "1", "b": "2"}), json!({"a": "9", "b": "2"}), json!({"a": "1", "b": "9"}));
        let more = json!({"a": "1", "b": "2", "c": "3"});
        let cases: [(&Value, &Value, &[&str]); 6] = [
            (&ab, &ab, &[]),
            (&ab, &xb, &["key", "all", "maybe", "moved", "made"]),
            (&ab, &ax, &["all", "maybe", "file", "made"]),
            (&ab, &more, &["all", "maybe", "made"]),
            // Without it they could not start, except one.
            (&ab, &none, &["maybe"]),
            (&none, &ab, &["maybe"]),
        ];
        for (before, after, wanted) in cases {
            assert_eq!(restarted((before, "s"), (after, "s"), BOTH), wanted, "{before} {after}");
        }
        assert_eq!(restarted((&ab, "s"), (&ab, "t"), BOTH), ["secret"]);
        assert!(restarted((&ab, "s"), (&xb, "t"), RestartOnChange::default()).is_empty());
        let secrets = RestartOnChange { config_maps: false, secrets: true };
        assert_eq!(restarted((&ab, "s"), (&xb, "t"), secrets), ["secret"]);
    }

    #[test]
    fn what_is_not_known_yet_demands_nothing() {
        let pod = pod();
        let known = objects(&pod, &json!({"a": "1", "b": "2"}), "s");
        let unknown = PodObjects::unknown(&pod);
        for container in &pod.spec().containers {
            let [known, unknown] = [&known, &unknown].map(|objects| StartValues::new(&pod, container, objects));
            assert!(unknown.is_empty() && !unknown.demand_restart(known, BOTH), "{}", container.name);
        }
    }

    #[test]
    fn the_record_is_text() {
        let pod = pod();
        let container = &pod.spec().containers[1];
        let values = StartValues::new(&pod, container, &objects(&pod, &json!({"a": "1"}), "s"));
        let text = serde_json::to_string(&values).unwrap();
        assert!(text.starts_with(r#"{"config_maps":""#) && text.len() == 50, "{text}");
        assert_eq!(serde_json::from_str::<StartValues>(&text).unwrap(), values);
    }
}
