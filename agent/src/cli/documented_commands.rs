//! The commands of the pages: each is parsed by the command line that it is written for, so that a page cannot name a
//! subcommand or an option that there is not.
#![allow(clippy::expect_used)] // the module is compiled for tests only

use std::fs;
use std::path::{Path, PathBuf};

use clap::Parser;
use clap::error::ErrorKind;

use super::{Cli, KubeletFlags};

/// A command as a page has it.
#[derive(Debug, PartialEq, Eq)]
struct Documented {
    command: String,
    /// Whether it may lack arguments or have placeholders: a sentence that names it, or a line with a `…`.
    is_partial: bool,
}

/// What containerd starts as the logger of a container. It is no subcommand for people.
const LOGGER: &str = "limpet logger";

/// The commands of a page: lines of its code blocks, joined where they go on behind a backslash, and its code spans.
fn commands(page: &str) -> Vec<Documented> {
    let page = page.replace("\\\n", " ");
    let lines = page.lines().filter_map(|line| line.strip_prefix("    "));
    let blocks = lines.map(|line| without_shell(line.strip_prefix("$ ").unwrap_or(line)));
    let blocks = blocks.map(|line| Documented { is_partial: line.contains('…'), command: line.to_owned() });
    // A vertical bar is escaped in a table. A span with brackets or bars is a summary, not a command.
    let spans = page.split('`').skip(1).step_by(2).filter(|span| !span.contains(['[', '|', '\\', '\n']));
    let spans = spans.map(|span| Documented { command: span.to_owned(), is_partial: true });
    blocks.chain(spans).filter(|documented| is_command(&documented.command)).collect()
}

/// The command of a line without the comment, the pipe or the redirection behind it.
fn without_shell(line: &str) -> &str {
    let ends = ["  #", " # ", " | ", " > ", " && "].iter().filter_map(|end| line.find(end));
    line.get(..ends.min().unwrap_or(line.len())).unwrap_or(line).trim()
}

/// Whether it is the program with a subcommand or an option, and not a line of its log or of its output.
fn is_command(text: &str) -> bool {
    let mut words = text.split_whitespace();
    let is_word = |word: &str| word.starts_with(|c: char| c.is_ascii_lowercase() || c == '-');
    words.next() == Some("limpet") && words.next().is_some_and(is_word) && text != LOGGER
}

/// Why the command line refuses the command, if it does.
fn refusal(documented: &Documented) -> Option<String> {
    let words = documented.command.split_whitespace().filter(|word| !word.contains('…'));
    let words = words.map(|word| if word.starts_with('$') { "1" } else { word.trim_matches('\'') });
    let (arguments, _) = KubeletFlags::take(words.map(Into::into));
    let error = Cli::try_parse_from(arguments).err()?;
    let is_incomplete = matches!(
        error.kind(),
        ErrorKind::MissingRequiredArgument
            | ErrorKind::MissingSubcommand
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
            | ErrorKind::InvalidValue
            | ErrorKind::ValueValidation
    );
    (!(documented.is_partial && is_incomplete)).then(|| format!("{}: {error}", documented.command))
}

fn pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let directories = [root.clone(), root.join("docs"), root.join("deploy")];
    let entries = directories.iter().flat_map(|directory| fs::read_dir(directory).expect("a folder of the project"));
    let paths = entries.map(|entry| entry.expect("an entry of the folder").path());
    let is_page = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "md");
    // The changelog names what there was.
    paths.filter(is_page).filter(|path| !path.ends_with("CHANGELOG.md")).collect()
}

#[test]
fn each_command_of_the_pages_is_one_of_the_command_line() {
    let mut seen = 0;
    let mut refused = Vec::new();
    for page in pages() {
        let text = fs::read_to_string(&page).expect("a page is text");
        for documented in commands(&text) {
            seen += 1;
            refused.extend(refusal(&documented).map(|why| format!("{}: {why}", page.display())));
        }
    }
    assert!(refused.is_empty(), "{}", refused.join("\n"));
    assert!(seen > 100, "only {seen} commands were found: the pages are written differently now");
}

#[test]
fn commands_are_read_from_blocks_and_spans() {
    let page = "Text with `limpet pods -w` and `limpet a|b`, `limpet.yaml`.\n\n    limpet logs web | sort   # lines\n    \
                $ limpet run --config \\\n        a.yaml\n    other thing\n";
    let read: Vec<(String, bool)> =
        commands(page).into_iter().map(|documented| (documented.command, documented.is_partial)).collect();
    let expected =
        [("limpet logs web", false), ("limpet run --config          a.yaml", false), ("limpet pods -w", true)];
    assert_eq!(read, expected.map(|(command, is_partial)| (command.to_owned(), is_partial)));
}

#[test]
fn a_page_cannot_name_what_there_is_not() {
    for (command, is_partial, is_refused) in [
        ("limpet diff -f gateway.yaml", false, false),
        ("limpet logs", false, true),
        ("limpet logs", true, false),
        ("limpet logs --tail LINES web", false, true),
        ("limpet logs --tail LINES web", true, false),
        ("limpet pods --no-such-option", true, true),
        ("limpet no-such-command", true, true),
    ] {
        let documented = Documented { command: command.to_owned(), is_partial };
        assert_eq!(refusal(&documented).is_some(), is_refused, "{command}");
    }
}
