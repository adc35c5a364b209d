//! The settings of image garbage collection, with kubelet's checks.

use std::time::Duration;

use super::super::tree::Map;
use super::ConfigDiagnostics;
use limpet_core::image_gc::ImageGcPolicy;
use limpet_model::go_duration;

impl ConfigDiagnostics {
    pub(super) fn image_gc(&mut self, map: &Map<'_>, policy: &mut ImageGcPolicy) {
        let marks = [
            ("imageGCHighThresholdPercent", &mut policy.high_percent),
            ("imageGCLowThresholdPercent", &mut policy.low_percent),
        ];
        for (key, into) in marks {
            let Some((percent, at)) = map.int(key) else { continue };
            match u8::try_from(percent).ok().filter(|percent| *percent <= 100) {
                Some(percent) => *into = percent,
                None => self.error(Some(at), key, format!("{percent} is not 0 to 100")),
            }
        }
        if policy.low_percent >= policy.high_percent {
            let (low, high) = (policy.low_percent, policy.high_percent);
            let at = map.int("imageGCLowThresholdPercent").or(map.int("imageGCHighThresholdPercent"));
            let message = format!("{low} is not below imageGCHighThresholdPercent, which is {high}");
            self.error(at.map(|(_, at)| at), "imageGCLowThresholdPercent", message);
        }
        // As in Kubernetes, zero stands for the default: two minutes, and no maximum.
        if let Some(age) = self.age(map, "imageMinimumGCAge") {
            policy.min_age = age;
        }
        policy.max_age = self.age(map, "imageMaximumGCAge");
        if let Some(max) = policy.max_age.filter(|max| *max <= policy.min_age) {
            let message = format!("{max:?} is not above imageMinimumGCAge, which is {:?}", policy.min_age);
            self.error(map.text("imageMaximumGCAge").map(|(_, at)| at), "imageMaximumGCAge", message);
        }
    }

    fn age(&mut self, map: &Map<'_>, key: &str) -> Option<Duration> {
        let (text, at) = map.text(key)?;
        let age = go_duration::parse(text);
        if age.is_none() {
            self.error(Some(at), key, format!("{text:?} is not a duration such as 2m"));
        }
        age.filter(|age| !age.is_zero())
    }
}
