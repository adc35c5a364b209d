//! The commands of the pages: each is parsed by the command line that it is written for, so that a page cannot name a
//! subcommand or an option that there is not.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Parser;
use clap::error::ErrorKind;

use super::{Cli, KubeletFlags};

/// The commands of a page: lines of its code blocks, joined where they go on behind a backslash, and its code spans.
fn commands(page: &str) -> Vec<String> {
    let page = page.replace("\\\n", " ");
    let lines = page.lines().filter_map(|line| line.strip_prefix("    "));
    let blocks = lines.map(|line| line.strip_prefix("$ ").unwrap_or(line)).filter_map(without_shell);
    // A vertical bar is escaped in a table. A span with brackets or bars is a summary, not a command.
    let spans = page.split('`').skip(1).step_by(2).filter(|span| !span.contains(['[', '|', '\\', '\n']));
    let all = blocks.chain(spans.map(str::to_owned));
    all.filter(|command| command.starts_with("limpet ") && !is_config(command)).collect()
}

/// The command of a line without the comment and the redirections behind it.
fn without_shell(line: &str) -> Option<String> {
    let ends = ["  #", " # ", " | ", " > ", " && "].iter().filter_map(|end| line.find(end));
    line.get(..ends.min().unwrap_or(line.len())).map(|command| command.trim().to_owned())
}

/// Whether a code span that begins with the program's name is something else: the name of its log lines or units.
fn is_config(command: &str) -> bool {
    command.split_whitespace().nth(1).is_none_or(|word| !word.starts_with(|c: char| c.is_ascii_lowercase() || c == '-'))
}

/// Why the command line refuses the command, if it does.
fn refusal(command: &str) -> Option<String> {
    let is_cut = command.contains('…');
    let words = command.split_whitespace().filter(|word| !word.contains('…'));
    let words = words.map(|word| if word.starts_with('$') { "1" } else { word.trim_matches('\'') });
    let (arguments, _) = KubeletFlags::take(words.map(Into::into));
    let error = Cli::try_parse_from(arguments).err()?;
    let is_part = matches!(
        error.kind(),
        ErrorKind::MissingRequiredArgument
            | ErrorKind::MissingSubcommand
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    );
    // A name of a command in a sentence has no arguments, and a command that is cut has some of them.
    let is_name = !command.contains(" -") && command.split_whitespace().count() <= 3;
    (!(is_part && (is_cut || is_name))).then(|| format!("{command}: {error}"))
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
        for command in commands(&text) {
            seen += 1;
            refused.extend(refusal(&command).map(|why| format!("{}: {why}", page.display())));
        }
    }
    assert!(refused.is_empty(), "{}", refused.join("\n"));
    assert!(seen > 100, "only {seen} commands were found: the pages are written differently now");
}

#[test]
fn commands_are_read_from_blocks_and_spans() {
    let page = "Text with `limpet pods -w` and `limpet a|b`, `limpet.yaml`.\n\n    limpet logs web | sort   # lines\n    \
                $ limpet run --config \\\n        a.yaml\n    other thing\n";
    assert_eq!(commands(page), ["limpet logs web", "limpet run --config          a.yaml", "limpet pods -w"]);
    for (command, is_refused) in [
        ("limpet pods --no-such-option", true),
        ("limpet no-such-command", true),
        ("limpet logs --tail x web", true),
        ("limpet logs", false),
        ("limpet diff -f gateway.yaml", false),
    ] {
        assert_eq!(refusal(command).is_some(), is_refused, "{command}");
    }
}
