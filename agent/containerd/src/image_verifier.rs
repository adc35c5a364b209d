//! containerd's image verifiers: programs in a directory, each of which decides whether an image may be pulled.
//!
//! containerd's transfer service runs them before a pull. limpet pulls itself, so it runs them as containerd does: in
//! the order of their names, until one refuses. The settings are those in containerd's own configuration.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use limpet_host::blocking::{self, DEADLINE};
use limpet_host::program;
use limpet_model::go_duration;
use serde_json::{Value, json};
use tokio::process::Command;

/// The type of containerd's verifier plugins.
pub const PLUGIN_TYPE: &str = "io.containerd.image-verifier.v1";
/// The plugin that runs the programs of a directory.
pub const PLUGIN_ID: &str = "bindir";

/// The media type of the programs' standard input.
const DESCRIPTOR: &str = "application/vnd.oci.descriptor.v1+json";
/// The most bytes of a program's answer in a message.
const MAX_ANSWER: usize = 1 << 10;
/// The most files of containerd's configuration that are read.
const MAX_FILES: usize = 64;

/// The settings of the plugin `bindir`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifierSettings {
    /// `bin_dir`; need not exist.
    pub directory: PathBuf,
    /// `max_verifiers`; `None` means any number.
    pub limit: Option<usize>,
    /// `per_verifier_timeout`.
    pub timeout: Duration,
}

impl Default for VerifierSettings {
    fn default() -> Self {
        Self {
            directory: "/opt/containerd/image-verifier/bin".into(),
            limit: Some(10),
            timeout: Duration::from_secs(10),
        }
    }
}

/// The settings in containerd's configuration and its imports; `None` if the plugin is disabled. A file that does not
/// exist or is not TOML counts as empty; containerd would not run with it. Blocks.
pub fn settings(configuration: &Path) -> Option<VerifierSettings> {
    let mut settings = Some(VerifierSettings::default());
    for table in tables(configuration) {
        apply(&table, &mut settings);
    }
    settings
}

/// The tables of a configuration: its own, then those of its imports, which override it.
fn tables(configuration: &Path) -> Vec<toml::Table> {
    let read = |path: &Path| std::fs::read_to_string(path).ok().and_then(|text| text.parse::<toml::Table>().ok());
    let Some(table) = read(configuration) else { return Vec::new() };
    let directory = configuration.parent().unwrap_or(Path::new("/"));
    let imports: Vec<PathBuf> =
        texts(&table, "imports").flat_map(|pattern| imported(&directory.join(pattern))).collect();
    let imported = imports.iter().take(MAX_FILES).filter_map(|path| read(path));
    std::iter::once(table).chain(imported).collect()
}

/// The files that an import names: one file, or those in a directory that match its `*`.
fn imported(pattern: &Path) -> Vec<PathBuf> {
    let name = pattern.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let Some((begin, end)) = name.split_once('*') else { return vec![pattern.to_owned()] };
    let entries = pattern.parent().and_then(|directory| std::fs::read_dir(directory).ok());
    let paths = entries.into_iter().flatten().flatten().map(|entry| entry.path());
    let mut paths: Vec<PathBuf> = paths
        .filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.len() >= begin.len() + end.len() && name.starts_with(begin) && name.ends_with(end)
        })
        .collect();
    paths.sort();
    paths
}

fn texts<'a>(table: &'a toml::Table, key: &str) -> impl Iterator<Item = &'a str> {
    let list = table.get(key).and_then(toml::Value::as_array);
    list.into_iter().flatten().filter_map(toml::Value::as_str)
}

fn apply(table: &toml::Table, settings: &mut Option<VerifierSettings>) {
    let plugin = format!("{PLUGIN_TYPE}.{PLUGIN_ID}");
    if texts(table, "disabled_plugins").any(|disabled| disabled == plugin) {
        *settings = None;
    }
    let given = table.get("plugins").and_then(|plugins| plugins.get(&plugin));
    let (Some(given), Some(settings)) = (given, settings) else { return };
    if let Some(directory) = given.get("bin_dir").and_then(toml::Value::as_str) {
        settings.directory = directory.into();
    }
    if let Some(limit) = given.get("max_verifiers").and_then(toml::Value::as_integer) {
        settings.limit = usize::try_from(limit).ok();
    }
    let timeout = given.get("per_verifier_timeout").and_then(toml::Value::as_str).and_then(go_duration::parse);
    if let Some(timeout) = timeout {
        settings.timeout = timeout;
    }
}

/// What the programs decide about an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Judgement {
    /// No program refuses it. Has the programs' answers; empty without a program.
    Accepted(String),
    /// The program that refuses it or could not be run, and why.
    Refused(String),
}

/// Asks the programs about an image, by its name and descriptor.
///
/// # Errors
///
/// The directory cannot be read.
pub async fn judge(settings: &VerifierSettings, name: &str, digest: &str, descriptor: &Value) -> io::Result<Judgement> {
    let programs = programs(settings.directory.clone()).await?;
    let limit = settings.limit.unwrap_or(usize::MAX);
    if programs.len() > limit {
        tracing::warn!(
            directory = %settings.directory.display(), programs = programs.len(), limit,
            "image verifiers are skipped: there are more than max_verifiers"
        );
    }
    let mut answers = Vec::new();
    for path in programs.into_iter().take(limit) {
        let shown = path.display().to_string();
        let mut command = Command::new(&path);
        command.args(["-name", name, "-digest", digest, "-stdin-media-type", DESCRIPTOR]);
        let ran = program::run(command, descriptor.to_string().as_bytes(), settings.timeout).await;
        let output = match ran {
            Ok(output) => output,
            Err(error) => return Ok(Judgement::Refused(format!("image verifier {shown} could not be run: {error}"))),
        };
        let (answer, remarks) = (line(&output.stdout), line(&output.stderr));
        tracing::debug!(verifier = shown, image = name, answer, remarks, code = ?output.code, "image verifier");
        if !output.success {
            let code = output.code.map_or_else(|| "ended by a signal".to_owned(), |code| format!("exit code {code}"));
            return Ok(Judgement::Refused(format!("image verifier {shown} refused it ({code}): {answer}")));
        }
        answers.push(format!("{shown}: {answer}"));
    }
    Ok(Judgement::Accepted(answers.join(", ")))
}

/// Every entry of the directory by name, as containerd runs them; none if the directory does not exist.
async fn programs(directory: PathBuf) -> io::Result<Vec<PathBuf>> {
    let listed = blocking::run(directory.clone(), DEADLINE, move |_| {
        let mut entries: Vec<PathBuf> =
            std::fs::read_dir(&directory)?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
        entries.sort();
        Ok(entries)
    });
    match listed.await.and_then(|listed| listed) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        listed => listed,
    }
}

/// The beginning of an answer, on one line.
fn line(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes.get(..MAX_ANSWER).unwrap_or(bytes));
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A descriptor as the programs get it.
pub fn descriptor(media_type: &str, digest: &str, size: i64) -> Value {
    json!({ "mediaType": media_type, "digest": digest, "size": size })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn settings_of(text: &str) -> Option<VerifierSettings> {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("config.toml"), text).unwrap();
        let dropin = "[plugins.'io.containerd.image-verifier.v1.bindir']\nbin_dir = '/dropin'\n";
        std::fs::create_dir(directory.path().join("conf.d")).unwrap();
        std::fs::write(directory.path().join("conf.d/verify.toml"), dropin).unwrap();
        settings(&directory.path().join("config.toml"))
    }

    #[test]
    fn the_settings_are_containerds() {
        for text in ["", "no toml", "[plugins.x]\nbin_dir = '/other'\n"] {
            assert_eq!(settings_of(text), Some(VerifierSettings::default()), "{text}");
        }
        let table = "[plugins.'io.containerd.image-verifier.v1.bindir']\n";
        let all = format!("version = 3\n{table}bin_dir = '/verify'\nmax_verifiers = 2\nper_verifier_timeout = '1m'\n");
        let minute = Duration::from_secs(60);
        let expected = VerifierSettings { directory: "/verify".into(), limit: Some(2), timeout: minute };
        assert_eq!(settings_of(&all), Some(expected));
        assert_eq!(settings_of(&format!("{table}max_verifiers = -1\n")).unwrap().limit, None);
        assert_eq!(settings_of("disabled_plugins = ['io.containerd.image-verifier.v1.bindir']\n"), None);
        for imports in ["imports = ['conf.d/*.toml']\n", "imports = ['conf.d/verify.toml']\n"] {
            assert_eq!(settings_of(imports).unwrap().directory, Path::new("/dropin"));
        }
        assert_eq!(settings(Path::new("/nonexistent/config.toml")), Some(VerifierSettings::default()));
    }

    fn verifier(directory: &Path, name: &str, script: &str) {
        let path = directory.join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    async fn judged(directory: &Path, limit: Option<usize>) -> Judgement {
        let timeout = Duration::from_millis(2_000);
        let settings = VerifierSettings { directory: directory.to_owned(), limit, timeout };
        let described = descriptor("application/vnd.oci.image.index.v1+json", "sha256:ab", 7);
        judge(&settings, "registry.example/pump:1", "sha256:ab", &described).await.unwrap()
    }

    #[tokio::test]
    async fn programs_are_called_as_by_containerd_until_one_refuses() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        assert_eq!(judged(&root.join("gone"), Some(10)).await, Judgement::Accepted(String::new()));
        assert_eq!(judged(root, Some(10)).await, Judgement::Accepted(String::new()));
        verifier(root, "10-show", "echo $*; cat");
        let Judgement::Accepted(answer) = judged(root, Some(10)).await else { panic!("refused") };
        let arguments = "-name registry.example/pump:1 -digest sha256:ab -stdin-media-type \
             application/vnd.oci.descriptor.v1+json";
        assert!(answer.contains(arguments), "{answer}");
        assert!(answer.contains(r#""size":7"#) && answer.contains("image.index.v1+json"), "{answer}");
        verifier(root, "20-refuse", "echo not signed; exit 3");
        verifier(root, "30-late", "sleep 60");
        let Judgement::Refused(cause) = judged(root, None).await else { panic!("accepted") };
        assert!(cause.ends_with("20-refuse refused it (exit code 3): not signed"), "{cause}");
        assert!(matches!(judged(root, Some(1)).await, Judgement::Accepted(_)));
        verifier(root, "20-refuse", "exit 0");
        let Judgement::Refused(cause) = judged(root, None).await else { panic!("accepted") };
        assert!(cause.contains("30-late could not be run"), "{cause}");
        std::fs::write(root.join("05-text"), "not executable").unwrap();
        let Judgement::Refused(cause) = judged(root, None).await else { panic!("accepted") };
        assert!(cause.contains("05-text could not be run"), "{cause}");
    }
}
