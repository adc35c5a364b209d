//! Whether a pod may use an image that is on the node: kubelet's `KubeletEnsureSecretPulledImages`.
//!
//! An image that was pulled with credentials of a pod is for the pods that have them. Any other pod has to pull it
//! again first, which the registry permits or not. The rules are those of kubelet's `pkg/kubelet/images/pullmanager`.

use limpet_model::image_name::without_tag;
use limpet_model::pull_credential::{PullCredential, Salt};

/// How many credentials are remembered for one name of an image, and how many names. The oldest are dropped.
const MAX_REMEMBERED: usize = 100;

/// kubelet's `imagePullCredentialsVerificationPolicy`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum VerificationPolicy {
    /// All pods may use images that are present.
    NeverVerify,
    /// All pods may use images that the agent has not pulled.
    #[default]
    NeverVerifyPreloadedImages,
    /// All pods may use listed images.
    NeverVerifyAllowlistedImages(Allowlist),
    /// A pod needs the credentials of an image's pull, or a pull of its own, whatever image it is.
    AlwaysVerify,
}

impl VerificationPolicy {
    /// Its name, as it is configured.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::NeverVerify => "NeverVerify",
            Self::NeverVerifyPreloadedImages => "NeverVerifyPreloadedImages",
            Self::NeverVerifyAllowlistedImages(_) => "NeverVerifyAllowlistedImages",
            Self::AlwaysVerify => "AlwaysVerify",
        }
    }

    /// The patterns of its list.
    pub fn allowlist(&self) -> &[String] {
        match self {
            Self::NeverVerifyAllowlistedImages(list) => &list.patterns,
            _ => &[],
        }
    }

    /// Whether a pod's right to `image` is verified. `pulled`: the agent has pulled it.
    fn verifies(&self, image: &str, pulled: bool) -> bool {
        match self {
            Self::NeverVerify => false,
            Self::NeverVerifyPreloadedImages => pulled,
            Self::NeverVerifyAllowlistedImages(list) => !list.contains(image),
            Self::AlwaysVerify => true,
        }
    }
}

/// kubelet's `preloadedImagesVerificationAllowlist`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Allowlist {
    /// As they are written.
    patterns: Vec<String>,
}

impl Allowlist {
    /// Adds an image without tag and digest, or a prefix that ends with `/*`.
    ///
    /// # Errors
    ///
    /// What is wrong with it, in kubelet's words.
    pub fn add(&mut self, pattern: &str) -> Result<(), String> {
        let begin = pattern.strip_suffix("/*");
        if pattern != pattern.trim() {
            return Err(format!("leading/trailing spaces are not allowed: {pattern}"));
        } else if pattern.is_empty() {
            return Err(format!("the supplied pattern is too short: {pattern}"));
        } else if begin.unwrap_or(pattern).contains('*') {
            return Err(format!("not a valid wildcard pattern, only patterns ending with '/*' are allowed: {pattern}"));
        } else if begin == Some("") {
            return Err("at least registry hostname is required".to_owned());
        } else if begin.is_none() {
            let image =
                without_tag(pattern).map_err(|error| format!("failed to parse as an image name: {}", error.cause))?;
            if image != pattern {
                return Err(format!("neither tag nor digest is accepted in an image reference: {pattern}"));
            }
        }
        self.patterns.push(pattern.to_owned());
        Ok(())
    }

    fn contains(&self, image: &str) -> bool {
        let image = without_tag(image).unwrap_or(image);
        self.patterns.iter().any(|pattern| match pattern.strip_suffix('*') {
            Some(begin) => image.starts_with(begin),
            None => image == pattern,
        })
    }
}

/// What is remembered about an image that the agent has pulled: its credentials by the image's name, without tag and
/// digest. If a name has none, it is only known that the image was pulled.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PulledImage {
    /// In the order in which they were added.
    pub names: Vec<(String, Vec<PullCredential>)>,
}

impl PulledImage {
    /// Records a successful pull of `image`, named as in a Pod. Returns whether that is new.
    pub fn add(&mut self, image: &str, credential: PullCredential) -> bool {
        let Ok(name) = without_tag(image) else { return false };
        let index = self.names.iter().position(|(known, _)| known == name).unwrap_or_else(|| {
            push(&mut self.names, (name.to_owned(), Vec::new()));
            self.names.len() - 1
        });
        let known = &mut self.names[index].1;
        let is_same = |known: &PullCredential| match (known, &credential) {
            (PullCredential::Secret(known), PullCredential::Secret(new)) => known.is_same_object(new),
            (known, new) => known == new,
        };
        if known.contains(&PullCredential::Node) || known.iter().any(|known| known.matches(&credential)) {
            return false;
        }
        if credential == PullCredential::Node {
            known.clear();
        }
        match known.iter_mut().find(|known| is_same(known)) {
            Some(known) => *known = credential,
            None => push(known, credential),
        }
        true
    }

    /// Gives each hash that has no salt its own. Returns whether there was any.
    pub fn salt(&mut self, mut salt: impl FnMut() -> Salt) -> bool {
        let mut changed = false;
        for credential in self.names.iter_mut().flat_map(|(_, credentials)| credentials) {
            if let PullCredential::Secret(secret) = credential
                && !secret.hash.is_salted()
            {
                secret.hash = std::mem::take(&mut secret.hash).salted(&salt());
                changed = true;
            }
        }
        changed
    }

    /// Whether any pod could have pulled the content, by whatever name.
    fn is_for_all(&self) -> bool {
        self.names.iter().any(|(_, credentials)| credentials.contains(&PullCredential::Node))
    }
}

fn push<T>(all: &mut Vec<T>, new: T) {
    if all.len() >= MAX_REMEMBERED {
        all.remove(0);
    }
    all.push(new);
}

/// A pull that was begun. It is not known whether it completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PullIntent;

/// Who may use an image that is present.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImageAccess {
    /// Every pod.
    All,
    /// Pods with one of these credentials. Every other pod has to pull it.
    Holders(Vec<PullCredential>),
}

/// Who may use `image`, named as in a Pod. `record` is what is remembered about its content; `intended`: a pull was
/// begun of which the end is not known.
pub fn access(policy: &VerificationPolicy, image: &str, record: Option<&PulledImage>, intended: bool) -> ImageAccess {
    if !policy.verifies(image, record.is_some() || intended) || record.is_some_and(PulledImage::is_for_all) {
        return ImageAccess::All;
    }
    let name = without_tag(image).ok();
    let names = record.map(|record| record.names.iter()).into_iter().flatten();
    let holders = names.filter(|(known, _)| Some(known.as_str()) == name).flat_map(|(_, holders)| holders.clone());
    ImageAccess::Holders(holders.collect())
}

/// The credential that makes a pod one of the `holders`; `None` if it is not one. One that is not among them must be
/// remembered: a Secret with a new password, or another Secret with a known one.
pub fn holder<'a>(holders: &[PullCredential], pod: &'a [PullCredential]) -> Option<&'a PullCredential> {
    pod.iter().find(|credential| {
        holders.iter().any(|known| match (*credential, known) {
            (PullCredential::Secret(credential), PullCredential::Secret(known)) => {
                credential.hash.matches(&known.hash) || credential.is_same_object(known)
            }
            (PullCredential::ServiceAccount(credential), PullCredential::ServiceAccount(known)) => {
                credential.may_be(known)
            }
            _ => false,
        })
    })
}

#[cfg(test)]
mod tests;
