//! Runs programs for generations: the user's check, and those of the boot check.

use std::path::{Path, PathBuf};
use std::time::Duration;

use limpet_generations::{CheckAction, Settings};
use limpet_host::program;
use limpet_model::error_chain::error_chain;
use limpet_model::source::SourceKind;
use tokio::process::Command;

use super::GenerationSettings;

/// How long a program of the boot check may take.
const PROGRAM_DEADLINE: Duration = Duration::from_secs(60);
/// Bytes of a failed check's output that are shown.
const MAX_SHOWN: usize = 200;

/// Runs the user's check of a generation.
///
/// # Errors
/// It was not passed, and why.
pub(super) async fn run(settings: &Settings, source: SourceKind, number: u64) -> Result<(), String> {
    let deadline = settings.check_timeout;
    match &settings.check {
        None => Ok(()),
        Some(CheckAction::Command(words)) => {
            let Some((program, arguments)) = words.split_first() else { return Ok(()) };
            let mut command = Command::new(program);
            command.args(arguments).env("LIMPET_SOURCE", source.as_str()).env("LIMPET_GENERATION", number.to_string());
            succeeds(command, deadline).await
        }
        Some(CheckAction::Url(url)) => {
            let client = reqwest::Client::builder().timeout(deadline).no_proxy().build();
            let client = client.map_err(|error| error_chain(&error))?;
            let status = client.get(url).send().await.map_err(|error| error_chain(&error))?.status();
            let is_good = status.is_success() || status.is_redirection();
            is_good.then_some(()).ok_or_else(|| format!("{url} answers with {status}"))
        }
    }
}

/// Runs every program of the boot check with `good` or `bad`.
pub(super) async fn report_boot(settings: &GenerationSettings, verdict: Result<(), String>) {
    let word = if verdict.is_ok() { "good" } else { "bad" };
    match &verdict {
        Ok(()) => tracing::info!("all pods of sources with generations are ready after this boot"),
        Err(why) => tracing::error!("this boot is not good: {why}"),
    }
    for program in programs(&settings.boot_check_dir).await {
        let mut command = Command::new(&program);
        command.arg(word).env("LIMPET_REASON", verdict.as_ref().err().map_or("", String::as_str));
        if let Err(error) = succeeds(command, PROGRAM_DEADLINE).await {
            tracing::error!(program = %program.display(), error, "a program of the boot check has failed");
        }
    }
}

/// The executable files of the directory, by name.
pub(super) async fn programs(directory: &Path) -> Vec<PathBuf> {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = directory.to_owned();
    let read = tokio::task::spawn_blocking(move || {
        let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
        let is_program = |path: &PathBuf| {
            path.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
        };
        let mut programs: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_program).collect();
        programs.sort();
        programs
    });
    read.await.unwrap_or_default()
}

async fn succeeds(command: Command, deadline: Duration) -> Result<(), String> {
    let name = Path::new(command.as_std().get_program()).display().to_string();
    let output = program::run(command, b"", deadline).await.map_err(|error| format!("{name}: {error}"))?;
    if output.success {
        return Ok(());
    }
    let code = output.code.map_or_else(|| "a signal".to_owned(), |code| code.to_string());
    let shown = [&output.stderr, &output.stdout].into_iter().find(|bytes| !bytes.is_empty());
    let shown = shown.map(|bytes| String::from_utf8_lossy(bytes).trim().chars().take(MAX_SHOWN).collect::<String>());
    Err(format!("{name} ended with {code}{}", shown.map(|shown| format!(": {shown}")).unwrap_or_default()))
}
