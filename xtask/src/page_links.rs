//! The check of the links in the repository's pages: each leads to a file, and to a heading where it names one. Links to other
//! hosts are not followed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use limpet_tests::agent::workspace_dir;
use limpet_tests::process;

/// Checks every page that git knows.
pub(crate) fn check() -> Result<()> {
    let root = workspace_dir();
    let faults = faults(&pages()?, |path| root.join(path).exists());
    ensure!(faults.is_empty(), "{}", faults.join("\n"));
    Ok(())
}

/// The text of every page that git knows, by its path in the repository.
pub(crate) fn pages() -> Result<BTreeMap<PathBuf, String>> {
    let root = workspace_dir();
    let listed = process::checked(Command::new("git").arg("-C").arg(&root).args(["ls-files", "--", "*.md"]))?;
    let read = |name: &str| {
        let text = std::fs::read_to_string(root.join(name)).with_context(|| name.to_owned())?;
        Ok((PathBuf::from(name), text))
    };
    listed.lines().map(read).collect()
}

/// The links that lead nowhere. `exists`: whether there is a file of that path.
fn faults(pages: &BTreeMap<PathBuf, String>, exists: impl Fn(&Path) -> bool) -> Vec<String> {
    let mut faults = Vec::new();
    for (page, text) in pages {
        for (line, target) in links(text) {
            let (path, heading) = target.split_once('#').unwrap_or((target, ""));
            let fault = |why: &str| format!("{}:{line}: {target}: {why}", page.display());
            let to = if path.is_empty() { page.clone() } else { resolved(page, path) };
            if !exists(&to) {
                faults.push(fault("no such file"));
            } else if let Some(text) = pages.get(&to).filter(|_| !heading.is_empty())
                && !headings(text).contains(heading)
            {
                faults.push(fault("no such heading"));
            }
        }
    }
    faults
}

/// `path` from the directory of `page`, without `..`.
pub(crate) fn resolved(page: &Path, path: &str) -> PathBuf {
    let mut to = page.parent().unwrap_or(Path::new("")).to_owned();
    for part in Path::new(path).components() {
        match part {
            Component::ParentDir => _ = to.pop(),
            Component::CurDir => {}
            part => to.push(part),
        }
    }
    to
}

/// The lines outside of code, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_code = false;
    let lines = text.lines().enumerate().filter(move |(_, line)| {
        let fence = line.trim_start().starts_with("```");
        in_code ^= fence;
        !in_code && !fence && !line.starts_with("    ")
    });
    lines.map(|(number, line)| (number + 1, line))
}

/// The targets of links to files, with the numbers of their lines.
pub(crate) fn links(text: &str) -> impl Iterator<Item = (usize, &str)> {
    prose(text).flat_map(|(number, line)| {
        let targets = line.split("](").skip(1).filter_map(move |rest| Some((number, rest.split_once(')')?.0)));
        targets.filter(|(_, target)| !target.contains(':') && !target.is_empty())
    })
}

/// The names of a page's headings, as GitHub makes them.
fn headings(text: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let titles =
        prose(text).filter_map(|(_, line)| Some(line.trim_start_matches('#')).filter(|rest| rest.len() < line.len()));
    for title in titles {
        let name = name(title.trim());
        let numbered = (1..).map(|number| format!("{name}-{number}"));
        let free = std::iter::once(name.clone()).chain(numbered).find(|name| !names.contains(name));
        names.extend(free);
    }
    names
}

/// The name of a heading: the text of its links, without punctuation, in lower case.
fn name(title: &str) -> String {
    let mut text = String::new();
    let mut left = title;
    while let Some((before, rest)) = left.split_once("](") {
        text.push_str(before);
        left = rest.split_once(')').map_or("", |(_, rest)| rest);
    }
    text.push_str(left);
    let kept = text.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_that_lead_nowhere_are_found() {
        let page = "# One `page`: a, b\n\n## Twice\n## Twice\n[a](#one-page-a-b) [b](#twice-1) [c](#twice-2)\n\
                    [d](other.md#gone), [e](../README.md), [f](gone.md), [g](https://x/y.md)\n    [h](code.md)\n";
        let pages = [("docs/page.md", page), ("docs/other.md", "# Here\n"), ("README.md", "")];
        let pages: BTreeMap<_, _> = pages.map(|(path, text)| (PathBuf::from(path), text.to_owned())).into();
        let reported = faults(&pages, |path| pages.contains_key(path));
        let expected = [
            "docs/page.md:5: #twice-2: no such heading",
            "docs/page.md:6: other.md#gone: no such heading",
            "docs/page.md:6: gone.md: no such file",
        ];
        assert_eq!(reported, expected);
    }
}
