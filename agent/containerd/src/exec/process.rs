//! The OCI process of a command for containerd, and the exit code for a command that could not be started.

use serde::Deserialize;
use serde_json::{Map, Value};

/// The fields that are read of an OCI spec; most of a spec is seccomp rules.
#[derive(Deserialize)]
struct Spec {
    process: Option<Map<String, Value>>,
}

/// The OCI process of a command in a container: the container's own process (user, groups, environment, working
/// directory, capabilities, limits) with other arguments. `spec` is the container's OCI spec.
pub(super) fn process(spec: &[u8], command: &[String], tty: bool) -> Result<Vec<u8>, String> {
    let spec: Spec = serde_json::from_slice(spec).map_err(|error| error.to_string())?;
    let mut process = spec.process.ok_or("it has no process")?;
    process.insert("args".to_owned(), command.into());
    process.insert("terminal".to_owned(), tty.into());
    process.remove("commandLine");
    process.remove("consoleSize");
    if tty {
        let env = process.entry("env").or_insert_with(|| Value::Array(Vec::new()));
        if let Value::Array(env) = env
            && !env.iter().any(|pair| pair.as_str().is_some_and(|pair| pair.starts_with("TERM=")))
        {
            env.push("TERM=xterm".into());
        }
    }
    serde_json::to_vec(&process).map_err(|error| error.to_string())
}

/// A shell's exit code for a command that containerd could not start, and runc's message; `None` when the failure is not
/// caused by the command.
pub(super) fn not_started(message: &str) -> Option<(i32, &str)> {
    let reason = message.find("exec: \"").map(|at| message[at..].trim_end_matches(": unknown"))?;
    let code = if reason.contains("executable file not found") || reason.contains("no such file or directory") {
        127
    } else if ["permission denied", "is a directory", "exec format error"].iter().any(|word| reason.contains(word)) {
        126
    } else {
        return None;
    };
    Some((code, reason))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_command_runs_as_the_container_does() {
        let spec = json!({"process": {
            "args": ["nginx"], "cwd": "/srv", "user": {"uid": 7}, "env": ["A=b"], "terminal": true,
            "consoleSize": {"height": 1, "width": 1}, "noNewPrivileges": true, "selinuxLabel": "u:r:t:s0",
        }});
        let made = process(spec.to_string().as_bytes(), &["ls".to_owned(), "-l".to_owned()], false).unwrap();
        assert_eq!(
            serde_json::from_slice::<Value>(&made).unwrap(),
            json!({
                "args": ["ls", "-l"], "cwd": "/srv", "user": {"uid": 7}, "env": ["A=b"], "terminal": false,
                "noNewPrivileges": true, "selinuxLabel": "u:r:t:s0",
            })
        );
    }

    #[test]
    fn a_terminal_has_a_name() {
        for (env, expected) in [
            (json!(["A=b"]), json!(["A=b", "TERM=xterm"])),
            (json!(["TERM=vt100"]), json!(["TERM=vt100"])),
            (Value::Null, json!(["TERM=xterm"])),
        ] {
            let mut spec = json!({"process": {"env": env}});
            if spec["process"]["env"].is_null() {
                spec["process"].as_object_mut().unwrap().remove("env");
            }
            let made = process(spec.to_string().as_bytes(), &[], true).unwrap();
            assert_eq!(serde_json::from_slice::<Value>(&made).unwrap()["env"], expected);
        }
    }

    #[test]
    fn a_spec_without_process_is_refused() {
        assert!(process(b"{}", &[], false).is_err());
        assert!(process(b"{", &[], false).is_err());
    }

    #[test]
    fn runcs_messages_become_a_shells_exit_codes() {
        let words = |what: &str| {
            format!("OCI runtime exec failed: exec failed: unable to start container process: exec: {what}: unknown")
        };
        for (what, code) in [
            ("\"foo\": executable file not found in $PATH", Some(127)),
            ("\"/foo\": stat /foo: no such file or directory", Some(127)),
            ("\"/etc/passwd\": permission denied", Some(126)),
            ("\"/etc\": is a directory", Some(126)),
            ("\"x\": too many open files", None),
        ] {
            assert_eq!(not_started(&words(what)).map(|(code, _)| code), code, "{what}");
        }
        assert_eq!(not_started("chdir to cwd (\"/gone\"): no such file or directory: unknown"), None);
        assert_eq!(
            not_started(&words("\"foo\": executable file not found in $PATH")).unwrap().1,
            "exec: \"foo\": executable file not found in $PATH"
        );
    }
}
