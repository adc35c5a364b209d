//! The two arguments of `limpet cp`. Pure.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// One end of a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Location {
    /// `POD:PATH` or `NAMESPACE/POD:PATH`.
    Container {
        /// As the user typed it.
        pod: String,
        /// Inside the container.
        path: PathBuf,
    },
    Local(PathBuf),
    /// Stdin or stdout.
    Stream,
}

impl Location {
    /// Parses an argument; a path of this machine that contains a colon has to begin with `/` or `.`.
    ///
    /// # Errors
    ///
    /// The argument is neither, with the remedy.
    pub(super) fn parse(argument: &OsStr) -> Result<Self, String> {
        let bytes = argument.as_bytes();
        let path = || Path::new(argument).to_owned();
        let colon = bytes.iter().position(|byte| *byte == b':').filter(|_| !matches!(bytes.first(), Some(b'/' | b'.')));
        match (bytes, colon) {
            (b"-", _) => Ok(Self::Stream),
            (b"", _) => Err("a path is empty".to_owned()),
            (_, None) => Ok(Self::Local(path())),
            (_, Some(at)) => match (std::str::from_utf8(&bytes[..at]), &bytes[at + 1..]) {
                (Ok(pod), inside @ [_, ..]) if !pod.is_empty() => {
                    Ok(Self::Container { pod: pod.to_owned(), path: OsStr::from_bytes(inside).into() })
                }
                _ => Err(format!("{}: expected POD:PATH, or ./PATH for a path on this machine", argument.display())),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_colon_makes_a_pods_path() {
        let inside = |pod: &str, path: &str| Ok(Location::Container { pod: pod.to_owned(), path: path.into() });
        let local = |path: &str| Ok(Location::Local(path.into()));
        let fault =
            |argument: &str| Err(format!("{argument}: expected POD:PATH, or ./PATH for a path on this machine"));
        for (argument, expected) in [
            ("web:/etc/app", inside("web", "/etc/app")),
            ("a/web:x:y", inside("a/web", "x:y")),
            ("./web:x", local("./web:x")),
            ("/a:b", local("/a:b")),
            ("file", local("file")),
            ("-", Ok(Location::Stream)),
            ("web:", fault("web:")),
            (":x", fault(":x")),
            ("", Err("a path is empty".to_owned())),
        ] {
            assert_eq!(Location::parse(OsStr::new(argument)), expected, "{argument}");
        }
    }
}
