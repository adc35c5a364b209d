//! Credentials with a pod's service account, as kubelet's `tokenAttributes` configures them (KEP 4412).
//!
//! Such a provider gets a token of the service account whose pod needs the image, and annotations of the account. Its
//! answers are cached for this account only.

use std::sync::Arc;

use limpet_model::service_account::{AccountOfPod, ServiceAccount, ServiceAccounts};
use std::collections::BTreeMap;

use limpet_model::pull_credential::PullCredential;

/// A provider's `tokenAttributes`, by the fields of kubelet's CredentialProviderConfig.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenAttributes {
    /// The only audience of the tokens.
    pub audience: String,
    /// For which pods answers are cached.
    pub cache: TokenCache,
    /// Whether the provider is skipped for a pod without a service account.
    pub require_service_account: bool,
    /// Annotations without which the provider is skipped.
    pub required_annotations: Vec<String>,
    /// Annotations that are passed on if the account has them.
    pub optional_annotations: Vec<String>,
}

/// kubelet's `cacheType`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenCache {
    /// Per token, which means per pod.
    Token,
    /// For all pods of a service account.
    ServiceAccount,
}

/// The account whose tokens providers get in a pull, and their issuer.
#[derive(Debug, Clone)]
pub struct PullAccount {
    /// The pod that needs the image.
    pub pod: AccountOfPod,
    pub issuer: Arc<dyn ServiceAccounts>,
}

/// The account for one provider: what its request contains, and for whom an answer is cached.
#[derive(Debug)]
pub(super) struct Identity<'a> {
    account: &'a PullAccount,
    uid: String,
    /// The annotations that the provider requires.
    pub(super) annotations: BTreeMap<String, String>,
    attributes: &'a TokenAttributes,
}

impl TokenAttributes {
    /// The account as this provider sees it; `None` if the provider is skipped.
    ///
    /// # Errors
    ///
    /// The account cannot be read.
    pub(super) async fn identity<'a>(&'a self, account: &'a PullAccount) -> Result<Option<Identity<'a>>, String> {
        let current = account.issuer.account(&account.pod).await;
        let ServiceAccount { uid, mut annotations } = current.map_err(|error| self.failed(account, &error))?;
        if self.required_annotations.iter().any(|key| !annotations.contains_key(key)) {
            return Ok(None);
        }
        annotations.retain(|key, _| self.required_annotations.contains(key) || self.optional_annotations.contains(key));
        Ok(Some(Identity { account, uid, annotations, attributes: self }))
    }

    fn failed(&self, account: &PullAccount, error: &str) -> String {
        let AccountOfPod { namespace, name, .. } = &account.pod;
        format!("service account {namespace}/{name}: {error}")
    }
}

impl Identity<'_> {
    /// The source that is recorded for a pull with its credentials.
    pub(super) fn source(&self) -> PullCredential {
        PullCredential::ServiceAccount(self.account.pod.identified(self.uid.clone()))
    }

    /// For whom an answer is cached: the account with what the provider sees of it, and its pod with `cacheType:
    /// Token`.
    pub(super) fn cache_key(&self) -> String {
        let pod = &self.account.pod;
        let of_token = (self.attributes.cache == TokenCache::Token).then_some(&*pod.pod_uid);
        serde_json::json!([pod.namespace, pod.name, self.uid, self.annotations, of_token]).to_string()
    }

    /// A token for the provider.
    ///
    /// # Errors
    ///
    /// No token was issued.
    pub(super) async fn token(&self) -> Result<String, String> {
        let token = self.account.issuer.token(&self.account.pod, &self.uid, &self.attributes.audience).await;
        token.map_err(|error| self.attributes.failed(self.account, &error))
    }

    /// Whether the token must not be used as a password: it would be cached for pods to which it is not bound.
    pub(super) fn forbids_token_as_password(&self) -> bool {
        self.attributes.cache != TokenCache::Token
    }
}
