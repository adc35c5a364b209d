//! `shim`: which shim pods use.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::container::runtime::SHIM_PROGRAM;

/// The shim of new containers. Running ones keep theirs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Shim {
    /// `auto`: limpet's own if it is beside the agent's executable, else containerd's for runc.
    #[default]
    Auto,
    /// `runc-v2`: containerd's shim for runc, with a logger process for each container.
    RuncV2,
    /// `limpet`: limpet's own, beside the agent's executable or at this path.
    Limpet(Option<PathBuf>),
}

impl Shim {
    /// Parses the key's value; the error says what is wrong with it.
    ///
    /// # Errors
    ///
    /// The value is neither a name nor an absolute path.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "runc-v2" => Ok(Self::RuncV2),
            "limpet" => Ok(Self::Limpet(None)),
            path if Path::new(path).is_absolute() => match Path::new(path).file_name() {
                Some(name) if name == SHIM_PROGRAM => Ok(Self::Limpet(Some(path.into()))),
                _ => Err(format!("{path:?} is not called {SHIM_PROGRAM}")),
            },
            other => {
                Err(format!("{other:?} is unknown; use auto, limpet, runc-v2, or the absolute path of {SHIM_PROGRAM}"))
            }
        }
    }

    /// The path of limpet's shim, beside the agent's `executable` or as configured; `None` if containerd's is used.
    /// Checks whether the file exists if that decides.
    pub fn program(&self, executable: &Path) -> Option<PathBuf> {
        match self {
            Self::Auto => Some(executable.with_file_name(SHIM_PROGRAM)).filter(|path| path.is_file()),
            Self::RuncV2 => None,
            Self::Limpet(Some(path)) => Some(path.clone()),
            Self::Limpet(None) => Some(executable.with_file_name(SHIM_PROGRAM)),
        }
    }
}

impl fmt::Display for Shim {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => formatter.write_str("auto"),
            Self::RuncV2 => formatter.write_str("runc-v2"),
            Self::Limpet(None) => formatter.write_str("limpet"),
            Self::Limpet(Some(path)) => path.display().fmt(formatter),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_shim_is_named_or_a_path() {
        let agent = Path::new("/nowhere/bin/limpet");
        for (text, program) in [
            ("auto", None),
            ("runc-v2", None),
            ("limpet", Some("/nowhere/bin/containerd-shim-limpet-v1")),
            ("/opt/containerd-shim-limpet-v1", Some("/opt/containerd-shim-limpet-v1")),
        ] {
            let shim = Shim::parse(text).unwrap();
            assert_eq!((shim.program(agent), shim.to_string().as_str()), (program.map(PathBuf::from), text));
        }
        for (text, why) in
            [("runc", "use auto, limpet, runc-v2"), ("/usr/bin/other", "is not called containerd-shim-limpet-v1")]
        {
            assert!(Shim::parse(text).unwrap_err().contains(why), "{text}");
        }
    }

    #[test]
    fn by_default_limpets_is_used_where_it_is_installed() {
        let directory = tempfile::tempdir().unwrap();
        let (agent, shim) = (directory.path().join("limpet"), directory.path().join(SHIM_PROGRAM));
        assert_eq!(Shim::default().program(&agent), None);
        std::fs::write(&shim, "").unwrap();
        assert_eq!(Shim::default().program(&agent), Some(shim));
    }
}
