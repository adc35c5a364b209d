//! `-o`: machine-readable output.

use serde::Serialize;
use serde_json::Value;

use super::error::CliError;

/// The formats of `-o` where only a document can be chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum DocumentFormat {
    /// JSON, indented
    Json,
    /// YAML
    Yaml,
}

impl DocumentFormat {
    /// `document` in that format, its fields in alphabetical order as `kubectl` prints them, with a trailing newline.
    pub fn render(self, document: &impl Serialize) -> Result<String, CliError> {
        let failed = |error: &dyn std::fmt::Display| CliError::System {
            what: "write the document".to_owned(),
            source: std::io::Error::other(error.to_string()),
        };
        // By way of the text that the agent sends, because each writer of each type of the API is 100 KiB of the executable.
        let text = serde_json::to_vec(document).map_err(|error| failed(&error))?;
        let document: Value = serde_json::from_slice(&text).map_err(|error| failed(&error))?;
        let mut text = match self {
            Self::Json => serde_json::to_string_pretty(&document).map_err(|error| failed(&error))?,
            Self::Yaml => serde_saphyr::to_string(&document).map_err(|error| failed(&error))?,
        };
        if !text.ends_with('\n') {
            text.push('\n');
        }
        Ok(text)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn yaml_parses_back_to_the_same_document() {
        let document = json!({
            "kind": "Pod", "empty": {}, "list": [], "nothing": null, "count": 3, "yes": true,
            "strings": ["yes", "0644", "1e3", "null", "", "a: b", "- c", "line\nline\n", " lead", "#x", "~", "12:30:00"],
        });
        let text = DocumentFormat::Yaml.render(&document).unwrap();
        let back: Value = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(back, document, "{text}");
        assert!(text.contains("kind: Pod\n"), "{text}");
    }
}
