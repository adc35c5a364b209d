//! Decides whether an image may be used: asks `imagePolicy` and, when an image is pulled, containerd's image
//! verifiers.
//!
//! An image is judged by name and digest. An accepted image is not judged again while its keys stay the same. Without
//! a policy and verifiers, nothing is requested and nothing is stored.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use containerd_client::types;
use limpet_host::blocking;
use limpet_image_policy::key::{MAX_KEY_FILE, VerificationKey};
use limpet_image_policy::policy::ImagePolicy;
use limpet_image_policy::verdict::{Evidence, RuleKey, Verdict, judge, judge_name};
use limpet_model::image_name::ImageName;

use super::content::Store;
use super::document;
use super::error::ImageError;
use super::local::lease_id;
use super::registry::Session;
use super::signatures::{self, FetchedSignatures};
use super::{Images, PullAccess};
use crate::image_verifier::{self, Judgement, VerifierSettings};

/// The most cached verdicts.
const MAX_REMEMBERED: usize = 256;

#[derive(Debug, Default)]
pub(super) struct Admission {
    policy: Option<ImagePolicy>,
    verifiers: Option<VerifierSettings>,
    /// The keys with which an image, by name and digest, was accepted.
    accepted: Mutex<HashMap<(String, String), String>>,
}

/// The current keys of a rule.
struct Keys {
    keys: Vec<RuleKey>,
    /// A digest of all of them.
    fingerprint: String,
}

/// A judgement that still needs the signatures in the registry.
struct Pending {
    keys: Keys,
    /// The evidence that is stored on the node.
    evidence: Evidence,
}

/// The state of a judgement without the registry.
enum LocalJudgement {
    Judged(Verdict),
    Accepted,
    Fetch(Pending),
}

/// The result of `limpet images verify`.
#[derive(Debug)]
pub struct ImageReport {
    /// The image's normalized name.
    pub image: String,
    /// The digest to which the name resolves.
    pub digest: String,
    /// Whether it is on the node.
    pub is_local: bool,
    /// The verdict of `imagePolicy`; `None` without one.
    pub verdict: Option<Verdict>,
    /// The verdict of containerd's image verifiers; `None` without any.
    pub verifiers: Option<Judgement>,
}

impl Admission {
    pub(super) fn new(policy: Option<ImagePolicy>, verifiers: Option<VerifierSettings>) -> Self {
        Self { policy, verifiers, accepted: Mutex::default() }
    }

    /// Judges an image during its pull, when only its first document is stored under `lease`.
    pub(super) async fn pulled(
        &self,
        store: &Store,
        session: &Session,
        target: &types::Descriptor,
        lease: &str,
    ) -> Result<(), ImageError> {
        let name = &session.name;
        if let Some(Judgement::Refused(cause)) = self.ask_verifiers(name, target).await {
            return Err(ImageError::Refused { image: name.whole.clone(), cause });
        }
        let Some(policy) = &self.policy else { return Ok(()) };
        match self.begin(policy, store, name, &target.digest).await? {
            LocalJudgement::Accepted => Ok(()),
            LocalJudgement::Judged(verdict) => result(name, &verdict),
            LocalJudgement::Fetch(pending) => {
                let fetched = signatures::fetch(session, &target.digest).await;
                let fetched = fetched.unwrap_or_else(|error| FetchedSignatures::none(&error));
                let verdict = self.finish(policy, name, &target.digest, pending, &fetched);
                if verdict.accepted {
                    let kept = signatures::keep(store, &target.digest, &fetched, lease).await;
                    kept.map_err(|error| ImageError::call(&name.whole, error))?;
                }
                result(name, &verdict)
            }
        }
    }

    /// Judges as far as possible without the registry.
    async fn begin(
        &self,
        policy: &ImagePolicy,
        store: &Store,
        name: &ImageName,
        digest: &str,
    ) -> Result<LocalJudgement, ImageError> {
        let rule = policy.rule(name);
        if let Some(verdict) = judge_name(rule, name) {
            return Ok(LocalJudgement::Judged(verdict));
        }
        let keys = read_keys(rule.requirement.keys()).await;
        if self.is_accepted(name, digest, &keys.fingerprint) {
            return Ok(LocalJudgement::Accepted);
        }
        let evidence = signatures::kept(store, digest).await;
        let evidence = evidence.map_err(|error| ImageError::call(&name.whole, error))?;
        if judge(rule, digest, &keys.keys, &evidence).accepted {
            self.remember(name, digest, &keys.fingerprint);
            return Ok(LocalJudgement::Accepted);
        }
        Ok(LocalJudgement::Fetch(Pending { keys, evidence }))
    }

    /// Judges with the signatures from the registry.
    fn finish(
        &self,
        policy: &ImagePolicy,
        name: &ImageName,
        digest: &str,
        pending: Pending,
        fetched: &FetchedSignatures,
    ) -> Verdict {
        let Pending { keys, mut evidence } = pending;
        fetched.add_to(&mut evidence);
        let verdict = judge(policy.rule(name), digest, &keys.keys, &evidence);
        if verdict.accepted {
            tracing::info!(image = name.whole, digest, rule = verdict.rule, "the image's signature is verified");
            self.remember(name, digest, &keys.fingerprint);
        }
        verdict
    }

    /// The verifiers' verdict; `None` if there are none.
    async fn ask_verifiers(&self, name: &ImageName, target: &types::Descriptor) -> Option<Judgement> {
        let settings = self.verifiers.as_ref()?;
        let descriptor = image_verifier::descriptor(&target.media_type, &target.digest, target.size);
        let judged = image_verifier::judge(settings, &name.whole, &target.digest, &descriptor).await;
        let failed =
            |error| Judgement::Refused(format!("image verifiers in {}: {error}", settings.directory.display()));
        Some(judged.unwrap_or_else(failed)).filter(|judgement| *judgement != Judgement::Accepted(String::new()))
    }

    fn is_accepted(&self, name: &ImageName, digest: &str, fingerprint: &str) -> bool {
        let image = (name.whole.clone(), digest.to_owned());
        self.remembered().get(&image).is_some_and(|keys| keys == fingerprint)
    }

    fn remember(&self, name: &ImageName, digest: &str, fingerprint: &str) {
        let mut accepted = self.remembered();
        if accepted.len() >= MAX_REMEMBERED {
            accepted.clear();
        }
        accepted.insert((name.whole.clone(), digest.to_owned()), fingerprint.to_owned());
    }

    fn remembered(&self) -> MutexGuard<'_, HashMap<(String, String), String>> {
        self.accepted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn result(name: &ImageName, verdict: &Verdict) -> Result<(), ImageError> {
    match verdict.accepted {
        true => Ok(()),
        false => Err(ImageError::Refused { image: name.whole.clone(), cause: verdict.to_string() }),
    }
}

/// Reads the key files of a rule. A key that cannot be read accepts nothing.
async fn read_keys(files: &[PathBuf]) -> Keys {
    let mut keys = Vec::with_capacity(files.len());
    let mut all = Vec::new();
    for file in files {
        let path = file.clone();
        let read = blocking::run(file.clone(), blocking::DEADLINE, move |_| {
            let mut bytes = Vec::new();
            std::io::Read::read_to_end(&mut std::io::Read::take(std::fs::File::open(path)?, MAX_KEY_FILE), &mut bytes)?;
            Ok(bytes)
        });
        let key = match read.await.and_then(|read: std::io::Result<Vec<u8>>| read) {
            Ok(bytes) => {
                all.extend_from_slice(document::sha256(&bytes).as_bytes());
                VerificationKey::from_pem(&bytes).map_err(|error| error.to_string())
            }
            Err(error) => Err(format!("cannot be read: {error}")),
        };
        keys.push(RuleKey { file: file.clone(), key });
    }
    Keys { keys, fingerprint: document::sha256(&all) }
}

impl Images {
    /// Judges a local image by `imagePolicy`, before a container is created from it. Requests its signatures from its
    /// registry only if those stored with it do not suffice.
    ///
    /// # Errors
    ///
    /// `Refused`, with rule and keys; `InvalidName`; `Runtime` while containerd does not answer.
    pub async fn admit(&self, reference: &str, digest: &str, access: &PullAccess) -> Result<(), ImageError> {
        let admission = &self.inner.admission;
        let Some(policy) = &admission.policy else { return Ok(()) };
        let name = ImageName::parse(reference)?;
        match admission.begin(policy, &self.inner.store, &name, digest).await? {
            LocalJudgement::Accepted => Ok(()),
            LocalJudgement::Judged(verdict) => result(&name, &verdict),
            LocalJudgement::Fetch(pending) => {
                let fetched = self.fetch_signatures(&name, digest, access).await;
                let verdict = admission.finish(policy, &name, digest, pending, &fetched);
                if verdict.accepted {
                    self.keep_signatures(&name, digest, &fetched).await?;
                }
                result(&name, &verdict)
            }
        }
    }

    /// Judges an image, local or not, by policy and verifiers.
    ///
    /// # Errors
    ///
    /// `InvalidName`; the error of pulling its manifest, if it is not local; `Runtime`.
    pub async fn report(&self, reference: &str) -> Result<ImageReport, ImageError> {
        let name = ImageName::parse(reference)?;
        let call = |error| ImageError::call(&name.whole, error);
        let record = self.record(&name).await?;
        let is_local = record.is_some();
        let target = match record {
            Some(target) => target,
            None => self.remote_descriptor(&name).await?,
        };
        let admission = &self.inner.admission;
        let verdict = match &admission.policy {
            None => None,
            Some(policy) => Some(match judge_name(policy.rule(&name), &name) {
                Some(verdict) => verdict,
                None => {
                    let keys = read_keys(policy.rule(&name).requirement.keys()).await;
                    let mut evidence = signatures::kept(&self.inner.store, &target.digest).await.map_err(call)?;
                    let access = PullAccess::default();
                    self.fetch_signatures(&name, &target.digest, &access).await.add_to(&mut evidence);
                    judge(policy.rule(&name), &target.digest, &keys.keys, &evidence)
                }
            }),
        };
        let verifiers = admission.ask_verifiers(&name, &target).await;
        Ok(ImageReport { image: name.whole, digest: target.digest, is_local, verdict, verifiers })
    }

    /// The signatures in the registry, with the first credentials that it accepts, or why there are none.
    async fn fetch_signatures(&self, name: &ImageName, digest: &str, access: &PullAccess) -> FetchedSignatures {
        let provided = self.inner.credentials(name, access).await;
        let mut turn = 0;
        loop {
            let session = self.inner.session(name.clone(), &access.secrets, &provided, turn).await;
            let (session, others) = match session {
                Ok(session) => session,
                Err(error) => return FetchedSignatures::none(&error),
            };
            turn += 1;
            match signatures::fetch(&session, digest).await {
                Err(ImageError::Unauthorized { .. }) if others && turn < super::MAX_CREDENTIALS_TRIED => {}
                Err(error) => return FetchedSignatures::none(&error),
                Ok(fetched) => return fetched,
            }
        }
    }

    /// The registry's descriptor for a name, with the node's credentials.
    async fn remote_descriptor(&self, name: &ImageName) -> Result<types::Descriptor, ImageError> {
        let access = PullAccess::default();
        let provided = self.inner.credentials(name, &access).await;
        let (session, _) = self.inner.session(name.clone(), &access.secrets, &provided, 0).await?;
        let fetched = session.manifest(name.target.as_str()).await?;
        Ok(types::Descriptor {
            media_type: fetched.media_type,
            digest: fetched.digest,
            size: i64::try_from(fetched.bytes.len()).unwrap_or(i64::MAX),
            ..Default::default()
        })
    }

    async fn keep_signatures(
        &self,
        name: &ImageName,
        digest: &str,
        fetched: &FetchedSignatures,
    ) -> Result<(), ImageError> {
        let store = &self.inner.store;
        let call = |error| ImageError::call(&name.whole, error);
        let lease = lease_id("signature", &name.whole);
        store.create_lease(&lease, &name.whole).await.map_err(call)?;
        let kept = signatures::keep(store, digest, fetched, &lease).await;
        store.delete_lease(&lease).await.map_err(call)?;
        kept.map_err(call)
    }
}
