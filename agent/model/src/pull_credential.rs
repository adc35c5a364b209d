//! What an image was pulled with, as it is remembered and compared: where a credential is from, and a hash of it.

use sha2::{Digest as _, Sha256};

use crate::hex::hex;

/// What an image was pulled with, or what a pod may pull it with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PullCredential {
    /// Nothing, or what the node lends to all of its pods.
    Node,
    /// A Secret of the pod.
    Secret(PullSecret),
    /// A token of the pod's service account, by a credential provider.
    ServiceAccount(PullServiceAccount),
}

/// A Secret, and what it held for the image.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PullSecret {
    /// Its UID; empty for one of the node's own sources.
    pub uid: String,
    pub namespace: String,
    pub name: String,
    /// The hash of the credential, never empty.
    pub hash: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PullServiceAccount {
    /// Its UID; empty if the apiserver is not reachable.
    pub uid: String,
    pub namespace: String,
    pub name: String,
}

impl PullSecret {
    /// Whether both are the same object, whatever it held.
    pub fn is_same_object(&self, other: &Self) -> bool {
        (&self.uid, &self.namespace, &self.name) == (&other.uid, &other.namespace, &other.name)
    }
}

impl PullServiceAccount {
    /// Whether it is the recorded account, as far as that is known: its pod may start while there is no apiserver.
    pub fn may_be(&self, recorded: &Self) -> bool {
        let same_uid = self.uid.is_empty() || self.uid == recorded.uid;
        same_uid && (&self.namespace, &self.name) == (&recorded.namespace, &recorded.name)
    }
}

/// The hash of a credential: SHA-256 in hexadecimal digits.
pub fn hash(credential: &[u8]) -> String {
    hex(&Sha256::digest(credential))
}
