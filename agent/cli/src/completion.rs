//! `limpet completion`, and dynamic completion of pod and container names, which queries the agent.
//!
//! The shell runs limpet for every completion, so it must be fast and fails silently.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::time::Duration;

use clap_complete::engine::CompletionCandidate;
use clap_complete::env::Shells;

use super::DEFAULT_SOCKET;
use super::error::CliError;
use super::screen::Screen;
use limpet_wire::pods::PodNames;
use limpet_wire::socket_client::SocketClient;

/// How long completion may take.
const COMPLETION_TIMEOUT: Duration = Duration::from_millis(400);

/// Arguments of `limpet completion`.
#[derive(Debug, clap::Args)]
#[command(after_help = "bash: source <(limpet completion bash)   zsh: source <(limpet completion zsh)   \
fish: limpet completion fish | source")]
pub struct CompletionArgs {
    /// The shell
    #[arg(value_parser = ["bash", "elvish", "fish", "zsh"])]
    shell: String,
}

pub(super) fn run(args: &CompletionArgs, screen: Screen) -> Result<u8, CliError> {
    let mut script = Vec::new();
    let shells = Shells::builtins();
    let shell =
        shells.completer(&args.shell).ok_or_else(|| CliError::Usage(format!("no completion for {}", args.shell)))?;
    shell.write_registration("COMPLETE", "limpet", "limpet", "limpet", &mut script)?;
    screen.print(&String::from_utf8_lossy(&script))?;
    Ok(0)
}

/// Candidates for a POD argument.
pub(crate) fn pods(typed: &OsStr) -> Vec<CompletionCandidate> {
    candidates(typed, &pod_names(&names()))
}

/// Candidates for a container name: those of the pods on the command line so far, or of all pods.
pub(crate) fn containers(typed: &OsStr) -> Vec<CompletionCandidate> {
    let words: Vec<String> = std::env::args().collect();
    candidates(typed, &container_names(&names(), &words))
}

fn candidates(typed: &OsStr, names: &BTreeSet<String>) -> Vec<CompletionCandidate> {
    let typed = typed.to_string_lossy();
    names.iter().filter(|name| name.starts_with(&*typed)).map(CompletionCandidate::new).collect()
}

/// Names that [`super::target::resolve`] resolves unambiguously.
fn pod_names(pods: &[PodNames]) -> BTreeSet<String> {
    let count = |name: &str| pods.iter().filter(|pod| pod.name == name).count();
    let name = |pod: &PodNames| match count(&pod.name) {
        1 => pod.name.clone(),
        _ => format!("{}/{}", pod.namespace, pod.name),
    };
    pods.iter().map(name).collect()
}

fn container_names(pods: &[PodNames], words: &[String]) -> BTreeSet<String> {
    let named = |pod: &&PodNames| {
        let full = format!("{}/{}", pod.namespace, pod.name);
        words.iter().any(|word| *word == pod.name || *word == pod.manifest_name || *word == full)
    };
    let chosen: Vec<&PodNames> = pods.iter().filter(named).collect();
    let chosen = if chosen.is_empty() { pods.iter().collect() } else { chosen };
    chosen.into_iter().flat_map(|pod| pod.containers.iter().cloned()).collect()
}

fn names() -> Vec<PodNames> {
    let socket = std::env::var_os("LIMPET_SOCKET").map_or_else(|| PathBuf::from(DEFAULT_SOCKET), PathBuf::from);
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return Vec::new() };
    let client = SocketClient::new(&socket);
    let asked = async { tokio::time::timeout(COMPLETION_TIMEOUT, client.get_json("/limpet/v1/names")).await };
    runtime.block_on(asked).ok().and_then(Result::ok).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_completed_unambiguously() {
        let pod = |namespace: &str, name: &str, container: &str| PodNames {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            manifest_name: name.trim_end_matches("-edge1").to_owned(),
            containers: vec![container.to_owned()],
        };
        let pods = [pod("a", "db-edge1", "x"), pod("b", "db-edge1", "y"), pod("a", "web-edge1", "z")];
        let names: Vec<String> = pod_names(&pods).into_iter().collect();
        assert_eq!(names, ["a/db-edge1", "b/db-edge1", "web-edge1"]);
        let candidates = |words: &[&str]| -> Vec<String> {
            container_names(&pods, &words.iter().map(ToString::to_string).collect::<Vec<_>>()).into_iter().collect()
        };
        assert_eq!(candidates(&["limpet", "logs", "web", "-c"]), ["z"]);
        assert_eq!(candidates(&["limpet", "logs", "b/db-edge1", "-c"]), ["y"]);
        assert_eq!(candidates(&["limpet", "logs", "-c"]), ["x", "y", "z"]);
    }
}
