//! The rules: which requirement an image has to meet, by its name.

use std::path::{Path, PathBuf};

use limpet_model::image_name::{ImageName, Target};

use crate::pattern::ImagePattern;

/// `imagePolicy`: the first rule that matches an image decides.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImagePolicy {
    /// In their order.
    pub rules: Vec<Rule>,
    /// For images that no rule matches.
    pub default: Requirement,
}

/// One rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// The images it matches; at least one pattern.
    pub images: Vec<ImagePattern>,
    pub requirement: Requirement,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Requirement {
    /// Nothing.
    Allow,
    /// Its reference contains a digest.
    Digest,
    /// A signature of cosign by one of these keys.
    Cosign(Vec<PathBuf>),
    /// It is refused.
    #[default]
    Reject,
}

impl Requirement {
    /// The value in the configuration.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Digest => "digest",
            Self::Cosign(_) => "cosign",
            Self::Reject => "reject",
        }
    }

    /// The key files, one of which has to have signed.
    pub fn keys(&self) -> &[PathBuf] {
        match self {
            Self::Cosign(keys) => keys,
            _ => &[],
        }
    }
}

/// The rule that applies to an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RuleOfImage<'a> {
    /// Its number, from 1; `None` for the default.
    pub number: Option<usize>,
    /// The pattern that matches the image.
    pub pattern: Option<&'a ImagePattern>,
    pub requirement: &'a Requirement,
}

impl std::fmt::Display for RuleOfImage<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.number, self.pattern) {
            (Some(number), Some(pattern)) => write!(f, "imagePolicy rule {number} ({pattern})"),
            _ => f.write_str("imagePolicy default"),
        }
    }
}

impl ImagePolicy {
    /// The rule for an image.
    pub fn rule(&self, name: &ImageName) -> RuleOfImage<'_> {
        let matching = self.rules.iter().enumerate().find_map(|(index, rule)| {
            let pattern = rule.images.iter().find(|pattern| pattern.matches(name))?;
            Some(RuleOfImage { number: Some(index + 1), pattern: Some(pattern), requirement: &rule.requirement })
        });
        matching.unwrap_or(RuleOfImage { number: None, pattern: None, requirement: &self.default })
    }

    /// Every key file that a rule names, once.
    pub fn key_files(&self) -> Vec<&Path> {
        let rules = self.rules.iter().map(|rule| &rule.requirement);
        let mut files: Vec<&Path> =
            rules.chain([&self.default]).flat_map(Requirement::keys).map(PathBuf::as_path).collect();
        files.sort_unstable();
        files.dedup();
        files
    }
}

/// Whether a reference contains a digest.
pub fn has_digest(name: &ImageName) -> bool {
    matches!(name.target, Target::Digest(_))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn rule(pattern: &str, requirement: Requirement) -> Rule {
        Rule { images: vec![ImagePattern::parse(pattern).unwrap()], requirement }
    }

    #[test]
    fn the_first_rule_that_names_an_image_decides() {
        let keys = || Requirement::Cosign(vec!["/etc/limpet/keys/plant.pub".into()]);
        let policy = ImagePolicy {
            rules: vec![
                rule("registry.example/plant/debug", Requirement::Allow),
                rule("registry.example/plant/*", keys()),
                rule("docker.io/**", Requirement::Digest),
            ],
            default: Requirement::default(),
        };
        for (image, shown, requirement) in [
            ("registry.example/plant/debug:1", "imagePolicy rule 1 (registry.example/plant/debug)", "allow"),
            ("registry.example/plant/pump:1", "imagePolicy rule 2 (registry.example/plant/*)", "cosign"),
            ("busybox", "imagePolicy rule 3 (docker.io/**)", "digest"),
            ("other.example/pump", "imagePolicy default", "reject"),
        ] {
            let name = ImageName::parse(image).unwrap();
            let rule = policy.rule(&name);
            assert_eq!((rule.to_string().as_str(), rule.requirement.as_str()), (shown, requirement));
        }
        assert_eq!(policy.key_files(), [Path::new("/etc/limpet/keys/plant.pub")]);
    }
}
