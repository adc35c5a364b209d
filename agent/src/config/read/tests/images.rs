//! Settings of images: concurrent pulls, garbage collection, who may use what was pulled.

use super::super::documents::PULLS_WITHOUT_LIMIT;
use super::*;

#[test]
fn parallel_pulls_are_computed_as_in_kubelet() {
    let cases = [
        ("", 1),
        ("serializeImagePulls: true\n", 1),
        ("serializeImagePulls: false\n", PULLS_WITHOUT_LIMIT),
        ("serializeImagePulls: false\nmaxParallelImagePulls: 2\n", 2),
        ("maxParallelImagePulls: 2\n", 2),
        ("serializeImagePulls: true\nmaxParallelImagePulls: 1\n", 1),
    ];
    for (text, expected) in cases {
        assert_eq!(load_text(&format!("{KUBELET_HEAD}{text}"), &[]).0.unwrap().pulls.max_parallel, expected, "{text}");
    }
}

#[test]
fn image_garbage_collection_is_checked_as_in_kubelet() {
    let policy = |text: &str| load_text(&format!("{KUBELET_HEAD}{text}"), &[]).0.map(|config| config.image_gc);
    // Zero stands for the default of an age.
    let zero = policy("imageMinimumGCAge: 0s\nimageMaximumGCAge: 0s\n");
    assert_eq!(zero, Ok(ImageGcPolicy::default()));
    assert!(policy("imageGCHighThresholdPercent: 100\n").unwrap().is_off());
    let cases = [
        ("imageGCHighThresholdPercent: 101\n", "imageGCHighThresholdPercent: 101 is not 0 to 100"),
        ("imageGCLowThresholdPercent: -1\n", "imageGCLowThresholdPercent: -1 is not 0 to 100"),
        (
            "imageGCHighThresholdPercent: 80\n",
            "imageGCLowThresholdPercent: 80 is not below imageGCHighThresholdPercent, which is 80",
        ),
        ("imageMinimumGCAge: soon\n", "imageMinimumGCAge: \"soon\" is not a duration such as 2m"),
        ("imageMaximumGCAge: 120s\n", "imageMaximumGCAge: 120s is not above imageMinimumGCAge, which is 120s"),
    ];
    for (text, expected) in cases {
        let faults = policy(text).unwrap_err();
        assert!(faults.len() == 1 && faults[0].ends_with(expected), "{text}: {faults:?}");
    }
}

#[test]
fn the_verification_of_images_is_checked_as_in_kubelet() {
    let policy =
        |text: &str| load_text(&format!("{KUBELET_HEAD}{text}"), &[]).0.map(|config| config.pulls.verification);
    let key = "imagePullCredentialsVerificationPolicy";
    // Go's encoder writes unset fields like this.
    let unset = policy(&format!("{key}: ''\npreloadedImagesVerificationAllowlist: []\n"));
    assert_eq!(unset, Ok(VerificationPolicy::NeverVerifyPreloadedImages));
    for name in ["NeverVerify", "NeverVerifyPreloadedImages", "NeverVerifyAllowlistedImages", "AlwaysVerify"] {
        assert_eq!(policy(&format!("{key}: {name}\n")).unwrap().as_str(), name);
    }
    let listed = "NeverVerifyAllowlistedImages\npreloadedImagesVerificationAllowlist: [q.io/a:v1]\n";
    for (text, expected) in [
        (
            "Sometimes\n",
            "\"Sometimes\" is unknown; use one of NeverVerify, NeverVerifyPreloadedImages, NeverVerifyAllowlistedImages, AlwaysVerify",
        ),
        (
            "NeverVerify\npreloadedImagesVerificationAllowlist: [q.io/a]\n",
            "can only be set while imagePullCredentialsVerificationPolicy is NeverVerifyAllowlistedImages",
        ),
        (listed, "neither tag nor digest is accepted in an image reference: q.io/a:v1"),
    ] {
        let faults = policy(&format!("{key}: {text}")).unwrap_err();
        assert!(faults.len() == 1 && faults[0].ends_with(expected), "{text}: {faults:?}");
    }
}
