//! The settings that decide which images on the node all pods may use, with kubelet's checks.

use super::super::tree::Map;
use super::ConfigDiagnostics;
use limpet_core::image_access::{Allowlist, VerificationPolicy};

const POLICY: &str = "imagePullCredentialsVerificationPolicy";
const ALLOWLIST: &str = "preloadedImagesVerificationAllowlist";

impl ConfigDiagnostics {
    pub(super) fn image_verification(&mut self, map: &Map<'_>, policy: &mut VerificationPolicy) {
        let mut allowlist = Allowlist::default();
        let patterns = map.texts(ALLOWLIST);
        for (pattern, at) in &patterns {
            if let Err(mistake) = allowlist.add(pattern) {
                self.error(Some(*at), ALLOWLIST, mistake);
            }
        }
        let named = map.text(POLICY);
        *policy = match named.map_or("", |(name, _)| name) {
            "" | "NeverVerifyPreloadedImages" => VerificationPolicy::NeverVerifyPreloadedImages,
            "NeverVerify" => VerificationPolicy::NeverVerify,
            "NeverVerifyAllowlistedImages" => VerificationPolicy::NeverVerifyAllowlistedImages(allowlist),
            "AlwaysVerify" => VerificationPolicy::AlwaysVerify,
            other => {
                let message = format!(
                    "{other:?} is unknown; use one of NeverVerify, NeverVerifyPreloadedImages, NeverVerifyAllowlistedImages, AlwaysVerify"
                );
                return self.error(named.map(|(_, at)| at), POLICY, message);
            }
        };
        let of_list = matches!(policy, VerificationPolicy::NeverVerifyAllowlistedImages(_));
        if let Some((_, at)) = patterns.first().filter(|_| !of_list) {
            let message = format!("can only be set while {POLICY} is NeverVerifyAllowlistedImages");
            self.error(Some(*at), ALLOWLIST, message);
        }
    }
}
