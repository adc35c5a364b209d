//! The modules of a crate, found as the compiler finds them: from the root file along each `mod name;`.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::slice;

use anyhow::{Context as _, Result, bail};

use super::scan::{self, Declared, ModulePath, Scanned};

/// A crate's modules and what they name of each other.
#[derive(Debug, Default)]
pub(super) struct Tree {
    /// All modules, including the root.
    pub(super) modules: BTreeSet<ModulePath>,
    pub(super) references: Vec<Reference>,
    /// The targets of names that `use` has brought into a module.
    imports: BTreeMap<(ModulePath, String), Vec<String>>,
}

/// A place in the code of `module` that names `target`.
#[derive(Debug)]
pub(super) struct Reference {
    module: ModulePath,
    target: Vec<String>,
    pub(super) file: PathBuf,
    pub(super) line: usize,
}

/// Reads a file: from disk, or from a table in tests.
pub(super) type Read<'a> = &'a dyn Fn(&Path) -> io::Result<String>;

/// Reads the crate that begins with the file `root`.
pub(super) fn read(root: &Path, read: Read<'_>) -> Result<Tree> {
    let directory = root.parent().unwrap_or(Path::new(""));
    let text = read(root).with_context(|| format!("{}", root.display()))?;
    let mut waiting = vec![Source { file: root.into(), directory: directory.into(), module: Vec::new(), text }];
    let mut tree = Tree::default();
    while let Some(source) = waiting.pop() {
        let scanned = scan::scan(&source.text, &source.module).with_context(|| format!("{}", source.file.display()))?;
        for declared in &scanned.declared {
            let submodule = source.submodule(declared, read)?;
            if !is_for_tests(submodule.file.strip_prefix(directory).unwrap_or(&submodule.file)) {
                waiting.push(submodule);
            }
        }
        tree.add(source, scanned);
    }
    Ok(tree)
}

/// Whether a file below a crate's source directory holds code for tests, by its name.
fn is_for_tests(file: &Path) -> bool {
    let named = file.file_stem().and_then(|stem| stem.to_str());
    let mut folders = file.parent().into_iter().flat_map(Path::iter);
    named.is_some_and(|name| name == "tests" || name.ends_with("_tests"))
        || folders.any(|folder| folder == "tests" || folder == "fixtures")
}

impl Reference {
    /// The name at the end of the path: a type, a function, or the module itself.
    pub(super) fn name(&self) -> Option<&str> {
        self.target.last().map(String::as_str)
    }
}

impl Tree {
    fn add(&mut self, source: Source, scanned: Scanned) {
        let Source { file, module, .. } = source;
        self.references.extend(scanned.references.into_iter().map(|named| Reference {
            module: named.module,
            target: named.target,
            file: file.clone(),
            line: named.line,
        }));
        self.imports.extend(scanned.imports.into_iter().map(|import| ((import.module, import.name), import.target)));
        self.modules.insert(module);
        self.modules.extend(scanned.inline);
    }

    /// The children of `parent` from which and to which a reference leads, if they differ.
    pub(super) fn siblings<'a>(&'a self, parent: &[String], reference: &'a Reference) -> Option<(&'a str, &'a str)> {
        let from = reference.module.strip_prefix(parent)?.first()?;
        let to = self.child(parent, &reference.target)?;
        (from != to).then_some((from, to))
    }

    /// The child of `parent` that a path leads to: by its own name, or by one that `parent` has imported from it.
    fn child<'a>(&'a self, parent: &[String], target: &'a [String]) -> Option<&'a str> {
        let name_below = |target: &'a [String]| target.strip_prefix(parent)?.first();
        let is_child = |name: &&String| self.modules.contains(&[parent, slice::from_ref(*name)].concat());
        let name = name_below(target)?;
        let imported = || name_below(self.imports.get(&(parent.to_vec(), name.clone()))?).filter(is_child);
        Some(name).filter(is_child).or_else(imported).map(String::as_str)
    }
}

/// A file of the crate.
struct Source {
    file: PathBuf,
    /// The directory of its submodules' files.
    directory: PathBuf,
    module: ModulePath,
    text: String,
}

impl Source {
    /// The file of a module that this one declares.
    fn submodule(&self, declared: &Declared, read: Read<'_>) -> Result<Self> {
        for (file, directory) in self.candidates(declared) {
            match read(&file) {
                Ok(text) => return Ok(Self { file, directory, module: declared.module.clone(), text }),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error).with_context(|| format!("{}", file.display())),
            }
        }
        bail!("{}:{}: module {} has no file", self.file.display(), declared.line, declared.module.join("::"))
    }

    /// The paths at which the file may be, each with the directory of its own submodules.
    fn candidates(&self, declared: &Declared) -> Vec<(PathBuf, PathBuf)> {
        let inner = declared.module.strip_prefix(&self.module[..]).unwrap_or(&declared.module);
        let (name, around) = inner.split_last().map_or(("", inner), |(name, around)| (name.as_str(), around));
        // A module that is written out in this file is a directory on the way.
        let directory = around.iter().fold(self.directory.clone(), |directory, name| directory.join(name));
        let Some(path) = &declared.path else {
            let of_module = directory.join(name);
            return vec![
                (directory.join(format!("{name}.rs")), of_module.clone()),
                (of_module.join("mod.rs"), of_module),
            ];
        };
        let base = if around.is_empty() { self.file.parent().unwrap_or(Path::new("")) } else { &directory };
        let file = base.join(path);
        let directory = file.parent().unwrap_or(base).to_owned();
        vec![(file, directory)]
    }
}
