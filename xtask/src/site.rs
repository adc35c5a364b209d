//! `cargo xtask site`: the pages as a site with search, made by mdBook, and a check of every link in it.
//!
//! The site has the tree of the repository, so links between pages hold as they are written. A file that a page links to,
//! such as a test or a picture, is copied beside it. A directory's README is its `index`, which mdBook expects.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use limpet_tests::agent::workspace_dir;

use crate::cargo;
use crate::cargo_programs::MDBOOK;
use crate::page_links::{self, resolved};

/// The parts of the contents and their pages. The decisions follow their own page.
const PARTS: [(&str, &[&str]); 4] = [
    (
        "Use",
        &[
            "docs/pods.md",
            "docs/sources.md",
            "docs/kinds.md",
            "docs/configuration.md",
            "docs/node-tools.md",
            "docs/apiserver.md",
            "docs/updates.md",
            "docs/guard.md",
            "docs/shim.md",
        ],
    ),
    (
        "Reference",
        &["docs/fields.md", "docs/kubelet.md", "docs/kubelet-api.md", "docs/metrics.md", "SECURITY.md", "CHANGELOG.md"],
    ),
    (
        "Design and development",
        &[
            "ARCHITECTURE.md",
            "docs/containerd.md",
            "docs/security.md",
            "docs/contributing.md",
            "docs/testing.md",
            "docs/measuring.md",
            "docs/conformance.md",
            "docs/conformance-cluster.md",
            "docs/conformance-cpus.md",
            "docs/conformance-apps.md",
            "docs/release.md",
        ],
    ),
    ("Decisions", &["docs/decisions/README.md"]),
];
/// The directory of the pages about single decisions.
const DECISIONS: &str = "docs/decisions";
/// A page that is only for people who change its directory.
const NOT_ON_THE_SITE: [&str; 1] = ["agent/fuzz/README.md"];

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The directory that is replaced by the site; without it `site` in cargo's target directory.
    directory: Option<PathBuf>,
}

/// Makes the site, checks it, and returns the path of its first page.
pub(crate) fn run(arguments: &Arguments) -> Result<PathBuf> {
    let mdbook = MDBOOK.installed()?;
    let pages: BTreeMap<_, _> = page_links::pages()?
        .into_iter()
        .filter(|(path, _)| NOT_ON_THE_SITE.iter().all(|left| path != Path::new(left)))
        .collect();
    let work = cargo::target_dir().join("site-work");
    let html = arguments.directory.clone().unwrap_or_else(|| cargo::target_dir().join("site"));
    fs::remove_dir_all(&work).ok();
    write_sources(&work.join("src"), &pages)?;
    fs::write(work.join("book.toml"), book())?;
    cargo::run(
        Command::new(mdbook)
            .env("RUST_LOG", "warn")
            .arg("build")
            .arg(&work)
            .arg("--dest-dir")
            .arg(std::path::absolute(&html)?),
    )?;
    let faults = dead_links(&read_html(&html)?, |path| html.join(path).is_file());
    ensure!(faults.is_empty(), "links of the site that lead nowhere:\n{}", faults.join("\n"));
    Ok(html.join("index.html"))
}

/// The text of mdBook's configuration.
fn book() -> String {
    let version = env!("CARGO_PKG_VERSION");
    format!(
        "[book]\ntitle = \"limpet {version}\"\nlanguage = \"en\"\nsrc = \"src\"\n\n[build]\ncreate-missing = false\n\n\
         [output.html]\nno-section-label = true\n\n[output.html.print]\nenable = false\n"
    )
}

/// Writes pages, contents, and every file that a page links to.
fn write_sources(src: &Path, pages: &BTreeMap<PathBuf, String>) -> Result<()> {
    let root = workspace_dir();
    let write = |path: &Path, text: &[u8]| -> Result<()> {
        let to = src.join(path);
        fs::create_dir_all(to.parent().context("a directory")?)?;
        fs::write(&to, text).with_context(|| to.display().to_string())
    };
    write(Path::new("SUMMARY.md"), contents(pages)?.as_bytes())?;
    for (page, text) in pages {
        write(&index(page), with_index_links(text).as_bytes())?;
        let targets =
            page_links::links(text).map(|(_, target)| resolved(page, target.split('#').next().unwrap_or(target)));
        for target in targets.filter(|target| !pages.contains_key(target) && root.join(target).is_file()) {
            write(&target, &fs::read(root.join(&target))?)?;
        }
    }
    Ok(())
}

/// The page's path on the site.
fn index(page: &Path) -> PathBuf {
    if page.ends_with("README.md") { page.with_file_name("index.md") } else { page.to_owned() }
}

/// The page with links to READMEs changed to pages of the site.
fn with_index_links(text: &str) -> String {
    let mut linked = text.to_owned();
    for (_, target) in page_links::links(text).filter(|(_, target)| target.contains("README.md")) {
        linked = linked.replace(&format!("]({target})"), &format!("]({})", target.replace("README.md", "index.md")));
    }
    linked
}

/// mdBook's `SUMMARY.md`: the pages by parts, each with its own title.
///
/// # Errors
/// A page that has no place in [`PARTS`], or a place without its page.
fn contents(pages: &BTreeMap<PathBuf, String>) -> Result<String> {
    let mut left: BTreeSet<&Path> = pages.keys().map(PathBuf::as_path).collect();
    let mut entry = |path: &Path| -> Result<String> {
        let text = pages.get(path).with_context(|| format!("{}: no such page", path.display()))?;
        left.remove(path);
        let title = text.lines().next().and_then(|line| line.strip_prefix("# "));
        let title = title.with_context(|| format!("{} does not begin with a title", path.display()))?;
        Ok(format!("[{title}]({})\n", index(path).display()))
    };
    let mut text = format!("# Summary\n\n{}", entry(Path::new("README.md"))?);
    for (part, listed) in PARTS {
        write!(text, "\n# {part}\n\n")?;
        for page in listed {
            write!(text, "- {}", entry(Path::new(page))?)?;
        }
    }
    let decisions = pages.keys().filter(|path| path.starts_with(DECISIONS) && !path.ends_with("README.md"));
    for decision in decisions {
        write!(text, "  - {}", entry(decision)?)?;
    }
    ensure!(left.is_empty(), "pages without a place in the site's contents (xtask/src/site.rs): {left:?}");
    Ok(text)
}

/// Every page of the site, by its path, except the one for addresses that do not exist.
fn read_html(html: &Path) -> Result<BTreeMap<PathBuf, String>> {
    let mut pages = BTreeMap::new();
    let mut directories = vec![html.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory).with_context(|| directory.display().to_string())? {
            let path = entry?.path();
            let name = path.strip_prefix(html)?.to_owned();
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|extension| extension == "html") && name != Path::new("404.html") {
                pages.insert(name, fs::read_to_string(&path)?);
            }
        }
    }
    Ok(pages)
}

/// The links within the site that lead nowhere. `exists`: whether there is a file of that path.
fn dead_links(pages: &BTreeMap<PathBuf, String>, exists: impl Fn(&Path) -> bool) -> Vec<String> {
    let mut faults = Vec::new();
    for (page, text) in pages {
        let local = attributes(text, "href").chain(attributes(text, "src")).filter(|link| !link.contains(':'));
        for link in local.collect::<BTreeSet<_>>() {
            let (path, id) = link.split_once('#').unwrap_or((link, ""));
            let to = if path.is_empty() { page.clone() } else { resolved(page, path) };
            let has_id = |text: &String| id.is_empty() || attributes(text, "id").any(|there| there == id);
            if !exists(&to) || !pages.get(&to).is_none_or(has_id) {
                faults.push(format!("{}: {link}", page.display()));
            }
        }
    }
    faults
}

/// The values of an attribute in a page of HTML.
fn attributes<'a>(text: &'a str, name: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(" ").filter_map(move |part| part.strip_prefix(name)?.strip_prefix("=\"")?.split('"').next())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn every_page_has_its_place_in_the_contents() {
        let mut pages = page_links::pages().unwrap();
        pages.retain(|path, _| NOT_ON_THE_SITE.iter().all(|left| path != Path::new(left)));
        let text = contents(&pages).unwrap();
        assert!(text.contains("- [Configuration](docs/configuration.md)\n"), "{text}");
        pages.insert("docs/new.md".into(), "# New\n".to_owned());
        assert!(contents(&pages).unwrap_err().to_string().contains("docs/new.md"));
    }

    #[test]
    fn dead_links_of_the_site_are_named() {
        let index = "<a href=\"docs/a.html#here\">a</a> <a href=\"docs/a.html#gone\">b</a> <img src=\"gone.svg\"> \
                     <a href=\"https://example.com/x\">c</a>";
        let pages = [("index.html", index), ("docs/a.html", "<h1 id=\"here\"><a href=\"../index.html\">x</a></h1>")];
        let pages: BTreeMap<_, _> = pages.map(|(path, text)| (PathBuf::from(path), text.to_owned())).into();
        let faults = dead_links(&pages, |path| pages.contains_key(path));
        assert_eq!(faults, ["index.html: docs/a.html#gone", "index.html: gone.svg"]);
    }
}
