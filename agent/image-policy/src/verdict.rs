//! Whether an image may run: the verdict of its rule, with what each key and each signature contributes.

use std::fmt;
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use limpet_model::image_name::ImageName;

use crate::key::VerificationKey;
use crate::policy::{Requirement, RuleOfImage, has_digest};
use crate::signature::{Signature, SignatureForm};
use crate::{sigstore_bundle, simple_signing};

/// A key file of a rule, as read.
#[derive(Debug)]
pub struct RuleKey {
    pub file: PathBuf,
    /// The key, or why the file has none.
    pub key: Result<VerificationKey, String>,
}

/// What is known of the signatures of an image.
#[derive(Debug, Default)]
pub struct Evidence {
    /// Those that could be read.
    pub signatures: Vec<Signature>,
    /// Why others may be missing.
    pub problems: Vec<String>,
}

/// Whether an image may run, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// The rule, for messages.
    pub rule: String,
    /// What the rule requires: `allow`, `digest`, `cosign`, `reject`.
    pub requirement: &'static str,
    pub accepted: bool,
    /// One per key of the rule, in its order.
    pub keys: Vec<KeyVerdict>,
    /// Why the image is refused.
    pub cause: Option<String>,
}

/// Whether one key has signed the image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyVerdict {
    pub file: PathBuf,
    pub accepted: bool,
    /// Which signature it has made, or why it counts for nothing.
    pub detail: String,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.rule, self.requirement)?;
        match &self.cause {
            Some(cause) => write!(f, ": {cause}"),
            None => Ok(()),
        }
    }
}

/// Judges by what needs no signature; `None` if the rule asks for one.
pub fn judge_name(rule: RuleOfImage<'_>, name: &ImageName) -> Option<Verdict> {
    let cause = match rule.requirement {
        Requirement::Allow => None,
        Requirement::Digest if has_digest(name) => None,
        Requirement::Digest => Some(format!(
            "the reference has a tag; name the image by its digest: {}/{}@sha256:…",
            name.host, name.repository
        )),
        Requirement::Reject => Some("no rule allows the image".to_owned()),
        Requirement::Cosign(_) => return None,
    };
    Some(Verdict {
        rule: rule.to_string(),
        requirement: rule.requirement.as_str(),
        accepted: cause.is_none(),
        keys: Vec::new(),
        cause,
    })
}

/// Judges an image by its signatures: one of the keys must have signed its digest.
pub fn judge(rule: RuleOfImage<'_>, digest: &str, keys: &[RuleKey], evidence: &Evidence) -> Verdict {
    let keys: Vec<KeyVerdict> = keys.iter().map(|key| judge_key(key, digest, evidence)).collect();
    let accepted = keys.iter().any(|key| key.accepted);
    let cause = (!accepted).then(|| {
        let causes = keys.iter().map(|key| format!("{}: {}", key.file.display(), key.detail));
        format!("{digest} is signed by none of its keys: {}", causes.collect::<Vec<_>>().join("; "))
    });
    Verdict { rule: rule.to_string(), requirement: rule.requirement.as_str(), accepted, keys, cause }
}

fn judge_key(key: &RuleKey, digest: &str, evidence: &Evidence) -> KeyVerdict {
    let verdict = |accepted, detail| KeyVerdict { file: key.file.clone(), accepted, detail };
    let public = match &key.key {
        Ok(public) => public,
        Err(error) => return verdict(false, error.clone()),
    };
    let mut causes = Vec::new();
    for signature in &evidence.signatures {
        match check(signature, digest, public) {
            Ok(()) => return verdict(true, format!("signed ({})", signature.place)),
            Err(cause) => causes.push(format!("{}: {cause}", signature.place)),
        }
    }
    causes.extend(evidence.problems.iter().cloned());
    causes.dedup();
    let none = || "no signature found".to_owned();
    verdict(false, if causes.is_empty() { none() } else { causes.join("; ") })
}

/// Whether the key has signed the image with this signature.
///
/// # Errors
///
/// The reason why it has not.
fn check(signature: &Signature, digest: &str, key: &VerificationKey) -> Result<(), String> {
    const FOREIGN: &str = "made by another key, or changed since";
    let is_about = match &signature.form {
        SignatureForm::SimpleSigning { signature: encoded } => {
            let bytes = STANDARD.decode(encoded).map_err(|error| format!("its signature is not base64: {error}"))?;
            // Nothing in the payload counts before it is verified.
            if !key.verifies(&signature.blob, &bytes) {
                return Err(FOREIGN.to_owned());
            }
            simple_signing::signed_digest(&signature.blob)? == digest
        }
        SignatureForm::SigstoreBundle => {
            let statement = sigstore_bundle::SignedStatement::parse(&signature.blob)?;
            if !statement.signatures.iter().any(|bytes| key.verifies(&statement.message, bytes)) {
                return Err(FOREIGN.to_owned());
            }
            statement.is_about(digest)?
        }
    };
    if is_about { Ok(()) } else { Err("signs another image".to_owned()) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fixtures::Signer;
    use crate::pattern::ImagePattern;
    use crate::policy::{ImagePolicy, Rule};
    use crate::signature::{signature_layers, signature_referrers};

    const PUMP: &str = "sha256:1111111111111111111111111111111111111111111111111111111111111111";
    const OTHER: &str = "sha256:2222222222222222222222222222222222222222222222222222222222222222";

    fn policy(requirement: Requirement) -> ImagePolicy {
        let images = vec![ImagePattern::parse("registry.example/plant/*").unwrap()];
        ImagePolicy { rules: vec![Rule { images, requirement }], default: Requirement::Reject }
    }

    fn key(file: &str, signer: &Signer) -> RuleKey {
        let key = VerificationKey::from_pem(signer.public_pem().as_bytes()).unwrap();
        RuleKey { file: file.into(), key: Ok(key) }
    }

    fn verdict(keys: &[RuleKey], signatures: Vec<Signature>) -> Verdict {
        let policy = policy(Requirement::Cosign(keys.iter().map(|key| key.file.clone()).collect()));
        let name = ImageName::parse("registry.example/plant/pump:1").unwrap();
        assert_eq!(judge_name(policy.rule(&name), &name), None);
        judge(policy.rule(&name), PUMP, keys, &Evidence { signatures, problems: Vec::new() })
    }

    #[test]
    fn an_image_is_accepted_with_a_signature_of_either_form_by_one_of_the_keys() {
        let (plant, vendor, stranger) = (Signer::p256(), Signer::ed25519(), Signer::p256());
        let keys = [key("/plant.pub", &plant), key("/vendor.pub", &vendor)];
        for (signatures, accepted) in [
            (vec![plant.simple(PUMP)], [true, false]),
            (vec![vendor.bundle(PUMP)], [false, true]),
            (vec![stranger.simple(PUMP), stranger.bundle(PUMP), plant.bundle(PUMP)], [true, false]),
            (vec![plant.simple(PUMP), vendor.simple(PUMP)], [true, true]),
            (vec![stranger.simple(PUMP), stranger.bundle(PUMP)], [false, false]),
            // Signatures of another image, such as the one that the tag pointed to before.
            (vec![plant.simple(OTHER), plant.bundle(OTHER)], [false, false]),
            (vec![], [false, false]),
        ] {
            let verdict = verdict(&keys, signatures);
            let of_keys: Vec<bool> = verdict.keys.iter().map(|key| key.accepted).collect();
            assert_eq!(
                (of_keys.as_slice(), verdict.accepted),
                (&accepted[..], accepted.contains(&true)),
                "{verdict:?}"
            );
            assert_eq!(verdict.cause.is_none(), verdict.accepted);
        }
    }

    /// Both forms, as cosign 2.6.5 uploaded them to a registry without the referrers API.
    #[test]
    fn what_cosign_itself_has_signed_is_accepted() {
        const DIGEST: &str = "sha256:ee2da35f8b96bc84d353ec05fce292e8d18d30e27e5bc1c1bff3447211572d93";
        let key = VerificationKey::from_pem(include_bytes!("fixtures/cosign.pub")).unwrap();
        let keys = [RuleKey { file: "/cosign.pub".into(), key: Ok(key) }];
        let referrers = signature_referrers(include_bytes!("fixtures/cosign-referrers.json")).unwrap();
        assert_eq!(referrers.len(), 1);
        for (manifest, blob) in [
            (
                &include_bytes!("fixtures/cosign-payload-manifest.json")[..],
                &include_bytes!("fixtures/cosign-payload.json")[..],
            ),
            (include_bytes!("fixtures/cosign-bundle-manifest.json"), include_bytes!("fixtures/cosign-bundle.json")),
        ] {
            let layer = signature_layers(manifest).unwrap().remove(0);
            assert_eq!(layer.size, blob.len() as u64);
            let signature = Signature { place: String::new(), form: layer.form, blob: blob.to_vec() };
            let evidence = Evidence { signatures: vec![signature], problems: Vec::new() };
            let policy = policy(Requirement::Cosign(vec!["/cosign.pub".into()]));
            let name = ImageName::parse("registry.example/plant/pump:1").unwrap();
            assert!(judge(policy.rule(&name), DIGEST, &keys, &evidence).accepted);
            assert!(!judge(policy.rule(&name), PUMP, &keys, &evidence).accepted);
        }
    }

    #[test]
    fn what_was_changed_after_it_was_signed_is_refused() {
        let plant = Signer::p256();
        let keys = [key("/plant.pub", &plant)];
        let mut payload = plant.simple(OTHER);
        payload.blob = String::from_utf8(payload.blob).unwrap().replace(OTHER, PUMP).into_bytes();
        let mut bundle = plant.bundle(OTHER);
        let valid: serde_json::Value = serde_json::from_slice(&plant.bundle(PUMP).blob).unwrap();
        let mut tampered: serde_json::Value = serde_json::from_slice(&bundle.blob).unwrap();
        tampered["dsseEnvelope"]["payload"] = valid["dsseEnvelope"]["payload"].clone();
        bundle.blob = tampered.to_string().into_bytes();
        for signature in [payload, bundle] {
            let verdict = verdict(&keys, vec![signature]);
            assert!(!verdict.accepted);
            let cause = verdict.cause.unwrap();
            assert!(cause.contains("/plant.pub") && cause.contains("another key, or changed"), "{cause}");
        }
    }

    #[test]
    fn only_a_signature_of_an_image_counts_and_no_other_statement_about_it() {
        let plant = Signer::p256();
        let keys = [key("/plant.pub", &plant)];
        let hex = PUMP.trim_start_matches("sha256:");
        let sbom = json!({ "_type": "https://in-toto.io/Statement/v1", "predicateType": "https://spdx.dev/Document",
            "subject": [{ "digest": { "sha256": hex } }], "predicate": {} });
        let atomic = json!({ "critical": { "identity": {}, "type": "atomic container signature",
            "image": { "docker-manifest-digest": PUMP } } });
        let blank = Signature { blob: b"{}".to_vec(), ..plant.bundle(PUMP) };
        let wrong = [plant.bundle_of(&sbom), plant.simple_of(&atomic), plant.simple_of(&json!({})), blank];
        for (signature, cause) in
            wrong.into_iter().zip(["spdx.dev", "atomic container", "missing field", "no DSSE envelope"])
        {
            let verdict = verdict(&keys, vec![signature]);
            assert!(!verdict.accepted && verdict.keys[0].detail.contains(cause), "{:?}", verdict.keys);
        }
    }

    #[test]
    fn a_key_that_cannot_be_read_accepts_nothing_and_is_named() {
        let plant = Signer::p256();
        let missing = RuleKey { file: "/gone.pub".into(), key: Err("cannot be read: No such file".to_owned()) };
        let verdict = verdict(&[missing, key("/plant.pub", &plant)], vec![plant.simple(PUMP)]);
        assert!(verdict.accepted && !verdict.keys[0].accepted);
        assert_eq!(verdict.keys[0].detail, "cannot be read: No such file");
    }

    #[test]
    fn rules_without_keys_look_at_the_reference_alone() {
        let tagged = ImageName::parse("registry.example/plant/pump:1").unwrap();
        let fixed = ImageName::parse(&format!("registry.example/plant/pump:1@{PUMP}")).unwrap();
        for (requirement, name, accepted, part) in [
            (Requirement::Allow, &tagged, true, ""),
            (Requirement::Digest, &fixed, true, ""),
            (Requirement::Digest, &tagged, false, "registry.example/plant/pump@sha256:…"),
            (Requirement::Reject, &fixed, false, "no rule allows"),
        ] {
            let policy = policy(requirement);
            let verdict = judge_name(policy.rule(name), name).unwrap();
            assert_eq!(verdict.accepted, accepted, "{verdict}");
            assert!(verdict.to_string().contains(part), "{verdict}");
        }
    }
}
