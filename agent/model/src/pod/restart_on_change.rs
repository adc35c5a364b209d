//! The annotation by which the containers of a pod are restarted when values change that only a start reads.

use crate::pod::PodRecord;

/// Says for which kinds of objects: `configmaps`, `secrets`, or both with a comma between them.
pub const RESTART_ANNOTATION: &str = "limpet.dev/restart-on-change";

/// For which kinds of objects the containers of a pod are restarted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RestartOnChange {
    pub config_maps: bool,
    pub secrets: bool,
}

impl RestartOnChange {
    /// The value of [`RESTART_ANNOTATION`]; `None` if it names anything else.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        text.split(',').try_fold(Self::default(), |wanted, kind| match kind.trim() {
            "configmaps" => Some(Self { config_maps: true, ..wanted }),
            "secrets" => Some(Self { secrets: true, ..wanted }),
            _ => None,
        })
    }

    /// What a pod asks for.
    pub fn from_pod(pod: &PodRecord) -> Self {
        let annotation = pod.pod.metadata.annotations.as_ref().and_then(|all| all.get(RESTART_ANNOTATION));
        annotation.and_then(|text| Self::parse(text)).unwrap_or_default()
    }

    /// Whether a pod asks for it at all.
    pub fn is_wanted(self) -> bool {
        self.config_maps || self.secrets
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_annotation_lists_kinds() {
        let parse = |text| RestartOnChange::parse(text).map(|wanted| (wanted.config_maps, wanted.secrets));
        assert_eq!(parse("configmaps"), Some((true, false)));
        assert_eq!(parse("secrets, configmaps"), Some((true, true)));
        assert_eq!([parse(""), parse("true"), parse("configmaps;secrets")], [None, None, None]);
    }
}
