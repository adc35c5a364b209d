//! Service accounts, as the programs that give credentials for images request their tokens.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;

use crate::pull_credential::PullServiceAccount;

/// An answer of the issuer.
pub type IssuedFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What is known of a service account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceAccount {
    pub uid: String,
    pub annotations: BTreeMap<String, String>,
}

/// Reads service accounts and issues their tokens: an apiserver.
pub trait ServiceAccounts: fmt::Debug + Send + Sync {
    /// The account of the pod. An error is one line for people.
    fn account<'a>(&'a self, pod: &'a AccountOfPod) -> IssuedFuture<'a, Result<ServiceAccount, String>>;

    /// A token of the account with this UID, bound to the pod. An error is one line for people.
    fn token<'a>(
        &'a self,
        pod: &'a AccountOfPod,
        uid: &'a str,
        audience: &'a str,
    ) -> IssuedFuture<'a, Result<String, String>>;
}

/// A pod, and the service account it runs as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccountOfPod {
    pub namespace: String,
    pub pod: String,
    pub pod_uid: String,
    pub name: String,
}

impl AccountOfPod {
    /// The account with this UID.
    pub fn identified(&self, uid: String) -> PullServiceAccount {
        PullServiceAccount { uid, namespace: self.namespace.clone(), name: self.name.clone() }
    }
}
