//! Requests of the cluster's administrator, by curl.

use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use super::{CURL_FILES, Cluster};
use crate::process;

/// How a patch of the tests is applied.
const MERGE_PATCH: &str = "application/merge-patch+json";
const APPLY_PATCH: &str = "application/apply-patch+yaml";
const STRATEGIC_PATCH: &str = "application/strategic-merge-patch+json";

impl Cluster {
    /// The object at `path`; `None` if there is none.
    pub fn get(&self, path: &str) -> Result<Option<Value>> {
        match self.request("GET", path, None)? {
            (404, _) => Ok(None),
            (200, body) => Ok(Some(serde_json::from_str(&body)?)),
            (code, body) => bail!("GET {path}: {code} {body}"),
        }
    }

    /// The items of the list at `path`.
    pub fn list(&self, path: &str) -> Result<Vec<Value>> {
        let list = self.get(path)?.with_context(|| format!("nothing at {path}"))?;
        Ok(list["items"].as_array().cloned().unwrap_or_default())
    }

    /// Creates an object.
    pub fn create(&self, path: &str, object: &Value) -> Result<()> {
        self.done("POST", path, Some(("application/json", object)))
    }

    /// Creates all of them, with few connections.
    pub fn create_all(&self, path: &str, objects: &[Value]) -> Result<()> {
        let credentials: String = CURL_FILES
            .iter()
            .map(|(option, name)| format!("{option} = \"{}\"\n", self.certificates.file(name).display()))
            .collect();
        let request = |object: &Value| {
            // A JSON string is also one of curl's.
            let data = Value::String(object.to_string());
            format!(
                "url = \"{}{path}\"\nheader = \"Content-Type: application/json\"\ndata-binary = {data}\n\
                 output = /dev/null\nfail\n{credentials}",
                self.address()
            )
        };
        let requests: Vec<_> = objects.iter().map(request).collect();
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--show-error", "--parallel", "--parallel-max", "8", "--config", "-"]);
        let output = process::run(&mut curl, requests.join("next\n").as_bytes())?;
        ensure!(output.status.success(), "POST {path}: {}", String::from_utf8_lossy(&output.stderr).trim());
        Ok(())
    }

    /// Creates something that is answered and not stored, such as a review.
    pub fn ask(&self, path: &str, object: &Value) -> Result<Value> {
        let (code, answer) = self.request("POST", path, Some(("application/json", object)))?;
        ensure!((200..300).contains(&code), "POST {path}: {code} {answer}");
        Ok(serde_json::from_str(&answer)?)
    }

    /// Creates or changes the object at `path` like `kubectl apply --server-side`.
    pub fn apply(&self, path: &str, object: &Value) -> Result<()> {
        self.done("PATCH", &format!("{path}?fieldManager=limpet-tests&force=true"), Some((APPLY_PATCH, object)))
    }

    /// curl that writes what is at `path` as it comes, without an end.
    pub fn stream(&self, path: &str) -> Command {
        let mut curl = self.curl(path);
        // Of two values of one option the later one counts.
        curl.args(["--no-buffer", "--max-time", "0"]);
        curl
    }

    /// Changes fields like `kubectl patch --type=merge`.
    pub fn patch(&self, path: &str, patch: &Value) -> Result<()> {
        self.done("PATCH", path, Some((MERGE_PATCH, patch)))
    }

    /// Changes fields like `kubectl patch`: items of lists are merged by name.
    pub fn patch_items(&self, path: &str, patch: &Value) -> Result<()> {
        self.done("PATCH", path, Some((STRATEGIC_PATCH, patch)))
    }

    /// Deletes like `kubectl delete` without `--wait`.
    pub fn delete(&self, path: &str) -> Result<()> {
        self.done("DELETE", path, None)
    }

    /// What would be at `path` after a replacement by an object of the core API in protobuf; nothing is stored.
    pub fn try_encoded(&self, path: &str, kind: &str, object: &[u8]) -> Result<Value> {
        let mut curl = self.curl(&format!("{path}?dryRun=All"));
        curl.args(["--request", "PUT", "--header", "Accept: application/json", "--data-binary", "@-"]);
        curl.args(["--header", "Content-Type: application/vnd.kubernetes.protobuf"]);
        let output = process::run(&mut curl, &enveloped(kind, object))?;
        let answer: Value = serde_json::from_slice(&output.stdout)?;
        ensure!(answer["kind"] == kind, "PUT {path}: {answer}");
        Ok(answer)
    }

    fn done(&self, method: &str, path: &str, body: Option<(&str, &Value)>) -> Result<()> {
        let (code, answer) = self.request(method, path, body)?;
        ensure!((200..300).contains(&code), "{method} {path}: {code} {answer}");
        Ok(())
    }

    /// curl, as the administrator.
    pub(super) fn curl(&self, path: &str) -> Command {
        let mut command = Command::new("curl");
        command.args(["--silent", "--show-error", "--max-time", "30"]);
        for (option, name) in CURL_FILES {
            command.arg(format!("--{option}")).arg(self.certificates.file(name));
        }
        command.arg(format!("{}{path}", self.address()));
        command
    }

    /// The text at `path`, which is not JSON.
    pub fn text(&self, path: &str) -> Result<String> {
        let (code, body) = self.request("GET", path, None)?;
        ensure!(code == 200, "GET {path}: {code} {body}");
        Ok(body)
    }

    /// The text with which a POST without a body is answered.
    pub fn post(&self, path: &str) -> Result<String> {
        let (code, body) = self.request("POST", path, None)?;
        ensure!(code == 200, "POST {path}: {code} {body}");
        Ok(body)
    }

    /// Makes one request of the administrator's by curl. Returns the status and the body.
    pub(super) fn request(&self, method: &str, path: &str, body: Option<(&str, &Value)>) -> Result<(u16, String)> {
        let mut command = self.curl(path);
        command.args(["--request", method, "--write-out", "\n%{http_code}"]);
        if let Some((content_type, _)) = body {
            command.args(["--header", &format!("Content-Type: {content_type}"), "--data-binary", "@-"]);
        }
        let input = body.map(|(_, body)| body.to_string()).unwrap_or_default();
        let output = process::run(&mut command, input.as_bytes())?;
        ensure!(output.status.success(), "{method} {path}: {}", String::from_utf8_lossy(&output.stderr).trim());
        let said = String::from_utf8(output.stdout)?;
        let (body, code) = said.rsplit_once('\n').context("curl says no status")?;
        Ok((code.trim().parse()?, body.to_owned()))
    }
}

/// An encoded object in the apiserver's form: a magic number, then a `runtime.Unknown` with its type and its bytes.
fn enveloped(kind: &str, object: &[u8]) -> Vec<u8> {
    let field = |number: u8, bytes: &[u8]| {
        let mut field = vec![number << 3 | 2];
        let mut length = bytes.len();
        while length >= 0x80 {
            // The lowest seven bits, with the mark that more follow.
            field.push(length as u8 | 0x80);
            length >>= 7;
        }
        field.push(length as u8);
        field.extend_from_slice(bytes);
        field
    };
    let type_meta = [field(1, b"v1"), field(2, kind.as_bytes())].concat();
    [b"k8s\0".to_vec(), field(1, &type_meta), field(2, object)].concat()
}
