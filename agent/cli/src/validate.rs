//! `limpet validate`: all faults of manifests, with their source lines. Needs no agent and no network.

use limpet_model::manifest;
use std::ffi::OsStr;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::error::CliError;
use super::screen::{Screen, Tone};
use limpet_core::source::file_names::is_read;
use limpet_model::pod::{Fault, Severity, encoding};
use limpet_model::source::SourceKind;

/// Lines shown before the one with the fault.
const LINES_BEFORE: usize = 2;
/// The limit of one file, as in kubelet and limpet.
pub const MAX_BYTES: u64 = 10 << 20;
/// The limit of files in one directory.
const MAX_FILES: usize = 10_000;

/// Arguments of `limpet validate`.
#[derive(Debug, clap::Args)]
pub struct ValidateArgs {
    /// Manifests, directories of manifests, or - for standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// The node name, which is appended to the pods' names
    #[arg(long, default_value = "node", value_name = "NAME")]
    node_name: String,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Count {
    errors: usize,
    warnings: usize,
    files: usize,
}

/// Validates and prints. Returns the exit code: 0 valid, 1 faults of severity error, or a file that cannot be read.
pub(super) fn run(args: &ValidateArgs, screen: Screen) -> Result<u8, CliError> {
    let mut page = String::new();
    let count = validate(args, screen, &mut page);
    screen.print(&page)?;
    Ok(u8::from(count.errors > 0))
}

fn validate(args: &ValidateArgs, screen: Screen, page: &mut String) -> Count {
    let mut count = Count::default();
    for path in args.files.iter().flat_map(|path| files(path)) {
        count.files += 1;
        let origin = if path == Path::new("-") { "standard input".to_owned() } else { path.display().to_string() };
        let (text, faults) = match read(&path) {
            Ok(text) => {
                let faults = manifest::read(&text, &origin, SourceKind::File, &args.node_name).faults;
                (shown(&text), faults)
            }
            Err(error) => (String::new(), vec![Fault::error("", format!("{origin}: {error}"))]),
        };
        for fault in &faults {
            match fault.severity {
                Severity::Error => count.errors += 1,
                Severity::Warning => count.warnings += 1,
            }
            if fault.severity == Severity::Error || !screen.quiet {
                page.push_str(&render(fault, &text, screen));
            }
        }
    }
    if !screen.quiet {
        let blank = if count.errors + count.warnings > 0 { "\n" } else { "" };
        let (errors, warnings) = (plural(count.errors, "error"), plural(count.warnings, "warning"));
        page.push_str(&format!("{blank}{errors}, {warnings} in {}\n", plural(count.files, "file")));
    }
    count
}

fn plural(number: usize, word: &str) -> String {
    if number == 1 { format!("1 {word}") } else { format!("{number} {word}s") }
}

/// The path, or for a directory the files in it that the agent would read.
pub(super) fn files(path: &Path) -> Vec<PathBuf> {
    files_named(path, |name| is_read(&name.to_string_lossy()))
}

/// The path, or for a directory the files in it with kubectl's endings.
pub fn files_of_kubectl(path: &Path) -> Vec<PathBuf> {
    let endings = [".yaml", ".yml", ".json"];
    files_named(path, |name| {
        let name = name.to_string_lossy();
        is_read(&name) && endings.iter().any(|ending| name.ends_with(ending))
    })
}

fn files_named(path: &Path, is_wanted: impl Fn(&OsStr) -> bool) -> Vec<PathBuf> {
    if !path.is_dir() {
        return vec![path.to_owned()];
    }
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    let files = entries.filter(|entry| is_wanted(&entry.file_name())).map(|entry| entry.path());
    let mut files: Vec<PathBuf> = files.filter(|path| !path.is_dir()).take(MAX_FILES).collect();
    files.sort();
    files
}

/// The content of a file, or of stdin for `-`; one byte more than the limit if it is larger.
///
/// # Errors
/// It cannot be read.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    if path == Path::new("-") {
        io::stdin().lock().take(MAX_BYTES + 1).read_to_end(&mut text)?;
    } else {
        std::fs::File::open(path)?.take(MAX_BYTES + 1).read_to_end(&mut text)?;
    }
    Ok(text)
}

/// The text whose lines may be shown; empty if it contains a Secret, as far as that can be detected in an invalid
/// one.
pub(super) fn shown(text: &[u8]) -> String {
    let text = encoding::utf8(text);
    let text = String::from_utf8_lossy(&text);
    let holds_secret = text.lines().any(|line| line.contains("kind") && line.contains("Secret"));
    if holds_secret { String::new() } else { text.into_owned() }
}

/// One fault: its message, and its source lines if the position is known.
pub(super) fn render(fault: &Fault, text: &str, screen: Screen) -> String {
    let word = match fault.severity {
        Severity::Error => screen.paint(Tone::Bad, "error"),
        Severity::Warning => screen.paint(Tone::Warn, "warning"),
    };
    let Some((line, column)) = fault.position.filter(|_| fault.severity == Severity::Error) else {
        return format!("{word}: {fault}\n");
    };
    let line = usize::try_from(line).unwrap_or(usize::MAX);
    let column = usize::try_from(column).unwrap_or(usize::MAX);
    let plain = Fault { remedy: String::new(), ..fault.clone() };
    let mut page = format!("{word}: {plain}\n");
    let lines: Vec<&str> = text.lines().collect();
    let Some(source) = lines.get(line - 1) else { return page };
    let width = line.to_string().len();
    page.push_str(&format!("{:width$} |\n", ""));
    for number in line.saturating_sub(LINES_BEFORE).max(1)..=line {
        page.push_str(&format!("{number:width$} | {}\n", lines[number - 1].replace('\t', " ")));
    }
    let marks =
        source.chars().skip(column.saturating_sub(1)).take_while(|c| !matches!(c, ' ' | ',' | ':')).count().max(1);
    let remedy = if fault.remedy.is_empty() { String::new() } else { format!(" {}", fault.remedy) };
    page.push_str(&format!("{:width$} | {}{}{remedy}\n", "", " ".repeat(column.saturating_sub(1)), "^".repeat(marks)));
    page
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn page(text: &str, quiet: bool) -> (Count, String) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("web.yaml");
        std::fs::write(&path, text).unwrap();
        let args = ValidateArgs { files: vec![directory.path().to_owned()], node_name: "edge1".to_owned() };
        let mut page = String::new();
        let count = validate(&args, Screen { color: false, quiet }, &mut page);
        (count, page.replace(&format!("{}/", directory.path().display()), ""))
    }

    #[test]
    fn a_fault_is_shown_in_its_line_with_its_remedy() {
        let text =
            "apiVersion: v1\nkind: Pod\nmetadata:\n  name: web\nspec:\n  containers:\n  - name: web\n    imag: web:1\n";
        let (count, page) = page(text, false);
        assert_eq!(count, Count { errors: 1, warnings: 0, files: 1 });
        assert_eq!(
            page,
            "error: web.yaml:8:5: spec.containers[0].imag: no such field\n  |\n6 |   containers:\n7 |   - name: web\n\
             8 |     imag: web:1\n  |     ^^^^ did you mean image?\n\n1 error, 0 warnings in 1 file\n"
        );
    }

    #[test]
    fn the_lines_of_a_secret_are_not_shown() {
        for text in [
            "{apiVersion: v1, kind: Secret, metadata: {name: a}, data: {k: hunter2!}}",
            "kind: Secret\ndata: {k: hunter2",
        ] {
            let (count, page) = page(text, false);
            assert_eq!(count.errors, 1, "{page}");
            assert!(!page.contains("hunter2"), "{page}");
        }
    }

    #[test]
    fn warnings_do_not_fail_and_quiet_hides_them() {
        let text = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  schedulerName: x\n  containers: [{name: a, image: 'a:1'}]\n";
        let (count, output) = page(text, false);
        assert_eq!((count.errors, count.warnings), (0, 1));
        assert!(
            output.starts_with(
                "warning: web.yaml:5:3: spec.schedulerName: has no effect on a node without an apiserver\n"
            )
        );
        assert_eq!(page(text, true).1, "");
    }
}
