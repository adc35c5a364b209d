//! What was assigned to Services, in a file: read when the first Service appears, written when one has something new. A file that
//! is damaged or lost costs nothing, unless two Services derive the same address.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write as _};
use std::path::Path;

use crate::addresses::{Assigned, Book};

/// The largest file that is read.
const MAX_SIZE: u64 = 4 << 20;

/// What is in the file; nothing if there is none.
///
/// # Errors
/// It cannot be read, or is damaged.
pub(crate) fn load(path: &Path) -> io::Result<Book> {
    let size = match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Book::default()),
        other => other?.len(),
    };
    if size > MAX_SIZE {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "too large"));
    }
    let read: BTreeMap<String, Assigned> = serde_json::from_slice(&fs::read(path)?)?;
    let named = |(name, assigned): (String, Assigned)| {
        let (namespace, name) = name.split_once('/')?;
        Some(((namespace.to_owned(), name.to_owned()), assigned))
    };
    Ok(Book { assigned: read.into_iter().filter_map(named).collect() })
}

/// Writes the file anew, so that a power cut leaves the one before or this one. Without anything assigned there is none.
///
/// # Errors
/// It cannot be written.
pub(crate) fn save(path: &Path, book: &Book) -> io::Result<()> {
    if book.assigned.is_empty() {
        return match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
    }
    let named = book.assigned.iter().map(|((namespace, name), assigned)| (format!("{namespace}/{name}"), assigned));
    let text = serde_json::to_vec(&named.collect::<BTreeMap<_, _>>())?;
    let next = path.with_extension("next");
    let mut file = fs::File::create(&next)?;
    file.write_all(&text)?;
    file.sync_all()?;
    fs::rename(&next, path)?;
    let parent = path.parent().unwrap_or(Path::new("/"));
    fs::File::open(parent)?.sync_all()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_is_saved_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("service-addresses.json");
        assert_eq!(load(&path).unwrap(), Book::default());
        let assigned = Assigned {
            addresses: vec!["10.43.0.9".parse().unwrap()],
            node_ports: [("TCP/80".to_owned(), 30_080)].into(),
        };
        let book = Book { assigned: [(("shop".to_owned(), "web".to_owned()), assigned)].into() };
        save(&path, &book).unwrap();
        assert_eq!(load(&path).unwrap(), book);
        save(&path, &Book::default()).unwrap();
        save(&path, &Book::default()).unwrap();
        assert!(!path.exists());
        fs::write(&path, "{").unwrap();
        assert!(load(&path).is_err());
    }
}
