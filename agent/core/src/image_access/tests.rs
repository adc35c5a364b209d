//! Tables of kubelet's `image_pull_policies_test.go` and `image_pull_manager_test.go`.

#![allow(clippy::unwrap_used)]

use super::*;
use PullCredential::Node;
use limpet_model::pull_credential::{CredentialHash, PullSecret, PullServiceAccount};

fn secret(uid: &str, namespace: &str, name: &str, hash: &str) -> PullCredential {
    let [uid, namespace, name] = [uid, namespace, name].map(str::to_owned);
    PullCredential::Secret(PullSecret { uid, namespace, name, hash: CredentialHash::from_text(hash.to_owned()) })
}

fn account(uid: &str, namespace: &str, name: &str) -> PullCredential {
    let [uid, namespace, name] = [uid, namespace, name].map(str::to_owned);
    PullCredential::ServiceAccount(PullServiceAccount { uid, namespace, name })
}

fn allowlist(patterns: &[&str]) -> Result<Allowlist, String> {
    let mut list = Allowlist::default();
    patterns.iter().try_for_each(|pattern| list.add(pattern)).map(|()| list)
}

const DIGEST: &str = "sha256:38a8906435c4dd5f4258899d46621bfd8eea3ad6ff494ee3c2f17ef0321625bd";

#[test]
fn images_match_an_allowlist_as_in_kubelet() {
    let image = "test.io/test/test-image:tag";
    let digest = format!("ubuntu@{DIGEST}");
    let table: &[(&str, &[&str], bool)] = &[
        (image, &["test.io/test/image1", "test.io/test/image2"], false),
        (image, &["test.io/test/image1", "test.io/test/test-image"], true),
        (image, &["test.io/test/image1", "different.repo/test/*"], false),
        (image, &["test.io/test/*"], true),
        (image, &["test.io/*"], true),
        ("ubuntu", &["docker.io/library/ubuntu"], false),
        ("ubuntu", &["docker.io/library/*"], false),
        ("ubuntu", &["ubuntu"], true),
        ("ubuntu:tagged", &["ubuntu"], true),
        (&digest, &["ubuntu"], true),
    ];
    for (image, patterns, matches) in table {
        let policy = VerificationPolicy::NeverVerifyAllowlistedImages(allowlist(patterns).unwrap());
        for pulled in [true, false] {
            assert_eq!(policy.verifies(image, pulled), !matches, "{image} {patterns:?}");
        }
    }
}

#[test]
fn patterns_are_refused_as_by_kubelet() {
    let with_digest = format!("test.io/test/image1@{DIGEST}");
    for (pattern, why) in [
        ("image.repo/pokus*/imagename", "only patterns ending with '/*' are allowed"),
        ("image.repo/pokus*", "only patterns ending with '/*' are allowed"),
        ("image.repo/*/imagename", "only patterns ending with '/*' are allowed"),
        ("/*", "at least registry hostname is required"),
        ("image.repo/", "failed to parse as an image name"),
        ("", "the supplied pattern is too short"),
        ("*", "only patterns ending with '/*' are allowed"),
        ("test.io/test/image1:tagged", "neither tag nor digest is accepted"),
        (&with_digest, "neither tag nor digest is accepted"),
        ("test.io/test/image1 ", "leading/trailing spaces are not allowed"),
    ] {
        let error = allowlist(&[pattern]).unwrap_err();
        assert!(error.contains(why), "{pattern}: {error}");
    }
}

#[test]
fn policies_verify_as_in_kubelet() {
    let verified = |policy: VerificationPolicy| [false, true].map(|pulled| policy.verifies("test-image:tag", pulled));
    assert_eq!(verified(VerificationPolicy::NeverVerify), [false, false]);
    assert_eq!(verified(VerificationPolicy::default()), [false, true]);
    assert_eq!(verified(VerificationPolicy::AlwaysVerify), [true, true]);
}

/// kubelet's record in most of its cases.
fn recorded() -> PulledImage {
    let known = secret("testsecretuid", "default", "pull-secret", "testsecrethash");
    PulledImage { names: vec![("docker.io/testing/test".to_owned(), vec![known])] }
}

/// Whether a pod with these credentials may use the image without a pull.
fn may_use(
    policy: &VerificationPolicy,
    image: &str,
    record: Option<&PulledImage>,
    intended: bool,
    pod: &[PullCredential],
) -> bool {
    match access(policy, image, record, intended) {
        ImageAccess::All => true,
        ImageAccess::Holders(holders) => holder(&holders, pod).is_some(),
    }
}

/// The description; image, record, intent and the pod's credentials; whether the pod may use the image.
type Case<'a> = (&'a str, &'a str, Option<&'a PulledImage>, bool, &'a [PullCredential], bool);

#[test]
fn a_pull_must_be_attempted_as_by_kubelet() {
    const IMAGE: &str = "docker.io/testing/test:latest";
    let preloaded = VerificationPolicy::NeverVerifyPreloadedImages;
    let accounts = PulledImage { names: vec![("test".to_owned(), vec![account("u", "default", "sa")])] };
    let nothing = PulledImage::default();
    let exact = secret("testsecretuid", "default", "pull-secret", "testsecrethash");
    let exact = std::slice::from_ref(&exact);
    let table: &[Case<'_>] = &[
        ("the pod's exact secret", IMAGE, Some(&recorded()), false, exact, true),
        ("no pod secrets", IMAGE, Some(&recorded()), false, &[], false),
        (
            "the same secret, a different hash",
            IMAGE,
            Some(&recorded()),
            false,
            &[secret("testsecretuid", "default", "pull-secret", "differenthash")],
            true,
        ),
        (
            "a secret with a different UID",
            IMAGE,
            Some(&recorded()),
            false,
            &[secret("different uid", "default", "pull-secret", "differenthash")],
            false,
        ),
        (
            "a secret of another namespace",
            IMAGE,
            Some(&recorded()),
            false,
            &[secret("testsecretuid", "differentns", "pull-secret", "differenthash")],
            false,
        ),
        (
            "a different secret with the same hash",
            IMAGE,
            Some(&recorded()),
            false,
            &[secret("other", "differentns", "other", "testsecrethash")],
            true,
        ),
        ("recorded under another name", "other.io/testing/test", Some(&recorded()), false, exact, false),
        ("recorded under another tag", "docker.io/testing/test:v2", Some(&recorded()), false, exact, true),
        ("pulled under unknown circumstances", IMAGE, Some(&nothing), false, exact, false),
        ("only an intent", IMAGE, None, true, exact, false),
        ("no record at all", IMAGE, None, false, &[], true),
        ("the service account", "test", Some(&accounts), false, &[account("u", "default", "sa")], true),
        ("a later account of that name", "test", Some(&accounts), false, &[account("v", "default", "sa")], false),
        ("an account without an apiserver", "test", Some(&accounts), false, &[account("", "default", "sa")], true),
        ("another account", "test", Some(&accounts), false, &[account("", "default", "sb")], false),
        ("a secret for an account", "test", Some(&accounts), false, &[secret("u", "default", "sa", "h")], false),
    ];
    for (what, image, record, intended, pod, wanted) in table {
        assert_eq!(may_use(&preloaded, image, *record, *intended, pod), *wanted, "{what}");
        assert!(may_use(&VerificationPolicy::NeverVerify, image, *record, *intended, pod), "{what}, never verified");
    }
    let always = VerificationPolicy::AlwaysVerify;
    assert!(!may_use(&always, IMAGE, None, false, &[]), "preloaded, always verified");
    assert!(may_use(&always, IMAGE, Some(&open()), false, &[]), "pulled without credentials, always verified");
    assert!(may_use(&preloaded, "elsewhere.io/x", Some(&open()), false, &[]), "any pod could have pulled the content");
}

fn open() -> PulledImage {
    PulledImage { names: vec![("docker.io/testing/test".to_owned(), vec![Node])] }
}

#[test]
fn credentials_are_merged_as_by_kubelet() {
    let first = secret("uid1", "namespace1", "name1", "hash1");
    let sa = account("sa-uid1", "default", "sa1");
    let new = secret("newuid", "newnamespace", "newname", "newhash");
    let changed = secret("uid1", "namespace1", "name1", "hash2");
    let later = account("different-uid", "default", "sa1");
    let table: &[(&[PullCredential], &PullCredential, &[PullCredential])] = &[
        (&[], &new, std::slice::from_ref(&new)),
        (std::slice::from_ref(&first), &new, &[first.clone(), new.clone()]),
        (&[first.clone(), new.clone()], &Node, &[Node]),
        (std::slice::from_ref(&first), &changed, std::slice::from_ref(&changed)),
        (std::slice::from_ref(&first), &first, std::slice::from_ref(&first)),
        (std::slice::from_ref(&sa), &later, &[sa.clone(), later.clone()]),
        (std::slice::from_ref(&sa), &sa, std::slice::from_ref(&sa)),
        (&[Node], &new, &[Node]),
        (&[Node], &sa, &[Node]),
    ];
    for (before, credential, after) in table {
        let mut record = PulledImage { names: vec![("image".to_owned(), before.to_vec())] };
        assert_eq!(record.add("image:tag", (*credential).clone()), before != after, "{before:?} {credential:?}");
        assert_eq!(record.names, [("image".to_owned(), after.to_vec())]);
    }
    let mut record = recorded();
    assert!(record.add("new-image", new.clone()));
    assert_eq!(record.names[1], ("new-image".to_owned(), vec![new]));
}

#[test]
fn what_is_remembered_is_bounded() {
    let (mut names, mut credentials) = (PulledImage::default(), PulledImage::default());
    for index in 0..MAX_REMEMBERED + 1 {
        assert!(names.add(&format!("image-{index}"), Node));
        assert!(credentials.add("image", account(&index.to_string(), "n", "s")));
    }
    assert_eq!((names.names.len(), names.names[0].0.as_str()), (MAX_REMEMBERED, "image-1"));
    let known = &credentials.names[0].1;
    assert_eq!((known.len(), &known[0]), (MAX_REMEMBERED, &account("1", "n", "s")));
}

/// What is remembered is recognized with a salt, too, and is not remembered again.
#[test]
fn salted_hashes_count_as_those_of_their_credentials() {
    let (known_secret, new) = (secret("u", "n", "s", "hash"), secret("u", "n", "s", "other"));
    let mut record = PulledImage::default();
    assert!(record.add("image", known_secret.clone()));
    let mut salts = 0..;
    let mut salt = || [salts.next().unwrap(); 16];
    assert!(record.salt(&mut salt) && !record.salt(&mut salt));
    assert!(!record.names.iter().any(|(_, known)| known.contains(&known_secret)), "{record:?}");
    assert!(!record.add("image", known_secret.clone()), "known already");
    let policy = VerificationPolicy::default();
    let elsewhere = [secret("v", "n", "t", "hash")];
    assert!(may_use(&policy, "image", Some(&record), false, &elsewhere), "the same credential by another Secret");
    assert!(!may_use(&policy, "image", Some(&record), false, &[secret("v", "n", "t", "other")]));
    assert!(record.add("image", new) && record.salt(&mut salt));
    assert_eq!(record.names[0].1.len(), 1, "a new password takes the place of the old one");
}
