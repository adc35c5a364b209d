//! What an image was pulled with, as it is remembered and compared: where a credential is from, and its hash.

use sha2::{Digest as _, Sha256};

use crate::hex::hex;

/// What an image was pulled with, or what a pod may pull it with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PullCredential {
    /// Nothing, or what the node provides to all of its pods.
    Node,
    /// A Secret of the pod.
    Secret(PullSecret),
    /// A token of the pod's service account, by a credential provider.
    ServiceAccount(PullServiceAccount),
}

/// A Secret, and the credential that it had for the image.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PullSecret {
    /// Its UID; empty for one of the node's own sources.
    pub uid: String,
    pub namespace: String,
    pub name: String,
    pub hash: CredentialHash,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PullServiceAccount {
    /// Its UID; empty if the apiserver is not reachable.
    pub uid: String,
    pub namespace: String,
    pub name: String,
}

/// A hash that recognizes a credential. When it is remembered it gets its own salt, so that it cannot be looked up in
/// tables, and does not reveal that two nodes or Secrets have the same password.
///
/// As text it is `<SHA-256>`, or `<salt>$<SHA-256 of the salt and that>`, in hexadecimal digits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CredentialHash(String);

/// Random bytes for one hash.
pub type Salt = [u8; 16];

impl CredentialHash {
    /// Without a salt, for comparison.
    pub fn new(credential: &[u8]) -> Self {
        Self(hex(&Sha256::digest(credential)))
    }

    /// From the remembered text: with a salt, or of an earlier version without one.
    pub fn from_text(text: String) -> Self {
        Self(text)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn is_salted(&self) -> bool {
        self.0.contains('$')
    }

    /// With this salt, unless it already has one.
    #[must_use]
    pub fn salted(self, salt: &Salt) -> Self {
        if self.is_salted() { self } else { self.with_salt(&hex(salt)) }
    }

    fn with_salt(&self, salt: &str) -> Self {
        let digest = Sha256::new().chain_update(salt).chain_update("$").chain_update(&self.0).finalize();
        Self(format!("{salt}${}", hex(&digest)))
    }

    /// Whether both are hashes of one credential. Two that both have salts must be equal.
    pub fn matches(&self, other: &Self) -> bool {
        let salt_of = |hash: &Self| hash.0.split_once('$').map(|(salt, _)| salt.to_owned());
        match (salt_of(self), salt_of(other)) {
            (Some(salt), None) => *self == other.with_salt(&salt),
            (None, Some(salt)) => self.with_salt(&salt) == *other,
            _ => self == other,
        }
    }
}

impl PullCredential {
    /// Whether both are from the same place and are the same credential.
    pub fn matches(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Secret(secret), Self::Secret(other)) => {
                secret.is_same_object(other) && secret.hash.matches(&other.hash)
            }
            (credential, other) => credential == other,
        }
    }
}

impl PullSecret {
    /// Whether both are the same object, regardless of its content.
    pub fn is_same_object(&self, other: &Self) -> bool {
        (&self.uid, &self.namespace, &self.name) == (&other.uid, &other.namespace, &other.name)
    }
}

impl PullServiceAccount {
    /// Whether it may be the recorded account. Its UID may be unknown, because its pod can start while there is no
    /// apiserver.
    pub fn may_be(&self, recorded: &Self) -> bool {
        let same_uid = self.uid.is_empty() || self.uid == recorded.uid;
        same_uid && (&self.namespace, &self.name) == (&recorded.namespace, &recorded.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_salted_hash_recognizes_its_credential_and_shows_no_equal_ones() {
        let (first, other) = (CredentialHash::new(b"pass"), CredentialHash::new(b"word"));
        let salted = first.clone().salted(&[1; 16]);
        assert!(salted.is_salted() && !first.is_salted());
        assert!(!salted.as_str().contains(first.as_str()));
        assert!(salted.matches(&first) && first.matches(&salted) && !salted.matches(&other) && !other.matches(&salted));
        assert_ne!(first.clone().salted(&[2; 16]), salted, "the same password elsewhere");
        assert_eq!(salted.clone().salted(&[2; 16]), salted, "the salt stays");
        assert_eq!(CredentialHash::from_text(salted.as_str().to_owned()), salted);
        assert!(first.matches(&CredentialHash::from_text(first.as_str().to_owned())), "of an earlier version");
    }
}
