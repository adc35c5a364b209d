//! hostPath: a path of the node, checked against its type with kubelet's messages.

use std::fs::FileType;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::HostPathVolumeSource;

use super::{VolumeError, files};

/// `hostPath.type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HostPathType {
    /// No check; a missing path is created as a directory, as containerd does for a mount's missing source.
    Unset,
    DirectoryOrCreate,
    Directory,
    FileOrCreate,
    File,
    Socket,
    CharDevice,
    BlockDevice,
}

/// A hostPath, which is checked, and created if its type requires it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HostPath {
    pub volume: String,
    pub path: PathBuf,
    pub kind: HostPathType,
    /// Whether its files belong to the pods that write to it (a directory of `local`): they get the SELinux label of
    /// the containers that mount it, and the `fsGroup`.
    pub owned: bool,
}

impl HostPath {
    pub(super) fn new(volume: &str, source: &HostPathVolumeSource) -> Result<Self, VolumeError> {
        let kind = match source.type_.as_deref().unwrap_or_default() {
            "" => HostPathType::Unset,
            "DirectoryOrCreate" => HostPathType::DirectoryOrCreate,
            "Directory" => HostPathType::Directory,
            "FileOrCreate" => HostPathType::FileOrCreate,
            "File" => HostPathType::File,
            "Socket" => HostPathType::Socket,
            "CharDevice" => HostPathType::CharDevice,
            "BlockDevice" => HostPathType::BlockDevice,
            other => {
                let reason = format!("{other:?} is an invalid hostPath type");
                return Err(VolumeError::Unsupported { volume: volume.to_owned(), reason });
            }
        };
        Ok(Self { volume: volume.to_owned(), path: source.path.clone().into(), kind, owned: false })
    }

    /// Checks the path. Symlinks are followed, as in the mount later.
    pub(super) fn set_up(&self) -> Result<(), VolumeError> {
        let file_type = match std::fs::metadata(&self.path) {
            Ok(metadata) => Some(metadata.file_type()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(VolumeError::io("stat", &self.path)(error)),
        };
        match check_type(self.kind, file_type) {
            TypeCheck::Matches => Ok(()),
            TypeCheck::MakeDirectory => files::make_dirs(&self.path, 0o755),
            TypeCheck::MakeFile => make_file(&self.path),
            TypeCheck::Mismatch(wanted) => {
                Err(VolumeError::HostPathType { volume: self.volume.clone(), path: self.path.clone(), wanted })
            }
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum TypeCheck {
    Matches,
    MakeDirectory,
    MakeFile,
    /// The path is not the named type.
    Mismatch(&'static str),
}

/// kubelet's `checkType`: "a file" is anything that exists and is not a directory.
fn check_type(kind: HostPathType, actual: Option<FileType>) -> TypeCheck {
    use HostPathType as T;
    let check =
        |right: bool, wanted: &'static str| if right { TypeCheck::Matches } else { TypeCheck::Mismatch(wanted) };
    let is = |test: fn(&FileType) -> bool| actual.as_ref().is_some_and(test);
    match kind {
        T::Unset | T::DirectoryOrCreate if actual.is_none() => TypeCheck::MakeDirectory,
        T::FileOrCreate if actual.is_none() => TypeCheck::MakeFile,
        T::Unset => TypeCheck::Matches,
        T::DirectoryOrCreate | T::Directory => check(is(FileType::is_dir), "a directory"),
        T::FileOrCreate | T::File => check(is(|actual| !actual.is_dir()), "a file"),
        T::Socket => check(is(FileType::is_socket), "a socket file"),
        T::CharDevice => check(is(FileType::is_char_device), "a character device"),
        T::BlockDevice => check(is(FileType::is_block_device), "a block device"),
    }
}

/// Creates the file; its parent must exist, as in kubelet.
fn make_file(path: &Path) -> Result<(), VolumeError> {
    files::make_file(path, 0o644)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;

    use super::*;

    fn check(path: &Path, kind: &str) -> Result<(), String> {
        let source = HostPathVolumeSource { path: path.to_str().unwrap().to_owned(), type_: Some(kind.to_owned()) };
        HostPath::new("v", &source).and_then(|host_path| host_path.set_up()).map_err(|error| error.to_string())
    }

    #[test]
    fn checks_and_messages_are_kubelets() {
        let base = tempfile::tempdir().unwrap();
        let at = |name: &str| base.path().join(name);
        std::fs::create_dir(at("dir")).unwrap();
        std::fs::write(at("file"), "kept").unwrap();
        std::os::unix::fs::symlink("dir", at("link")).unwrap();
        let _socket = UnixListener::bind(at("sock")).unwrap();
        let table = [
            ("", "dir", None),
            ("", "file", None),
            ("Directory", "dir", None),
            ("Directory", "link", None),
            ("Directory", "file", Some("a directory")),
            ("Directory", "none", Some("a directory")),
            ("DirectoryOrCreate", "dir", None),
            ("DirectoryOrCreate", "file", Some("a directory")),
            ("File", "file", None),
            ("File", "dir", Some("a file")),
            ("File", "none", Some("a file")),
            ("FileOrCreate", "file", None),
            ("FileOrCreate", "dir", Some("a file")),
            ("Socket", "sock", None),
            ("Socket", "file", Some("a socket file")),
            ("CharDevice", "file", Some("a character device")),
            ("BlockDevice", "none", Some("a block device")),
        ];
        for (kind, name, wrong) in table {
            let path = at(name);
            let wanted = match wrong {
                None => Ok(()),
                Some(wrong) => {
                    Err(format!("volume \"v\": hostPath type check failed: {} is not {wrong}", path.display()))
                }
            };
            assert_eq!(check(&path, kind), wanted, "{kind:?} {name}");
        }
        assert_eq!(check(Path::new("/dev/null"), "CharDevice"), Ok(()));
        assert_eq!(std::fs::read_to_string(at("file")).unwrap(), "kept");
        assert_eq!(check(&at("dir"), "Dir"), Err("volume \"v\": \"Dir\" is an invalid hostPath type".to_owned()));
    }

    #[test]
    fn missing_paths_are_created_by_type() {
        let base = tempfile::tempdir().unwrap();
        for (kind, name, mode) in
            [("DirectoryOrCreate", "a/b", 0o40755), ("FileOrCreate", "a/f", 0o100_644), ("", "c/d", 0o40755)]
        {
            let path = base.path().join(name);
            check(&path, kind).unwrap();
            assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode(), mode, "{kind:?}");
        }
        let error = check(&base.path().join("no/f"), "FileOrCreate").unwrap_err();
        assert!(error.starts_with("cannot make file "), "{error}");
    }
}
