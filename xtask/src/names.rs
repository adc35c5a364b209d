//! The check of names in the code: some mean nothing in a trace or far from their declaration, and some are so general
//! that only one type of a crate may have them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, anyhow, ensure};
use limpet_tests::agent::workspace_dir;
use limpet_tests::process;
use proc_macro2::{TokenStream, TokenTree};

/// The names that no function, variable, constant, field or module may have.
const MEANINGLESS: [&str; 4] = ["of", "one", "own", "found"];
/// The names that at most one type of a crate may have.
const GENERAL: [&str; 3] = ["Entry", "State", "Step"];

/// Checks every source file that git knows.
pub(crate) fn check() -> Result<()> {
    let root = workspace_dir();
    let listed = process::checked(Command::new("git").arg("-C").arg(&root).args(["ls-files", "--", "*.rs"]))?;
    let mut faults = Vec::new();
    let mut types: BTreeMap<(PathBuf, &str), Vec<String>> = BTreeMap::new();
    for name in listed.lines() {
        let text = std::fs::read_to_string(root.join(name)).with_context(|| name.to_owned())?;
        let names = scan(&text).with_context(|| name.to_owned())?;
        let meaningless = names
            .meaningless
            .iter()
            .map(|(name_there, line)| format!("{name}:{line}: `{name_there}` says nothing about what it names"));
        faults.extend(meaningless);
        for (general, line) in names.general {
            types.entry((crate_of(Path::new(name)), general)).or_default().push(format!("{name}:{line}"));
        }
    }
    let several = types.into_iter().filter(|(_, places)| places.len() > 1);
    faults.extend(
        several.map(|((_, general), places)| format!("{}: one crate has several types {general}", places.join(", "))),
    );
    // A line may have a name several times.
    faults.dedup();
    ensure!(faults.is_empty(), "{}", faults.join("\n"));
    Ok(())
}

/// The directory or file by which the crate of a file is identified. A test, a bench or an example is a separate crate.
fn crate_of(file: &Path) -> PathBuf {
    let parts: Vec<&str> = file.iter().filter_map(|part| part.to_str()).collect();
    // A module of `src` may be called `tests`, and so is a package.
    if let Some(at) = parts.iter().position(|part| *part == "src") {
        return parts[..=at].iter().collect();
    }
    match parts.iter().rposition(|part| ["tests", "benches", "fuzz_targets"].contains(part)) {
        Some(at) => parts.iter().take(at + 2).collect(),
        None => file.parent().unwrap_or(file).to_owned(),
    }
}

/// The names of a file that the check is about, each with its line.
#[derive(Debug, Default, PartialEq, Eq)]
struct Names {
    meaningless: Vec<(&'static str, usize)>,
    general: Vec<(&'static str, usize)>,
}

fn scan(text: &str) -> Result<Names> {
    let tokens: TokenStream = text.parse().map_err(|error: proc_macro2::LexError| {
        anyhow!("line {}: not a Rust token: {error}", error.span().start().line)
    })?;
    let mut names = Names::default();
    names.tokens(tokens);
    Ok(names)
}

impl Names {
    fn tokens(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        for (at, token) in tokens.iter().enumerate() {
            match token {
                TokenTree::Group(group) => self.tokens(group.stream()),
                TokenTree::Ident(word) => {
                    let line = word.span().start().line;
                    if let Some(name) = MEANINGLESS.into_iter().find(|name| word == name)
                        && !is_named_elsewhere(&tokens, at)
                    {
                        self.meaningless.push((name, line));
                    }
                    if let Some(name) = GENERAL.into_iter().find(|name| word == name)
                        && follows_kind_of_type(&tokens[..at])
                    {
                        self.general.push((name, line));
                    }
                }
                TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            }
        }
    }
}

/// Whether the word at `at` is what another place has named: a member or an item of a path, whose declaration is reported
/// instead if it is limpet's, or an argument of a macro, such as the field of a log line.
fn is_named_elsewhere(tokens: &[TokenTree], at: usize) -> bool {
    let is = |at: usize, expected: char| matches!(tokens.get(at), Some(TokenTree::Punct(punct)) if punct.as_char() == expected);
    let is_member = at >= 1 && is(at - 1, '.');
    let is_of_path = at >= 2 && is(at - 1, ':') && is(at - 2, ':');
    let is_argument = (at == 0 || is(at - 1, ',')) && is(at + 1, '=');
    is_member || is_of_path || is_argument
}

/// Whether a type is declared after these tokens.
fn follows_kind_of_type(before: &[TokenTree]) -> bool {
    let kinds = ["struct", "enum", "type", "union"];
    matches!(before.last(), Some(TokenTree::Ident(word)) if kinds.iter().any(|kind| word == kind))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn names_that_say_nothing_are_reported_where_they_are_declared() {
        let text =
            "fn of() {}\nstruct A { own: u8 }\nlet f = |one: &A| one.of();\nlet found = A::of(x.own);\nmod named;";
        let lines: Vec<_> = scan(text).unwrap().meaningless;
        assert_eq!(lines, [("of", 1), ("own", 2), ("one", 3), ("one", 3), ("found", 4)]);
        let foreign = "info!(found = name, of = 3, \"one of {own}\");\n// found\n/// One of its own.\nfn one_of() {}";
        assert_eq!(scan(foreign).unwrap(), Names::default());
    }

    #[test]
    fn general_types_are_counted_by_crate() {
        let text = "enum State { Step }\nstruct Entry;\ntype Step = u8;\nuse a::State;\nimpl State {}";
        assert_eq!(scan(text).unwrap().general, [("State", 1), ("Entry", 2), ("Step", 3)]);
        for (file, expected) in [
            ("agent/core/src/plan.rs", "agent/core/src"),
            ("agent/core/src/plan/tests.rs", "agent/core/src"),
            ("agent/core/src/plan/tests/slots.rs", "agent/core/src"),
            ("agent/tests/simulate/server.rs", "agent/tests/simulate"),
            ("tests/src/wire.rs", "tests/src"),
            ("tests/tests/pods.rs", "tests/tests/pods.rs"),
            ("tests/tests/faults/proxy.rs", "tests/tests/faults"),
            ("tests/programs/a/src/main.rs", "tests/programs/a/src"),
            ("agent/build.rs", "agent"),
        ] {
            assert_eq!(crate_of(Path::new(file)), Path::new(expected), "{file}");
        }
    }
}
