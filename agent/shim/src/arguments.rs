//! The command line with which containerd calls a shim.

use std::ffi::OsString;
use std::path::PathBuf;

/// The arguments of a shim, in the form of Go's flags.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Arguments {
    /// The namespace in containerd.
    pub(crate) namespace: String,
    pub(crate) id: String,
    /// containerd's socket.
    pub(crate) address: String,
    /// The container's bundle; without it, the working directory.
    pub(crate) bundle: Option<PathBuf>,
    /// The action: `start`, `delete`, or empty to serve.
    pub(crate) action: String,
    /// `-v`
    pub(crate) version: bool,
    /// `-info`
    pub(crate) info: bool,
}

impl Arguments {
    /// Parses the arguments. Unknown flags belong to a later containerd: they are skipped in the form `-flag=value`,
    /// and otherwise refused.
    pub(crate) fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Self, String> {
        let mut parsed = Self::default();
        let mut rest = arguments.into_iter();
        while let Some(argument) = rest.next() {
            let text = argument.to_string_lossy().into_owned();
            let Some(flag) = text.strip_prefix("--").or_else(|| text.strip_prefix('-')) else {
                parsed.action = text;
                continue;
            };
            let (name, given) = flag.split_once('=').map_or((flag, None), |(name, value)| (name, Some(value)));
            let mut value = || match given {
                Some(value) => Ok(value.to_owned()),
                None => rest
                    .next()
                    .map(|value| value.to_string_lossy().into_owned())
                    .ok_or(format!("-{name} needs a value")),
            };
            match name {
                "namespace" => parsed.namespace = value()?,
                "id" => parsed.id = value()?,
                "address" => parsed.address = value()?,
                "bundle" => parsed.bundle = Some(value()?.into()),
                "publish-binary" | "socket" => drop(value()?),
                "debug" => {}
                "v" => parsed.version = true,
                "info" => parsed.info = true,
                _ if given.is_some() => {}
                _ => return Err(format!("the flag -{name} is unknown")),
            }
        }
        Ok(parsed)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn containerds_command_lines_are_understood() {
        let parse = |line: &str| Arguments::parse(line.split_whitespace().map(OsString::from));
        let start =
            parse("-namespace k8s.io -address /run/c.sock -publish-binary /usr/bin/containerd -id c1 -debug start");
        let expected = Arguments {
            namespace: "k8s.io".into(),
            id: "c1".into(),
            address: "/run/c.sock".into(),
            action: "start".into(),
            ..Arguments::default()
        };
        assert_eq!(start.unwrap(), expected);
        let delete = parse("--namespace=n -id=c -bundle /b delete").unwrap();
        assert_eq!((delete.bundle, delete.action.as_str()), (Some("/b".into()), "delete"));
        assert!(parse("-info").unwrap().info);
        assert!(parse("-later=1").is_ok());
        assert!(parse("-later").is_err());
        assert!(parse("-id").is_err());
    }
}
