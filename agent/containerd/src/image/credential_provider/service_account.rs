//! Credentials of a pod's service account: what kubelet's `tokenAttributes` configures (KEP 4412).
//!
//! A provider that has them gets a token of the service account whose pod needs the image, and annotations of that
//! account; its answers are cached for that account alone.

use std::sync::Arc;

use limpet_model::service_account::{AccountOfPod, ServiceAccount, ServiceAccounts};
use std::collections::BTreeMap;

use limpet_model::pull_credential::PullCredential;

/// A provider's `tokenAttributes`, by the fields of kubelet's CredentialProviderConfig.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenAttributes {
    /// The only audience of the tokens.
    pub audience: String,
    /// What answers are cached for.
    pub cache: TokenCache,
    /// Whether the provider is left out for a pod without a service account.
    pub require_service_account: bool,
    /// Annotations of the account without which the provider is left out.
    pub required_annotations: Vec<String>,
    /// Annotations that are passed on if the account has them.
    pub optional_annotations: Vec<String>,
}

/// kubelet's `cacheType`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenCache {
    /// Answers are for one token: for one pod.
    Token,
    /// Answers are for all pods of a service account.
    ServiceAccount,
}

/// Whose tokens providers get in a pull, and who issues them.
#[derive(Debug, Clone)]
pub struct PullAccount {
    /// The pod that needs the image.
    pub pod: AccountOfPod,
    /// Who issues its tokens.
    pub issuer: Arc<dyn ServiceAccounts>,
}

/// The account for one provider: what its request says of it, and for whom an answer is cached.
#[derive(Debug)]
pub(super) struct Identity<'a> {
    account: &'a PullAccount,
    uid: String,
    /// The annotations that the provider requires.
    pub(super) annotations: BTreeMap<String, String>,
    attributes: &'a TokenAttributes,
}

impl TokenAttributes {
    /// The account as this provider sees it; `None`: the provider is left out.
    ///
    /// # Errors
    /// The account cannot be read.
    pub(super) async fn identity<'a>(&'a self, account: &'a PullAccount) -> Result<Option<Identity<'a>>, String> {
        let found = account.issuer.account(&account.pod).await;
        let ServiceAccount { uid, mut annotations } = found.map_err(|error| self.failed(account, &error))?;
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
    /// What a pull with its credentials is remembered by.
    pub(super) fn source(&self) -> PullCredential {
        PullCredential::ServiceAccount(self.account.pod.identified(self.uid.clone()))
    }

    /// For whom an answer is cached: the account with what the provider sees of it, and its pod where tokens count.
    pub(super) fn cache_key(&self) -> String {
        let pod = &self.account.pod;
        let of_token = (self.attributes.cache == TokenCache::Token).then_some(&*pod.pod_uid);
        serde_json::json!([pod.namespace, pod.name, self.uid, self.annotations, of_token]).to_string()
    }

    /// A token for the provider.
    ///
    /// # Errors
    /// None is issued.
    pub(super) async fn token(&self) -> Result<String, String> {
        let token = self.account.issuer.token(&self.account.pod, &self.uid, &self.attributes.audience).await;
        token.map_err(|error| self.attributes.failed(self.account, &error))
    }

    /// Whether a password that is the token itself must not be used: it would be cached for pods that it is not bound to.
    pub(super) fn forbids_token_as_password(&self) -> bool {
        self.attributes.cache != TokenCache::Token
    }
}
