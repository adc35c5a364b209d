//! The settings of the sources, and of how their manifests are read.

use std::path::PathBuf;

use limpet_model::attribution::ManifestWatch;
use limpet_model::pod::field_validation::FieldValidations;
use limpet_model::pod::security::SecurityLevels;

use super::http::HttpSettings;

#[derive(Debug, Clone, PartialEq)]
pub struct SourceSettings {
    /// `staticPodPath` / `--pod-manifest-path`: a directory or one file; `None`: no file source.
    pub manifest_path: Option<PathBuf>,
    /// `staticPodURL` / `--manifest-url` and the related settings; `None`: no URL source.
    pub manifest_url: Option<HttpSettings>,
    /// `bundle.url`; `None`: bundles do not come from a URL.
    pub bundle_url: Option<HttpSettings>,
    /// How changes of files are noticed: `manifestWatch`.
    pub watch: ManifestWatch,
    /// `podSecurity`: the Pod Security Standard of each source.
    pub pod_security: SecurityLevels,
    /// Whether unknown fields are errors or warnings, for each source: `fieldValidation`.
    pub field_validation: FieldValidations,
}

impl Default for SourceSettings {
    fn default() -> Self {
        Self {
            manifest_path: None,
            manifest_url: None,
            bundle_url: None,
            watch: ManifestWatch::default(),
            pod_security: SecurityLevels::PRIVILEGED,
            field_validation: FieldValidations::STRICT,
        }
    }
}
