//! Runs the program of a kubeconfig's `exec`, which prints an `ExecCredential`: a token, or a certificate with its
//! key.

use std::process::{Command, Stdio};

use k8s_openapi::jiff::Timestamp;
use kube::config::{ExecConfig, ExecInteractiveMode};
use serde_json::{Value, json};

use crate::credentials_error::CredentialsError;

/// The program's name in messages.
pub(crate) const FIELD: &str = "the program of users[].user.exec";
/// The most characters of its error output in a message.
const MAX_COMPLAINT: usize = 1_024;

/// The credentials that the program printed.
pub(crate) struct Issued {
    pub(crate) token: Option<String>,
    /// Certificate and key in PEM.
    pub(crate) identity: Option<(String, String)>,
    /// `None` means never.
    pub(crate) expires: Option<Timestamp>,
}

/// Runs the program with the environment that kubelet gives it. Blocks.
///
/// # Errors
///
/// It fails, or prints anything else. The message shows neither output nor environment, which may be secret.
pub(crate) fn run(exec: &ExecConfig) -> Result<Issued, CredentialsError> {
    let command = exec.command.as_deref().filter(|command| !command.is_empty());
    let command = command.ok_or_else(|| CredentialsError(format!("{FIELD}: command is not set; name a program")))?;
    let is_interactive = exec.interactive_mode != Some(ExecInteractiveMode::Never);
    let mut spec = json!({ "interactive": is_interactive });
    if let Some(cluster) = &exec.cluster {
        let cluster = serde_json::to_value(cluster);
        spec["cluster"] = cluster.map_err(|error| CredentialsError(format!("{FIELD}: cluster: {error}")))?;
    }
    let info = json!({ "kind": "ExecCredential", "apiVersion": exec.api_version, "spec": spec });
    let mut program = Command::new(command);
    program.args(exec.args.iter().flatten()).env("KUBERNETES_EXEC_INFO", info.to_string());
    for variable in exec.env.iter().flatten() {
        if let (Some(name), Some(value)) = (variable.get("name"), variable.get("value")) {
            program.env(name, value);
        }
    }
    if is_interactive {
        program.stdin(Stdio::inherit()).stderr(Stdio::inherit());
    } else {
        program.stdin(Stdio::null());
    }
    let ended = program.output().map_err(|error| CredentialsError(format!("{FIELD} cannot be started: {error}")))?;
    if !ended.status.success() {
        let complaint = String::from_utf8_lossy(&ended.stderr);
        // If stderr was not captured, its text is in the agent's own log.
        let complaint = complaint.lines().find(|line| !line.trim().is_empty()).unwrap_or("see the agent's log");
        let complaint: String = complaint.trim().chars().take(MAX_COMPLAINT).collect();
        return Err(CredentialsError(format!("{FIELD} failed, {}: {complaint}", ended.status)));
    }
    read(&ended.stdout).ok_or_else(|| CredentialsError(format!("the output of {FIELD} is not an ExecCredential")))
}

/// The content of an `ExecCredential`; `None` if the output is none.
fn read(output: &[u8]) -> Option<Issued> {
    let credential: Value = serde_json::from_slice(output).ok()?;
    let status = credential["status"].as_object()?;
    let text = |name: &str| status.get(name).and_then(Value::as_str).filter(|text| !text.is_empty()).map(str::to_owned);
    let expires = match status.get("expirationTimestamp") {
        None | Some(Value::Null) => None,
        Some(time) => Some(time.as_str()?.parse().ok()?),
    };
    let identity = text("clientCertificateData").zip(text("clientKeyData"));
    Some(Issued { token: text("token"), identity, expires })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn shell(script: &str, mode: Option<ExecInteractiveMode>) -> ExecConfig {
        let text = |text: &str| text.to_owned();
        let args = Some(vec![text("-c"), text(script)]);
        ExecConfig { command: Some(text("sh")), args, interactive_mode: mode, ..ExecConfig::default() }
    }

    fn failure(exec: &ExecConfig) -> String {
        run(exec).err().unwrap().to_string()
    }

    #[test]
    fn a_program_that_fails_is_named_without_what_it_printed() {
        let never = || Some(ExecInteractiveMode::Never);
        let failing = |script: &str| failure(&shell(&format!("echo hidden; {script}; exit 1"), never()));
        assert_eq!(
            failing("printf '\\nno login\\nat all\\n' >&2"),
            format!("{FIELD} failed, exit status: 1: no login")
        );
        assert_eq!(failing(":"), format!("{FIELD} failed, exit status: 1: see the agent's log"));
        let missing = ExecConfig { command: Some("/nowhere/login".to_owned()), ..ExecConfig::default() };
        assert_eq!(failure(&missing), format!("{FIELD} cannot be started: No such file or directory (os error 2)"));
        assert_eq!(failure(&ExecConfig::default()), format!("{FIELD}: command is not set; name a program"));
    }

    #[test]
    fn a_program_prints_a_credential() {
        let print = r#"printf '%s' '{"status": {"clientCertificateData": "C", "clientKeyData": "K",
            "expirationTimestamp": "2030-01-02T03:04:05Z"}}'"#;
        let issued = run(&shell(print, None)).unwrap();
        assert_eq!(issued.identity, Some(("C".to_owned(), "K".to_owned())));
        assert_eq!((issued.token, issued.expires), (None, Some("2030-01-02T03:04:05Z".parse().unwrap())));
        for other in ["[]", "{}", r#"{"status": null}"#, r#"{"status": {"expirationTimestamp": "soon"}}"#, "token"] {
            assert!(read(other.as_bytes()).is_none(), "{other}");
        }
        let asked = r#"printf '{"status": {"token": "%s"}}' "$(printf %s "$KUBERNETES_EXEC_INFO" | tr -d '"')""#;
        let mut exec = shell(asked, Some(ExecInteractiveMode::Never));
        exec.api_version = Some("v1".to_owned());
        let token = run(&exec).unwrap().token.unwrap();
        assert_eq!(token, "{apiVersion:v1,kind:ExecCredential,spec:{interactive:false}}");
    }
}
