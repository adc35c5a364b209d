//! Credential providers: programs on the node that return credentials for images, called as kubelet calls them.
//!
//! A program reads a CredentialProviderRequest from stdin and prints a CredentialProviderResponse. Its answer is
//! cached in memory, for the image, its registry or all images, as long as the answer says.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{fmt, io};

use serde::Deserialize;
use tokio::process::Command;

use super::auth::{self, Candidate, Credentials};
use limpet_host::program;
use limpet_model::go_duration;
use limpet_model::image_name::ImageName;
use limpet_model::pull_credential::PullCredential;

mod service_account;

use service_account::Identity;
pub use service_account::{PullAccount, TokenAttributes, TokenCache};

/// The deadline of a program, as in kubelet.
const DEADLINE: Duration = Duration::from_secs(60);
/// The most bytes of a program's stderr in a message.
const MAX_COMPLAINT: usize = 512;
/// The most cached answers of a provider; beyond it all are dropped.
const MAX_CACHED: usize = 1024;
/// The key of answers for all images; no image has such a name.
const GLOBAL: &str = "<global>";

/// One entry of a CredentialProviderConfig. The debug format shows neither arguments nor variables, which may be secrets.
#[derive(Clone, PartialEq, Eq)]
pub struct CredentialProvider {
    /// The name, for messages.
    pub name: String,
    /// The program: the name in the directory of the providers.
    pub program: PathBuf,
    /// The images that it is called for: hosts with globs, optionally with a port and a path prefix.
    pub match_images: Vec<String>,
    /// How long an answer is cached if it does not contain a duration.
    pub default_cache_duration: Duration,
    /// The version of request and response: `credentialprovider.kubelet.k8s.io/v1`.
    pub api_version: String,
    /// The program's arguments.
    pub args: Vec<String>,
    /// Variables added to the agent's own environment.
    pub env: Vec<(String, String)>,
    /// The service account tokens that it gets; `None` if it gets none.
    pub token_attributes: Option<TokenAttributes>,
}

impl fmt::Debug for CredentialProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CredentialProvider").field("program", &self.program).finish_non_exhaustive()
    }
}

impl CredentialProvider {
    /// Whether the entry's `matchImages` matches the image, by kubelet's rules.
    fn matches(&self, image: &ImageName) -> bool {
        self.match_images.iter().any(|glob| auth::matches(glob, &image.host, &image.repository))
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        // As under kubelet, because cloud providers are configured through the environment.
        command.envs(program::whole_environment());
        command.args(&self.args).envs(self.env.iter().map(|(name, value)| (name, value)));
        command
    }
}

/// Patterns of images and the credentials for them.
pub(super) type Entries = Vec<(String, Credentials)>;

#[derive(Debug, Default)]
pub(super) struct ProvidedCredentials {
    /// The credentials, provider by provider.
    pub(super) entries: Vec<Candidate>,
    /// Why providers failed, without their output.
    pub(super) failures: Vec<String>,
}

/// The node's providers with their cached answers.
#[derive(Debug, Default)]
pub(super) struct CredentialProviders {
    all: Vec<Cached>,
}

#[derive(Debug)]
struct Cached {
    provider: CredentialProvider,
    cache: Mutex<Cache>,
}

impl CredentialProviders {
    pub(super) fn new(providers: Vec<CredentialProvider>) -> Self {
        let cached = |provider| Cached { provider, cache: Mutex::default() };
        Self { all: providers.into_iter().map(cached).collect() }
    }

    /// Whether a provider for the image gets service account tokens.
    pub(super) fn take_tokens(&self, image: &ImageName) -> bool {
        self.all.iter().any(|cached| cached.provider.token_attributes.is_some() && cached.provider.matches(image))
    }

    /// Calls every provider that matches the image, concurrently. A failure does not affect the others. `account` is
    /// that of the pod that needs the image.
    pub(super) async fn credentials(&self, image: &ImageName, account: Option<&PullAccount>) -> ProvidedCredentials {
        let asked = self.all.iter().filter(|cached| cached.provider.matches(image));
        let answers = futures_util::future::join_all(asked.map(|cached| cached.credentials(image, account))).await;
        let mut provided = ProvidedCredentials::default();
        for answer in answers {
            match answer {
                Ok((entries, source)) => {
                    provided.entries.extend(entries.into_iter().map(|(pattern, credentials)| Candidate {
                        pattern,
                        credentials,
                        source: source.clone(),
                    }))
                }
                Err(failure) => provided.failures.push(failure),
            }
        }
        provided
    }
}

impl Cached {
    /// The provider's credentials and their source: the account whose token it gets, else the node.
    async fn credentials(
        &self,
        image: &ImageName,
        account: Option<&PullAccount>,
    ) -> Result<(Entries, PullCredential), String> {
        let failed = |cause: String| format!("credential provider {}: {cause}", self.provider.name);
        let identity = match (&self.provider.token_attributes, account) {
            (Some(attributes), Some(account)) => match attributes.identity(account).await.map_err(failed)? {
                Some(identity) => Some(identity),
                None => return Ok((Entries::new(), PullCredential::Node)),
            },
            (Some(attributes), None) if attributes.require_service_account => {
                return Ok((Entries::new(), PullCredential::Node));
            }
            _ => None,
        };
        let subject = Subject {
            image: format!("{}/{}", image.host, image.repository),
            registry: image.host.clone(),
            account: identity.as_ref().map(Identity::cache_key).unwrap_or_default(),
        };
        let source = identity.as_ref().map_or(PullCredential::Node, Identity::source);
        if let Some(entries) = self.cache().get(&subject, Instant::now()) {
            return Ok((entries, source));
        }
        let answer = self.ask(&subject.image, identity.as_ref()).await.map_err(failed)?;
        self.cache().put(&answer, &subject, Instant::now());
        Ok((answer.entries, source))
    }

    async fn ask(&self, image: &str, identity: Option<&Identity<'_>>) -> Result<Answer, String> {
        let provider = &self.provider;
        let mut request = serde_json::json!({"kind": "CredentialProviderRequest", "apiVersion": provider.api_version, "image": image});
        let token = match identity {
            Some(identity) => Some(identity.token().await?),
            None => None,
        };
        if let (Some(identity), Some(token)) = (identity, &token) {
            request["serviceAccountToken"] = token.as_str().into();
            if !identity.annotations.is_empty() {
                request["serviceAccountAnnotations"] = serde_json::json!(identity.annotations);
            }
        }
        tracing::debug!(provider = provider.name, image, "requesting registry credentials");
        let output = program::run(provider.command(), request.to_string().as_bytes(), DEADLINE).await;
        let output = output.map_err(|error| not_run(&error))?;
        if !output.success {
            return Err(format!("it failed: {}", complaint(&output.stderr)));
        }
        let answer = Answer::parse(&output.stdout, provider)?;
        if let (Some(identity), Some(token)) = (identity, &token)
            && identity.forbids_token_as_password()
            && answer.entries.iter().any(|(_, credentials)| is_password(credentials, token))
        {
            let cause = "it answered with the service account's token as password, which tokenAttributes.cacheType: \
                         ServiceAccount does not permit";
            return Err(cause.to_owned());
        }
        Ok(answer)
    }

    fn cache(&self) -> std::sync::MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_password(credentials: &Credentials, token: &str) -> bool {
    matches!(credentials, Credentials::Password { password, .. } if password == token)
}

fn not_run(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::TimedOut => format!("killed, it took longer than {} s", DEADLINE.as_secs()),
        _ => format!("cannot be run: {error}"),
    }
}

/// The beginning of a program's stderr, on one line.
fn complaint(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let text: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match text.char_indices().nth(MAX_COMPLAINT) {
        _ if text.is_empty() => "it printed no error".to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// For which images an answer is cached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
enum Scope {
    Image,
    Registry,
    Global,
}

/// A program's answer.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    scope: Scope,
    lasts: Duration,
    entries: Entries,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TypeMeta {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
}

/// CredentialProviderResponse of all three versions.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Response {
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(rename = "kind")]
    _kind: String,
    cache_key_type: Option<String>,
    cache_duration: Option<String>,
    auth: Option<BTreeMap<String, Option<AuthConfig>>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct AuthConfig {
    username: Option<String>,
    password: Option<String>,
}

impl Answer {
    /// Parses an answer. An error's message quotes nothing of it, since it may contain credentials.
    fn parse(text: &[u8], provider: &CredentialProvider) -> Result<Self, String> {
        let at = |error: serde_json::Error| format!("its answer is invalid at {}:{}", error.line(), error.column());
        let meta: TypeMeta = serde_json::from_slice(text).map_err(at)?;
        if meta.api_version != provider.api_version {
            return Err(format!(
                "it answered with apiVersion {:?} instead of {:?}",
                meta.api_version, provider.api_version
            ));
        }
        if meta.kind != "CredentialProviderResponse" {
            return Err(format!("it answered with kind {:?} instead of CredentialProviderResponse", meta.kind));
        }
        let response: Response = serde_json::from_slice(text).map_err(at)?;
        let scope = match response.cache_key_type.as_deref().unwrap_or_default() {
            "Image" => Scope::Image,
            "Registry" => Scope::Registry,
            "Global" => Scope::Global,
            other => return Err(format!("its cacheKeyType {other:?} is none of Image, Registry, Global")),
        };
        let lasts = match response.cache_duration.as_deref() {
            None => provider.default_cache_duration,
            // A negative duration has already passed.
            Some(text) if text.starts_with('-') => Duration::ZERO,
            Some(text) => go_duration::parse(text).ok_or("its cacheDuration is not a duration such as 10m")?,
        };
        let auth = response.auth.unwrap_or_default().into_iter();
        let entries = auth.map(|(pattern, auth)| {
            let AuthConfig { username, password } = auth.unwrap_or_default();
            let (user, password) = (username.unwrap_or_default(), password.unwrap_or_default());
            (auth::normal_key(&pattern), Credentials::Password { user, password })
        });
        Ok(Self { scope, lasts, entries: entries.collect() })
    }
}

/// What credentials are needed for.
struct Subject {
    /// Registry and repository.
    image: String,
    registry: String,
    /// The service account by [`Identity::cache_key`]; empty if accounts do not matter.
    account: String,
}

/// Valid answers by image, registry or [`GLOBAL`], and by account.
#[derive(Debug, Default)]
struct Cache {
    answers: HashMap<(String, String), (Instant, Entries)>,
}

impl Cache {
    fn get(&self, subject: &Subject, now: Instant) -> Option<Entries> {
        let Subject { image, registry, account } = subject;
        let keys = [image, registry, GLOBAL].map(|key| (key.to_owned(), account.clone()));
        let answers = keys.iter().filter_map(|key| self.answers.get(key));
        answers.filter(|(until, _)| now <= *until).map(|(_, entries)| entries.clone()).next()
    }

    /// Caches the answer, if it has a lifetime, and drops expired ones.
    fn put(&mut self, answer: &Answer, subject: &Subject, now: Instant) {
        self.answers.retain(|_, (until, _)| now <= *until);
        if answer.lasts.is_zero() {
            return;
        }
        if self.answers.len() >= MAX_CACHED {
            self.answers.clear();
        }
        let key = match answer.scope {
            Scope::Image => &subject.image,
            Scope::Registry => &subject.registry,
            Scope::Global => GLOBAL,
        };
        // A duration beyond what the clock can hold is not cached.
        if let Some(until) = now.checked_add(answer.lasts) {
            self.answers.insert((key.to_owned(), subject.account.clone()), (until, answer.entries.clone()));
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
