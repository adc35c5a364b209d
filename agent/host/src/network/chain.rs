//! Runs the plugins of one network: ADD and CHECK in order, DEL in reverse.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;
use tokio::process::Command;

use super::conflist::Conflist;
use super::record::Record;
use super::{INTERFACE, NetworkError, answer};
use crate::program;
use limpet_model::sandbox::PodAddresses;

/// The plugins' directories, and how long a plugin may take.
#[derive(Debug, Clone)]
pub(super) struct Plugins {
    pub dirs: Vec<PathBuf>,
    pub deadline: Duration,
}

/// Calls each plugin in order, with the previous one's result.
pub(super) async fn add(
    record: &Record,
    conflist: &Conflist,
    plugins: &Plugins,
) -> Result<(Value, PodAddresses), NetworkError> {
    let mut result: Option<Value> = None;
    for index in 0..conflist.plugins.len() {
        let stdin = conflist.stdin(index, result.as_ref(), record);
        let stdout = call(record, conflist, plugins, index, "add", &stdin).await?;
        let failed = |reason: String| failed_call(record, conflist.plugin_type(index), "add", reason);
        result = match stdout.trim_ascii() {
            // A plugin that adds nothing may print nothing.
            [] => result,
            text => {
                Some(serde_json::from_slice(text).map_err(|error| failed(format!("its result is no JSON: {error}")))?)
            }
        };
    }
    let result = result.unwrap_or_default();
    let last = conflist.plugin_type(conflist.plugins.len().saturating_sub(1));
    match answer::addresses(&result, INTERFACE) {
        Ok(addresses) => Ok((result, addresses)),
        Err(error) => Err(failed_call(record, last, "add", error.to_string())),
    }
}

pub(super) async fn check(record: &Record, result: &Value, plugins: &Plugins) -> Result<(), NetworkError> {
    let conflist = record.conflist().map_err(|reason| failed_call(record, "", "check", reason))?;
    if !conflist.checks() {
        return Ok(());
    }
    for index in 0..conflist.plugins.len() {
        let stdin = conflist.stdin(index, Some(result), record);
        call(record, &conflist, plugins, index, "check", &stdin).await?;
    }
    Ok(())
}

/// Calls each plugin in reverse order. All are called even after a failure, so that they release their resources; the
/// first failure is returned.
pub(super) async fn del(record: &Record, plugins: &Plugins) -> Result<(), NetworkError> {
    let conflist = record.conflist().map_err(|reason| failed_call(record, "", "del", reason))?;
    let previous = record.result.as_ref().filter(|_| !conflist.before_0_4());
    let mut outcome = Ok(());
    for index in (0..conflist.plugins.len()).rev() {
        let stdin = conflist.stdin(index, previous, record);
        let ended = call(record, &conflist, plugins, index, "del", &stdin).await.map(drop);
        outcome = outcome.and(ended);
    }
    outcome
}

/// Runs one command of one plugin; returns its output.
async fn call(
    record: &Record,
    conflist: &Conflist,
    plugins: &Plugins,
    index: usize,
    command: &'static str,
    stdin: &Value,
) -> Result<Vec<u8>, NetworkError> {
    let plugin = conflist.plugin_type(index);
    let executable = program::find(plugin, &plugins.dirs).await;
    let executable = executable.map_err(|error| failed_call(record, plugin, command, error.to_string()))?;
    let Some(program) = executable else {
        return Err(NetworkError::PluginMissing {
            pod: format!("{}/{}", record.namespace, record.name),
            plugin: plugin.to_owned(),
            dirs: bin_path(&plugins.dirs),
        });
    };
    let mut process = Command::new(program);
    let netns = network_namespace(record, command).map_err(|error| {
        let path = record.network_namespace.path.display();
        failed_call(record, plugin, command, format!("cannot stat {path}: {error}"))
    })?;
    process.envs(environment(record, command, netns, bin_path(&plugins.dirs)));
    let input = stdin.to_string();
    let output = program::run(process, input.as_bytes(), plugins.deadline).await.map_err(|error| {
        let reason = match error.kind() {
            io::ErrorKind::TimedOut => format!("killed, it took longer than {} s", plugins.deadline.as_secs()),
            _ => error.to_string(),
        };
        failed_call(record, plugin, command, reason)
    })?;
    if output.success {
        return Ok(output.stdout);
    }
    let (code, message) = answer::failure(&output.stdout, &output.stderr);
    let pod = format!("{}/{}", record.namespace, record.name);
    Err(NetworkError::Plugin { pod, plugin: plugin.to_owned(), command, code, message })
}

/// `CNI_NETNS`. Empty for a namespace that is gone: the plugins then release only what they hold outside it. If the
/// namespace still existed they would leave their interface, so this is not guessed.
fn network_namespace(record: &Record, command: &'static str) -> io::Result<String> {
    let namespace = &record.network_namespace;
    let is_there = command != "del" || namespace.exists()?;
    Ok(if is_there { namespace.path.to_string_lossy().into_owned() } else { String::new() })
}

/// CNI's variables, with the `CNI_ARGS` of Kubernetes' runtimes.
fn environment(record: &Record, command: &'static str, netns: String, path: String) -> [(&'static str, String); 6] {
    let args = format!(
        "IgnoreUnknown=1;K8S_POD_NAMESPACE={};K8S_POD_NAME={};K8S_POD_INFRA_CONTAINER_ID={uid};K8S_POD_UID={uid}",
        record.namespace,
        record.name,
        uid = record.uid
    );
    [
        ("CNI_COMMAND", command.to_ascii_uppercase()),
        ("CNI_CONTAINERID", record.uid.clone()),
        ("CNI_NETNS", netns),
        ("CNI_IFNAME", INTERFACE.to_owned()),
        ("CNI_ARGS", args),
        ("CNI_PATH", path),
    ]
}

fn failed_call(record: &Record, plugin: &str, command: &'static str, reason: String) -> NetworkError {
    let pod = format!("{}/{}", record.namespace, record.name);
    NetworkError::Invocation { pod, plugin: plugin.to_owned(), command, reason }
}

fn bin_path(dirs: &[PathBuf]) -> String {
    dirs.iter().map(|dir| dir.to_string_lossy()).collect::<Vec<_>>().join(":")
}
