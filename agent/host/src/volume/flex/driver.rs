//! A FlexVolume driver: its name, its program, its calls and its answers, parsed as leniently as in kubelet.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Map, Value};
use tokio::process::Command;

use crate::program;
use crate::volume::node_tools::{bounded, output_text};

/// The deadline of a call.
const CALL_DEADLINE: Duration = Duration::from_secs(120);
/// The prefix of Kubernetes' own kinds of volumes, which no driver may use.
pub(super) const RESERVED: &str = "kubernetes.io~";
/// A driver's answer to a call that it does not implement.
const NOT_SUPPORTED: &str = "Not supported";

/// The name of a driver as a directory, `vendor~driver`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Driver(pub String);

/// A driver's capabilities; as in kubelet, everything that it does not deny.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Capabilities {
    /// It attaches volumes to the node.
    pub attach: bool,
    /// Its files get the pod's `fsGroup`.
    pub fs_group: bool,
    /// Its files get the SELinux label of the container.
    pub relabel: bool,
}

/// Why a call failed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CallError {
    /// The driver does not implement it.
    NotSupported,
    /// The driver's message, or a note that there is none.
    Failed(String),
}

impl CallError {
    /// A sentence for users.
    pub(super) fn reason(self, call: &str) -> String {
        match self {
            Self::NotSupported => format!("{call}: status {NOT_SUPPORTED}"),
            Self::Failed(reason) => reason,
        }
    }
}

impl Driver {
    /// Parses a name; `None` if no directory of drivers can have it.
    pub(super) fn parse(name: &str) -> Option<Self> {
        let is_name = |part: &str| !part.is_empty() && !part.starts_with('.') && !part.contains(['~', '\0']);
        let escaped = name.replace('/', "~");
        (name.split('/').all(is_name) && !escaped.starts_with(RESERVED)).then_some(Self(escaped))
    }

    /// The name in manifests.
    pub(super) fn name(&self) -> String {
        self.0.replace('~', "/")
    }

    pub(super) fn program(&self, plugin_dir: &Path) -> PathBuf {
        plugin_dir.join(&self.0).join(self.0.rsplit('~').next().unwrap_or(&self.0))
    }
}

/// Calls the driver.
pub(super) async fn call(program: &Path, arguments: &[&str]) -> Result<Capabilities, CallError> {
    let what = arguments.first().copied().unwrap_or_default();
    let failed = |text: String| Err(CallError::Failed(text));
    let mut command = Command::new(program);
    command.args(arguments);
    let output = match program::run(command, b"", CALL_DEADLINE).await {
        Ok(output) => output,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return failed(format!("{} is not on this node: install the driver in volumePluginDir", program.display()));
        }
        Err(error) if error.kind() == io::ErrorKind::TimedOut => {
            return failed(format!("{what}: no answer from the driver for {} s", CALL_DEADLINE.as_secs()));
        }
        Err(error) => return failed(format!("{}: {error}", program.display())),
    };
    let answer = match Answer::read(&output.stdout) {
        Ok(answer) => answer,
        Err(_) if !output.success => return failed(format!("{what}: {}", output_text(&output))),
        Err(error) => return failed(format!("{what}: the driver's answer is not what FlexVolume requires: {error}")),
    };
    match (answer.status.as_str(), output.success) {
        ("Success", true) => Ok(answer.capabilities),
        ("Success", false) => {
            failed(format!("{what}: the driver failed with the status Success: {}", output_text(&output)))
        }
        (NOT_SUPPORTED, _) => Err(CallError::NotSupported),
        (status, _) => failed(format!("{what}: status {}", bounded(&format!("{status}: {}", answer.message)))),
    }
}

/// What a driver prints.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    status: String,
    message: String,
    capabilities: Capabilities,
}

impl Answer {
    /// Accepts keys in any case and `null`, as Go's decoder does: kubelet's own type writes `Capabilities`.
    fn read(text: &[u8]) -> Result<Self, String> {
        let fields: Map<String, Value> = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        let word = |name: &str| match field(&fields, name) {
            None => Ok(String::new()),
            Some(Value::String(word)) => Ok(word.clone()),
            Some(other) => Err(format!("{name} is {other}, not text")),
        };
        let none = Map::new();
        let able = match field(&fields, "capabilities") {
            None => &none,
            Some(Value::Object(able)) => able,
            Some(other) => return Err(format!("capabilities is {other}, not an object")),
        };
        let flag = |name: &str| match field(able, name) {
            None => Ok(true),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(other) => Err(format!("capabilities.{name} is {other}, not true or false")),
        };
        let capabilities =
            Capabilities { attach: flag("attach")?, fs_group: flag("fsGroup")?, relabel: flag("selinuxRelabel")? };
        Ok(Self { status: word("status")?, message: word("message")?, capabilities })
    }
}

/// The value of this key in any case, unless it is `null`.
fn field<'m>(fields: &'m Map<String, Value>, name: &str) -> Option<&'m Value> {
    let member = fields.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
    member.map(|(_, value)| value).filter(|value| !value.is_null())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_is_a_program_below_the_directory_of_plugins() {
        let program = |name: &str| Driver::parse(name).map(|driver| driver.program(Path::new("/plugins")));
        assert_eq!(program("fstab/cifs"), Some(PathBuf::from("/plugins/fstab~cifs/cifs")));
        assert_eq!(program("lvm"), Some(PathBuf::from("/plugins/lvm/lvm")));
        for name in ["", "/cifs", "fstab/", "../bin/sh", "a/../b", "a~..", ".hidden", "kubernetes.io/secret"] {
            assert_eq!(program(name), None, "{name}");
        }
    }

    #[test]
    fn a_driver_can_do_what_it_does_not_deny() {
        let able = |text: &str| {
            let Capabilities { attach, fs_group, relabel } = Answer::read(text.as_bytes()).unwrap().capabilities;
            (attach, fs_group, relabel)
        };
        let none_denied = (true, true, true);
        assert_eq!(able(r#"{"status": "Success"}"#), none_denied);
        assert_eq!(able(r#"{"status": "Success", "message": null, "capabilities": {"attach": null}}"#), none_denied);
        assert_eq!(able(r#"{"capabilities": {"attach": false, "supportsMetrics": true}}"#), (false, true, true));
        // The output of a driver that is written in Go with kubelet's types.
        let of_go =
            r#"{"status": "Success", "Capabilities": {"attach": false, "selinuxRelabel": false, "fsGroup": false}}"#;
        assert_eq!(able(of_go), (false, false, false));
        for wrong in ["", "[]", r#"{"status": 1}"#, r#"{"capabilities": []}"#, r#"{"capabilities": {"attach": "no"}}"#]
        {
            assert!(Answer::read(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }
}
