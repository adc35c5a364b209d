//! `limpet debug`: adds a container to a running pod, as `kubectl debug` does, with no apiserver.

use std::fmt::Write as _;

use clap_complete::engine::ArgValueCompleter;
use k8s_openapi::api::core::v1::{
    Capabilities, ContainerState, EnvVar, EphemeralContainer, Pod, SeccompProfile, SecurityContext,
};
use serde_json::Value;

use super::error::CliError;
use super::screen::Screen;
use super::target::find;
use super::{attach, completion, logs};
use limpet_wire::pods::{PodChange, PodNames};
use limpet_wire::socket_client::{ClientError, SocketClient};

/// The characters of the random suffix after `debugger-`, as in kubectl: they form no words.
const SUFFIX: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// `limpet debug`.
#[derive(Debug, clap::Args)]
#[command(after_help = "The container ends with the pod, is never restarted, and cannot be removed before.")]
pub struct DebugArgs {
    /// The pod: its name, with or without the node name, or namespace/name
    #[arg(add = ArgValueCompleter::new(completion::pods))]
    pod: String,
    /// The image of the container
    #[arg(long)]
    image: String,
    /// The name of the container [default: debugger- and five random characters]
    #[arg(short, long)]
    container: Option<String>,
    /// Let it see the processes of this container of the pod
    #[arg(long, value_name = "CONTAINER", add = ArgValueCompleter::new(completion::containers))]
    target: Option<String>,
    /// Attach standard input, once it runs
    #[arg(short = 'i', long)]
    stdin: bool,
    /// Give it a terminal; needs -i
    #[arg(short, long, requires = "stdin")]
    tty: bool,
    /// Set an environment variable; may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable)]
    env: Vec<EnvVar>,
    /// What it may do
    #[arg(long, value_enum, default_value_t)]
    profile: Profile,
    /// When the image is pulled
    #[arg(long, value_name = "POLICY", value_parser = ["Always", "IfNotPresent", "Never"])]
    image_pull_policy: Option<String>,
    /// The pod's namespace
    #[arg(short, long)]
    namespace: Option<String>,
    /// The command, instead of the image's
    #[arg(last = true)]
    command: Vec<String>,
}

/// kubectl's profiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
enum Profile {
    /// It may trace the processes it sees
    #[default]
    General,
    /// Nothing beyond a container's defaults
    Baseline,
    /// Not root, without capabilities
    Restricted,
    /// It may change the pod's network
    Netadmin,
    /// Privileged
    Sysadmin,
}

impl Profile {
    fn security_context(self) -> Option<SecurityContext> {
        let none = SecurityContext::default;
        let adding = |names: &[&str]| {
            let add = names.iter().map(ToString::to_string).collect();
            let capabilities = Some(Capabilities { add: Some(add), drop: None });
            SecurityContext { capabilities, ..none() }
        };
        match self {
            Self::General => Some(adding(&["SYS_PTRACE"])),
            Self::Baseline => None,
            Self::Restricted => Some(SecurityContext {
                run_as_non_root: Some(true),
                capabilities: Some(Capabilities { add: None, drop: Some(vec!["ALL".to_owned()]) }),
                allow_privilege_escalation: Some(false),
                seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".to_owned(), localhost_profile: None }),
                ..none()
            }),
            Self::Netadmin => Some(adding(&["NET_ADMIN", "NET_RAW"])),
            Self::Sysadmin => Some(SecurityContext { privileged: Some(true), ..none() }),
        }
    }
}

fn variable(text: &str) -> Result<EnvVar, String> {
    let (name, value) = text.split_once('=').filter(|(name, _)| !name.is_empty()).ok_or("expected NAME=VALUE")?;
    Ok(EnvVar { name: name.to_owned(), value: Some(value.to_owned()), value_from: None })
}

/// Adds the container; with `-i`, waits until it runs and attaches to it.
///
/// # Errors
///
/// The agent cannot be reached or rejects the container, or the container cannot run.
pub(super) async fn run(client: &SocketClient, args: DebugArgs, screen: Screen) -> Result<u8, CliError> {
    let pod = find(client, &args.pod, args.namespace.as_deref()).await?;
    let (stdin, tty) = (args.stdin, args.tty);
    let name = match &args.container {
        Some(name) => name.clone(),
        None => {
            let name = free_name(&pod);
            screen.remark(&format!("Defaulting debug container name to {name}."))?;
            name
        }
    };
    let path = format!("/limpet/v1/pods/{}/{}/debug", pod.namespace, pod.name);
    let _: Value = client.post_json(&path, &container(args, name.clone())).await?;
    if !stdin {
        return Ok(0);
    }
    let log = format!("/containerLogs/{}/{}/{name}?follow=true", pod.namespace, pod.name);
    if !begun(client, &pod, &name, screen).await? {
        return logs::print(client, &log).await;
    }
    let tty = tty && std::io::IsTerminal::is_terminal(&std::io::stdin());
    match attach::connect(client, (&pod.key()?, &name), true, tty, screen).await {
        // The container has ended meanwhile.
        Err(CliError::Client(ClientError::Refused { status: 404, .. })) => logs::print(client, &log).await,
        attached => attached,
    }
}

fn container(args: DebugArgs, name: String) -> EphemeralContainer {
    EphemeralContainer {
        name,
        image: Some(args.image),
        image_pull_policy: args.image_pull_policy,
        command: (!args.command.is_empty()).then_some(args.command),
        env: (!args.env.is_empty()).then_some(args.env),
        stdin: args.stdin.then_some(true),
        tty: args.tty.then_some(true),
        target_container_name: args.target,
        security_context: args.profile.security_context(),
        termination_message_policy: Some("File".to_owned()),
        ..EphemeralContainer::default()
    }
}

fn free_name(pod: &PodNames) -> String {
    loop {
        let mut name = "debugger-".to_owned();
        (0..5).for_each(|_| name.push(char::from(SUFFIX[fastrand::usize(..SUFFIX.len())])));
        if !pod.containers.contains(&name) {
            return name;
        }
    }
}

/// Waits until the container runs, and prints what it waits for. Returns false if it has already ended.
async fn begun(client: &SocketClient, names: &PodNames, container: &str, screen: Screen) -> Result<bool, CliError> {
    let mut changes = client.lines::<PodChange>("/limpet/v1/pods?watch=1").await?;
    let mut said = String::new();
    while let Some(change) = changes.next().await? {
        let (entry, gone) = match change {
            PodChange::Added(entry) | PodChange::Modified(entry) => (entry, false),
            PodChange::Deleted(entry) => (entry, true),
            PodChange::Synced => continue,
        };
        let metadata = &entry.pod.metadata;
        if metadata.name.as_deref() != Some(&names.name) || metadata.namespace.as_deref() != Some(&names.namespace) {
            continue;
        }
        if gone {
            return Err(CliError::Target(format!("pod {} has ended", names.name)));
        }
        let Some(state) = state(&entry.pod, container) else { continue };
        if state.running.is_some() {
            return Ok(true);
        }
        if let Some(ended) = &state.terminated {
            return match ended.reason.as_deref() {
                Some("StartError") => {
                    let why = ended.message.as_deref().unwrap_or_default();
                    Err(CliError::Target(format!("container {container} cannot be run: {why}")))
                }
                _ => Ok(false),
            };
        }
        let mut waits = String::new();
        if let Some(waiting) = &state.waiting
            && let Some(message) = waiting.message.as_deref().filter(|message| !message.is_empty())
        {
            let _ = write!(waits, "container {container}: {message}");
        }
        if !waits.is_empty() && waits != said {
            screen.remark(&waits)?;
            said = waits;
        }
    }
    Err(ClientError::Connection { socket: client.socket().to_owned(), message: "limpet has stopped".to_owned() }.into())
}

fn state<'a>(pod: &'a Pod, container: &str) -> Option<&'a ContainerState> {
    let mut statuses = pod.status.as_ref()?.ephemeral_container_statuses.iter().flatten();
    statuses.find(|status| status.name == container)?.state.as_ref()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use clap::Parser;
    use serde_json::json;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: DebugArgs,
    }

    fn parse(line: &str) -> Result<DebugArgs, String> {
        let words = ["debug", "web", "--image", "busybox"].into_iter().chain(line.split_whitespace());
        Line::try_parse_from(words).map(|line| line.args).map_err(|error| error.to_string())
    }

    #[test]
    fn the_command_line_becomes_the_container_that_kubectl_makes() {
        let base = json!({ "name": "d", "image": "busybox", "terminationMessagePolicy": "File" });
        let ptrace = json!({ "capabilities": { "add": ["SYS_PTRACE"] } });
        let cases = [
            ("", json!({ "securityContext": ptrace })),
            ("--profile baseline", json!({})),
            ("--profile sysadmin", json!({ "securityContext": { "privileged": true } })),
            (
                "--profile netadmin",
                json!({ "securityContext": { "capabilities": { "add": ["NET_ADMIN", "NET_RAW"] } } }),
            ),
            (
                "--profile restricted",
                json!({ "securityContext": { "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] },
                    "runAsNonRoot": true, "seccompProfile": { "type": "RuntimeDefault" } } }),
            ),
            (
                "-it --target main --profile baseline --env A=1 --env B=x=y -- sh -c true",
                json!({ "stdin": true, "tty": true, "targetContainerName": "main", "command": ["sh", "-c", "true"],
                    "env": [{ "name": "A", "value": "1" }, { "name": "B", "value": "x=y" }] }),
            ),
            ("-i --profile baseline", json!({ "stdin": true })),
            ("--profile baseline --image-pull-policy Never", json!({ "imagePullPolicy": "Never" })),
        ];
        for (line, fields) in cases {
            let mut expected = base.clone();
            expected.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            let made = serde_json::to_value(container(parse(line).unwrap(), "d".to_owned())).unwrap();
            assert_eq!(made, expected, "{line}");
        }
    }

    #[test]
    fn invalid_arguments_are_rejected() {
        for line in ["-t", "--profile root", "--env A", "--env =1", "--image-pull-policy always"] {
            assert!(parse(line).is_err(), "{line}");
        }
    }

    #[test]
    fn a_name_is_made_that_the_pod_does_not_have() {
        let pod = PodNames {
            namespace: "default".to_owned(),
            name: "web-edge1".to_owned(),
            manifest_name: "web".to_owned(),
            containers: vec!["main".to_owned()],
        };
        let name = free_name(&pod);
        assert!(name.len() == 14 && name.starts_with("debugger-"), "{name}");
    }
}
