//! The requests of nodes to an apiserver, from its audit log: each request once, when it arrives.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

/// The log, from the position up to which it was read.
#[derive(Debug)]
pub struct Audit {
    dir: PathBuf,
    read: u64,
}

impl Audit {
    /// The log of an apiserver that has not been started; `dir` is for the log and the policy of what it contains.
    pub fn prepare(dir: &Path) -> Result<Self> {
        let policy = json!({
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            // A watch counts when it begins, and not only when it has ended.
            "omitStages": ["ResponseStarted", "ResponseComplete", "Panic"],
            "rules": [{ "level": "Metadata", "userGroups": ["system:nodes"] }, { "level": "None" }],
        });
        let audit = Self { dir: dir.to_owned(), read: 0 };
        fs::write(audit.file("policy"), serde_json::to_vec(&policy)?).context("the policy of the audit log")?;
        Ok(audit)
    }

    /// The flags of that apiserver.
    pub fn flags(&self) -> [String; 3] {
        [
            format!("--audit-policy-file={}", self.file("policy").display()),
            format!("--audit-log-path={}", self.file("log").display()),
            // Nothing is buffered.
            "--audit-log-mode=blocking".to_owned(),
        ]
    }

    /// How many requests have arrived since the last call, by verb and resource.
    pub fn requests(&mut self) -> Result<BTreeMap<String, u64>> {
        let path = self.file("log");
        let mut file = File::open(&path).with_context(|| format!("{}", path.display()))?;
        file.seek(SeekFrom::Start(self.read))?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        // A line that is being written is left for the next call.
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        self.read += whole as u64;
        count(&text[..whole])
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.join(format!("audit-{name}.json"))
    }
}

fn count(lines: &str) -> Result<BTreeMap<String, u64>> {
    let mut counts = BTreeMap::new();
    for line in lines.lines() {
        let event: Value = serde_json::from_str(line).with_context(|| format!("a line of the audit log: {line}"))?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let object = &event["objectRef"];
        let what = match object["resource"].as_str() {
            Some(resource) => format!("{resource} {}", text(&object["subresource"])),
            None => text(&event["requestURI"]),
        };
        *counts.entry(format!("{} {}", text(&event["verb"]), what.trim_end())).or_default() += 1;
    }
    Ok(counts)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_verb_and_resource_each_once() {
        let dir = std::env::temp_dir().join(format!("limpet-audit-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let mut audit = Audit::prepare(&dir).unwrap();
        let lines = [
            r#"{"verb":"patch","objectRef":{"resource":"pods","subresource":"status"}}"#,
            r#"{"verb":"watch","objectRef":{"resource":"pods"}}"#,
            r#"{"verb":"get","requestURI":"/api"}"#,
        ];
        let half = format!("{}\n{}", lines[0], &lines[1][..9]);
        fs::write(audit.file("log"), &half).unwrap();
        assert_eq!(audit.requests().unwrap(), BTreeMap::from([("patch pods status".to_owned(), 1)]));
        fs::write(audit.file("log"), format!("{}\n", lines.join("\n"))).unwrap();
        let rest = BTreeMap::from([("watch pods".to_owned(), 1), ("get /api".to_owned(), 1)]);
        assert_eq!((audit.requests().unwrap(), audit.requests().unwrap()), (rest, BTreeMap::new()));
        fs::remove_dir_all(&dir).unwrap();
    }
}
