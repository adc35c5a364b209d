//! The content of a configMap, secret, downwardAPI or projected volume: a pure function of the pod and its objects.
//! These are kubelet's rules: without `items` every key becomes a file, with them only those do; a missing key is an
//! error unless it is `optional`; of two sources with the same path the later one wins.

use std::collections::BTreeMap;
use std::path::{Component, Path};

use k8s_openapi::api::core::v1::{
    ClusterTrustBundleProjection, Container, DownwardAPIVolumeFile, KeyToPath, PodCertificateProjection,
    ServiceAccountTokenProjection, Volume, VolumeProjection,
};

use super::VolumeError;
use limpet_model::object::pod_certificate::{self, PodCertificateDemand};
use limpet_model::object::token::{self, TokenDemand};
use limpet_model::object::trust_bundle::{self, TrustBundleDemand};
use limpet_model::object::{ObjectKind, PodObjects, SecretBytes};
use limpet_model::pod::PodRecord;
use limpet_model::pod::downward::{NodeLimits, metadata_field, resource_field};

/// Kubernetes' permissions if there is no `defaultMode`.
const DEFAULT_MODE: i32 = 0o644;
/// A token's permissions before the volume's group is given access.
const PRIVATE_MODE: i32 = 0o600;
/// The most bytes in all files of a volume. Each object has at most one MiB, but a projection may name many.
const MAX_BYTES: usize = 32 << 20;
const MAX_PATH: usize = 4096;
const MAX_NAME: usize = 255;

/// One file to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PayloadFile {
    pub bytes: SecretBytes,
    pub mode: u32,
    /// Its owner; `None` for the agent's own user.
    pub user: Option<u32>,
}

/// Files by path, relative to the volume.
pub(super) type Payload = BTreeMap<String, PayloadFile>;

/// The inputs of a payload.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sources<'a> {
    pub pod: &'a PodRecord,
    pub objects: &'a PodObjects,
    pub node: NodeLimits,
}

/// The payload of `volume`; `None` if its kind has none.
pub(super) fn payload(volume: &Volume, sources: Sources<'_>) -> Result<Option<Payload>, VolumeError> {
    let mut builder = Builder { volume: &volume.name, sources, mode: DEFAULT_MODE, user: None, files: Payload::new() };
    if let Some(map) = &volume.config_map {
        (builder.mode, builder.user) = (map.default_mode.unwrap_or(DEFAULT_MODE), map.default_user);
        builder.object(ObjectKind::ConfigMap, &map.name, map.items.as_deref(), map.optional)?;
    } else if let Some(secret) = &volume.secret {
        (builder.mode, builder.user) = (secret.default_mode.unwrap_or(DEFAULT_MODE), secret.default_user);
        let name = secret.secret_name.as_deref().unwrap_or_default();
        builder.object(ObjectKind::Secret, name, secret.items.as_deref(), secret.optional)?;
    } else if let Some(downward) = &volume.downward_api {
        (builder.mode, builder.user) = (downward.default_mode.unwrap_or(DEFAULT_MODE), downward.default_user);
        builder.downward(downward.items.as_deref())?;
    } else if let Some(projected) = &volume.projected {
        (builder.mode, builder.user) = (projected.default_mode.unwrap_or(DEFAULT_MODE), projected.default_user);
        for (index, source) in projected.sources.iter().flatten().enumerate() {
            builder.projection(volume, index, source)?;
        }
    } else {
        return Ok(None);
    }
    builder.finish().map(Some)
}

struct Builder<'a> {
    volume: &'a str,
    sources: Sources<'a>,
    mode: i32,
    user: Option<i64>,
    files: Payload,
}

impl Builder<'_> {
    fn projection(&mut self, volume: &Volume, index: usize, source: &VolumeProjection) -> Result<(), VolumeError> {
        if let Some(map) = &source.config_map {
            self.object(ObjectKind::ConfigMap, &map.name, map.items.as_deref(), map.optional)
        } else if let Some(secret) = &source.secret {
            self.object(ObjectKind::Secret, &secret.name, secret.items.as_deref(), secret.optional)
        } else if let Some(downward) = &source.downward_api {
            self.downward(downward.items.as_deref())
        } else if let Some(token) = &source.service_account_token {
            self.token(token)
        } else if let Some(bundle) = &source.cluster_trust_bundle {
            self.trust_bundle(bundle)
        } else if let Some(certificate) = &source.pod_certificate {
            self.certificate(certificate, &PodCertificateDemand::new(self.sources.pod, volume, index).name())
        } else {
            Err(self.unsupported("a projected source of no kind"))
        }
    }

    /// Adds the certificates of a bundle. As in kubelet, the file is empty if an optional bundle does not exist.
    fn trust_bundle(&mut self, projection: &ClusterTrustBundleProjection) -> Result<(), VolumeError> {
        let (kind, name) =
            (ObjectKind::TrustBundle, TrustBundleDemand::from_projection(projection).map(|demand| demand.name()));
        let object = name.as_ref().and_then(|name| self.sources.objects.get(kind, name));
        let bytes = match object.and_then(|object| trust_bundle::value(object)) {
            Some(bytes) => bytes.clone(),
            None if projection.optional == Some(true) => SecretBytes::new(Vec::new()),
            None => {
                let name = name.or_else(|| projection.signer_name.clone()).unwrap_or_default();
                return Err(VolumeError::NoObject { volume: self.volume.to_owned(), kind, name });
            }
        };
        self.add_private(&projection.path, bytes, projection.user)
    }

    /// Adds key and certificates, in one file or in separate ones.
    fn certificate(&mut self, projection: &PodCertificateProjection, name: &str) -> Result<(), VolumeError> {
        let kind = ObjectKind::PodCertificate;
        let Some(object) = self.sources.objects.get(kind, name) else {
            return Err(VolumeError::NoObject { volume: self.volume.to_owned(), kind, name: name.to_owned() });
        };
        let bundle = pod_certificate::bundle(object);
        let (key, chain) = bundle.map_err(|why| self.unsupported(&why))?;
        let both = || SecretBytes::new([key.expose(), chain.expose()].concat());
        for (path, bytes) in [
            (&projection.credential_bundle_path, both()),
            (&projection.key_path, key.clone()),
            (&projection.certificate_chain_path, chain.clone()),
        ] {
            if let Some(path) = path.as_deref().filter(|path| !path.is_empty()) {
                self.add_private(path, bytes, projection.user)?;
            }
        }
        Ok(())
    }

    /// Adds a token, a certificate or a trust bundle, with kubelet's permissions: if all containers have the same
    /// `runAsUser` it belongs to that user, and if there is an owner or an `fsGroup` only those can read it, whatever
    /// `defaultMode` says.
    fn add_private(&mut self, path: &str, bytes: SecretBytes, user: Option<i64>) -> Result<(), VolumeError> {
        let spec = self.sources.pod.spec();
        let owner = user.or(self.user).or_else(|| common_user(self.sources.pod));
        let group = spec.security_context.as_ref().and_then(|context| context.fs_group);
        let mode = (owner.is_some() || group.is_some()).then_some(PRIVATE_MODE);
        self.add(path, bytes, mode, owner)
    }

    fn token(&mut self, token: &ServiceAccountTokenProjection) -> Result<(), VolumeError> {
        let pod = self.sources.pod;
        let (kind, name) = (ObjectKind::ServiceAccountToken, TokenDemand::new(pod, token).name());
        let Some(bytes) = self.sources.objects.get(kind, &name).and_then(|object| token::value(object)).cloned() else {
            return Err(VolumeError::NoObject { volume: self.volume.to_owned(), kind, name });
        };
        self.add_private(&token.path, bytes, token.user)
    }

    fn object(
        &mut self,
        kind: ObjectKind,
        name: &str,
        items: Option<&[KeyToPath]>,
        optional: Option<bool>,
    ) -> Result<(), VolumeError> {
        let optional = optional == Some(true);
        let Some(object) = self.sources.objects.get(kind, name) else {
            let missing = || VolumeError::NoObject { volume: self.volume.to_owned(), kind, name: name.to_owned() };
            return if optional { Ok(()) } else { Err(missing()) };
        };
        let items = items.unwrap_or_default();
        if items.is_empty() {
            return object.data.iter().try_for_each(|(key, entry)| self.add(key, entry.bytes.clone(), None, None));
        }
        for item in items {
            match object.data.get(&item.key) {
                Some(entry) => self.add(&item.path, entry.bytes.clone(), item.mode, item.user)?,
                None if optional => {}
                None => {
                    let (volume, key) = (self.volume.to_owned(), item.key.clone());
                    return Err(VolumeError::NoKey { volume, kind, key });
                }
            }
        }
        Ok(())
    }

    fn downward(&mut self, items: Option<&[DownwardAPIVolumeFile]>) -> Result<(), VolumeError> {
        for item in items.unwrap_or_default() {
            let text = if let Some(field) = &item.field_ref {
                self.field(&field.field_path).ok_or_else(|| self.no_field(&field.field_path))?
            } else if let Some(resource) = &item.resource_field_ref {
                let amount = resource_field(self.sources.pod, None, resource, self.sources.node);
                amount.ok_or_else(|| self.no_field(&resource.resource))?
            } else {
                return Err(self.unsupported("a downwardAPI item needs fieldRef or resourceFieldRef"));
            };
            self.add(&item.path, SecretBytes::new(text.into_bytes()), item.mode, item.user)?;
        }
        Ok(())
    }

    /// A field of the pod's metadata. Whole maps are lines of `key="value"`.
    fn field(&self, path: &str) -> Option<String> {
        let metadata = &self.sources.pod.pod.metadata;
        match path {
            "metadata.labels" => Some(lines(metadata.labels.as_ref())),
            "metadata.annotations" => Some(lines(metadata.annotations.as_ref())),
            path => metadata_field(self.sources.pod, path),
        }
    }

    fn no_field(&self, path: &str) -> VolumeError {
        self.unsupported(&format!("{path:?} is not available as a file"))
    }

    fn unsupported(&self, reason: &str) -> VolumeError {
        VolumeError::Unsupported { volume: self.volume.to_owned(), reason: reason.to_owned() }
    }

    fn add(&mut self, path: &str, bytes: SecretBytes, mode: Option<i32>, user: Option<i64>) -> Result<(), VolumeError> {
        if !is_inside(path) {
            return Err(self.unsupported(&format!("{path:?} is no path inside a volume")));
        }
        let mode = u32::try_from(mode.unwrap_or(self.mode)).unwrap_or_default() & 0o777;
        let user = user.or(self.user).map(u32::try_from).transpose();
        let user = user.map_err(|_| self.unsupported("user is not a user id"))?;
        let clean: Vec<&str> = path.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
        self.files.insert(clean.join("/"), PayloadFile { bytes, mode, user });
        Ok(())
    }

    fn finish(self) -> Result<Payload, VolumeError> {
        let size: usize = self.files.values().map(|file| file.bytes.len()).sum();
        if size > MAX_BYTES {
            return Err(self.unsupported(&format!("its files are larger than {} MiB together", MAX_BYTES >> 20)));
        }
        // `a!` sorts between `a` and `a/b`, so the whole map is searched and not only the neighbour.
        let above = |path: &str| {
            path.match_indices('/').find(|(at, _)| self.files.contains_key(&path[..*at])).map(|(at, _)| at)
        };
        if let Some((path, at)) = self.files.keys().find_map(|path| Some((path, above(path)?))) {
            return Err(self.unsupported(&format!("{:?} cannot be a file and a directory ({path:?})", &path[..at])));
        }
        Ok(self.files)
    }
}

/// The `runAsUser` of all containers, if they have the same one (kubelet's `FsUserFrom`).
fn common_user(pod: &PodRecord) -> Option<i64> {
    let of_pod = pod.spec().security_context.as_ref().and_then(|context| context.run_as_user);
    let user_of = |container: &Container| container.security_context.as_ref().and_then(|context| context.run_as_user);
    let mut users = pod.containers().map(|container| user_of(container).or(of_pod));
    let first = users.next()??;
    users.all(|user| user == Some(first)).then_some(first)
}

/// Whether the path is relative, without `..`, and does not collide with the names of the swap.
fn is_inside(path: &str) -> bool {
    let mut names = Path::new(path).components().filter(|part| *part != Component::CurDir).peekable();
    path.len() <= MAX_PATH
        && names.peek().is_some()
        && !path.starts_with("..")
        && !path.trim_start_matches("./").starts_with("..")
        && names.all(|part| matches!(part, Component::Normal(name) if name.len() <= MAX_NAME))
}

/// A map in kubelet's form: sorted lines of `key="value"`, quoted as Go quotes.
fn lines(map: Option<&BTreeMap<String, String>>) -> String {
    let line = |(key, value): (&String, &String)| format!("{key}={}", quoted(value));
    map.into_iter().flatten().map(line).collect::<Vec<_>>().join("\n")
}

fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\u{7}' => quoted.push_str("\\a"),
            '\u{8}' => quoted.push_str("\\b"),
            '\u{b}' => quoted.push_str("\\v"),
            '\u{c}' => quoted.push_str("\\f"),
            c if c < ' ' || c == '\u{7f}' => quoted.push_str(&format!("\\x{:02x}", u32::from(c))),
            c if c.is_control() => quoted.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
pub(super) mod tests;
