//! The checked names of a pod and its parts: its key (namespace and name), its UID, which identifies one incarnation,
//! and the names of its containers and volumes.
//!
//! Each of them becomes the name of a file, a directory or a cgroup. The constructors refuse names that would lead
//! out of the directory in which it is made, so a value of these types is safe wherever it came from.

use std::fmt;
use std::sync::Arc;

use crate::hex::hex;
use crate::pod::name::{is_dns_label, is_dns_subdomain};

/// The longest UID in bytes.
const MAX_UID: usize = 128;

/// A text that is not a valid name of its kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    #[error("must be a DNS label: lower-case letters, digits and -, at most 63 characters")]
    Namespace,
    #[error("must be a DNS subdomain: lower-case letters, digits, - and ., at most 253 characters")]
    Pod,
    /// Of a pod's incarnation.
    #[error("must be letters, digits, -, _ and ., beginning with a letter or digit, at most 128 characters")]
    Uid,
    #[error("must be a DNS label: lower-case letters, digits and -, at most 63 characters")]
    Container,
    #[error("must be a DNS label: lower-case letters, digits and -, at most 63 characters")]
    Volume,
}

/// Namespace and name. A static pod's name already ends with `-<node name>`.
///
/// Cheap to clone, and ordered by namespace, then name. Both parts obey Kubernetes' rules for names, so a key is safe
/// as part of a file name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodKey {
    namespace: Arc<str>,
    name: Arc<str>,
}

impl PodKey {
    /// Makes a key.
    ///
    /// # Errors
    ///
    /// The namespace is not a DNS label, or the name is not a DNS subdomain.
    pub fn parse(namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Result<Self, NameError> {
        let (namespace, name) = (namespace.into(), name.into());
        if !is_dns_label(&namespace) {
            return Err(NameError::Namespace);
        }
        if !is_dns_subdomain(&name) {
            return Err(NameError::Pod);
        }
        Ok(Self { namespace, name })
    }

    /// Makes a key for a test.
    ///
    /// # Panics
    /// When [`Self::parse`] fails.
    #[cfg(any(test, feature = "fixtures"))]
    #[track_caller]
    pub fn new(namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        let (namespace, name) = (namespace.into(), name.into());
        match Self::parse(Arc::clone(&namespace), Arc::clone(&name)) {
            Ok(key) => key,
            Err(error) => panic!("{namespace}/{name}: {error}"),
        }
    }

    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Display for PodKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl fmt::Debug for PodKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A pod's UID: 32 hexadecimal digits for a static pod, or the manifest's own.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodUid(Arc<str>);

impl PodUid {
    /// Takes a UID.
    ///
    /// # Errors
    ///
    /// It is not safe as the name of a directory and of a cgroup.
    pub fn parse(uid: impl Into<Arc<str>>) -> Result<Self, NameError> {
        let uid = uid.into();
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        let is_safe = uid.len() <= MAX_UID
            && uid.bytes().all(plain)
            && uid.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric());
        if is_safe { Ok(Self(uid)) } else { Err(NameError::Uid) }
    }

    /// Takes a UID for a test.
    ///
    /// # Panics
    /// When [`Self::parse`] fails.
    #[cfg(any(test, feature = "fixtures"))]
    #[track_caller]
    pub fn new(uid: impl Into<Arc<str>>) -> Self {
        let uid = uid.into();
        match Self::parse(Arc::clone(&uid)) {
            Ok(uid) => uid,
            Err(error) => panic!("{uid}: {error}"),
        }
    }

    /// The UID with these bytes as hexadecimal digits.
    pub(crate) fn of_digest(digest: &[u8]) -> Self {
        Self(Arc::from(hex(digest)))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PodUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for PodUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A container's name, which also names the directories of its logs and of its termination messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContainerName<'a>(&'a str);

impl<'a> ContainerName<'a> {
    /// Takes a container's name.
    ///
    /// # Errors
    ///
    /// It is not a DNS label.
    pub fn parse(name: &'a str) -> Result<Self, NameError> {
        if is_dns_label(name) { Ok(Self(name)) } else { Err(NameError::Container) }
    }

    pub fn as_str(self) -> &'a str {
        self.0
    }
}

/// A volume's name, which also names its directory below that of its pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VolumeName<'a>(&'a str);

impl<'a> VolumeName<'a> {
    /// Takes a volume's name.
    ///
    /// # Errors
    ///
    /// It is not a DNS label.
    pub fn parse(name: &'a str) -> Result<Self, NameError> {
        if is_dns_label(name) { Ok(Self(name)) } else { Err(NameError::Volume) }
    }

    pub fn as_str(self) -> &'a str {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNSAFE: [&str; 10] = ["", "/", "..", ".", "../a", "a/b", "/etc", "a\0b", "a\nb", "a b"];

    #[test]
    fn a_name_that_leaves_its_directory_is_none() {
        for name in UNSAFE {
            assert_eq!(PodKey::parse("default", name), Err(NameError::Pod), "{name:?}");
            assert_eq!(PodKey::parse(name, "web"), Err(NameError::Namespace), "{name:?}");
            assert_eq!(PodUid::parse(name), Err(NameError::Uid), "{name:?}");
            assert_eq!(ContainerName::parse(name), Err(NameError::Container), "{name:?}");
            assert_eq!(VolumeName::parse(name), Err(NameError::Volume), "{name:?}");
        }
    }

    #[test]
    fn a_name_has_a_longest_length() {
        let name = |length: usize| "a".repeat(length);
        assert!(PodUid::parse(name(128)).is_ok() && PodUid::parse(name(129)).is_err());
        assert!(PodKey::parse(name(63), name(253)).is_ok());
        assert!(PodKey::parse(name(64), "a").is_err() && PodKey::parse("a", name(254)).is_err());
        assert!(ContainerName::parse(&name(63)).is_ok() && ContainerName::parse(&name(64)).is_err());
        assert!(VolumeName::parse(&name(63)).is_ok() && VolumeName::parse(&name(64)).is_err());
    }

    #[test]
    fn uids_of_manifests_and_of_apiservers_are_accepted() {
        for uid in ["0123456789abcdef0123456789abcdef", "0d2f3b51-6c0e-4f7a-9d0b-4c9d3f6a1e70", "a.b_c-1", "A"] {
            assert_eq!(PodUid::parse(uid).map(|uid| uid.to_string()), Ok(uid.to_owned()));
        }
    }
}
