//! A tree as `.tar.gz`, the same bytes for the same files: sorted, owned by root, all of one time.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use flate2::{Compression, GzBuilder};
use tar::{Builder, EntryType, Header};

use super::{Release, base_name, stage};
use crate::architecture::Architecture;

/// Makes the tarball of one architecture: the whole package below one directory, with the script that installs it.
pub(super) fn make(release: &Release, architecture: Architecture, tree: &Path) -> Result<PathBuf> {
    let name = base_name(architecture);
    let root = release.work.join(architecture.name()).join("tarball");
    stage::copy(tree, &root)?;
    stage::add_script(&root)?;
    let path = release.out.join(format!("{name}.tar.gz"));
    pack(&root, &name, release.seconds(), &path)?;
    Ok(path)
}

/// Packs `tree` as the directory `top`, with `seconds` since 1970 as the time of each file.
pub(super) fn pack(tree: &Path, top: &str, seconds: u64, to: &Path) -> Result<()> {
    let file = File::create(to).with_context(|| format!("{}", to.display()))?;
    let encoder = GzBuilder::new().mtime(0).write(file, Compression::best());
    let mut builder = Builder::new(encoder);
    append(&mut builder, tree, Path::new(top), seconds)?;
    builder.into_inner()?.finish()?.sync_all().with_context(|| format!("{}", to.display()))
}

fn append<W: std::io::Write>(builder: &mut Builder<W>, from: &Path, name: &Path, seconds: u64) -> Result<()> {
    let metadata = fs::symlink_metadata(from).with_context(|| format!("{}", from.display()))?;
    let mut header = Header::new_gnu();
    header.set_mode(metadata.permissions().mode() & 0o7777);
    header.set_mtime(seconds);
    header.set_uid(0);
    header.set_gid(0);
    header.set_size(0);
    if metadata.is_symlink() {
        header.set_entry_type(EntryType::Symlink);
        builder.append_link(&mut header, name, fs::read_link(from)?)?;
    } else if metadata.is_dir() {
        header.set_entry_type(EntryType::Directory);
        builder.append_data(&mut header, name, std::io::empty())?;
        let entries = fs::read_dir(from).with_context(|| format!("{}", from.display()))?;
        let mut entries = entries.map(|entry| Ok(entry?.file_name())).collect::<Result<Vec<_>>>()?;
        entries.sort();
        for entry in entries {
            append(builder, &from.join(&entry), &name.join(&entry), seconds)?;
        }
    } else {
        header.set_entry_type(EntryType::Regular);
        header.set_size(metadata.len());
        builder.append_data(&mut header, name, File::open(from)?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn the_same_files_give_the_same_bytes() -> Result<()> {
        let dir = std::env::temp_dir().join(format!("limpet-tarball-{}", std::process::id()));
        let make = |name: &str, order: [&str; 2]| -> Result<Vec<u8>> {
            let tree = dir.join(name);
            fs::create_dir_all(tree.join("etc"))?;
            for file in order {
                fs::write(tree.join(file), file)?;
            }
            symlink("b", tree.join("link"))?;
            pack(&tree, "top", 1_000, &dir.join("out"))?;
            Ok(fs::read(dir.join("out"))?)
        };
        let (first, other) = (make("one", ["etc/a", "b"])?, make("other", ["b", "etc/a"])?);
        fs::remove_dir_all(&dir)?;
        assert!(first == other);
        Ok(())
    }
}
