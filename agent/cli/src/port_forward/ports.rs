//! The ports and addresses of the command line: pure.

use std::net::IpAddr;
use std::str::FromStr;

use k8s_openapi::api::core::v1::Pod;

/// A local port and the pod's port, as given on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PortArgument {
    /// `None` is the same as the pod's; 0 is any free port.
    local: Option<u16>,
    remote: Remote,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Remote {
    Number(u16),
    Name(String),
}

/// A local port and the pod's port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Forwarding {
    /// 0 is any free port.
    pub(super) local: u16,
    pub(super) remote: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Address {
    /// 127.0.0.1 and ::1.
    Localhost,
    Ip(IpAddr),
}

impl FromStr for PortArgument {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (local, remote) = match text.split_once(':') {
            None => (None, text),
            Some(("", remote)) => (Some(0), remote),
            Some((local, remote)) => {
                let number = local.parse().map_err(|_| format!("{local:?} is not a port of this machine"))?;
                (Some(number), remote)
            }
        };
        let remote = match remote.parse() {
            Ok(0) => return Err("0 is not a port of a pod".to_owned()),
            Ok(number) => Remote::Number(number),
            Err(_) if remote.is_empty() || remote.bytes().all(|byte| byte.is_ascii_digit()) => {
                return Err(format!("{remote:?} is not a port (1 to 65535)"));
            }
            Err(_) => Remote::Name(remote.to_owned()),
        };
        Ok(Self { local, remote })
    }
}

impl PortArgument {
    /// Whether the pod's port is given by its name.
    pub(super) fn is_named(&self) -> bool {
        matches!(self.remote, Remote::Name(_))
    }

    /// The port numbers; a name refers to a port of one of the pod's containers.
    ///
    /// # Errors
    ///
    /// No container has a port with this name.
    pub(super) fn resolve(&self, pod: Option<&Pod>) -> Result<Forwarding, String> {
        let remote = match &self.remote {
            Remote::Number(number) => *number,
            Remote::Name(name) => {
                named(pod, name).ok_or_else(|| format!("no container of the pod has a port {name}"))?
            }
        };
        Ok(Forwarding { local: self.local.unwrap_or(remote), remote })
    }
}

fn named(pod: Option<&Pod>, name: &str) -> Option<u16> {
    let spec = pod?.spec.as_ref()?;
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let mut ports = containers.flat_map(|container| container.ports.iter().flatten());
    let port = ports.find(|port| port.name.as_deref() == Some(name))?;
    u16::try_from(port.container_port).ok()
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "localhost" => Ok(Self::Localhost),
            text => text.parse().map(Self::Ip).map_err(|_| format!("{text} is neither localhost nor an IP address")),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_parsed_as_kubectl_does() {
        let pod: Pod = serde_json::from_value(serde_json::json!({ "spec": { "containers": [
            { "name": "a", "ports": [{ "containerPort": 80, "name": "http" }] },
            { "name": "b", "ports": [{ "containerPort": 443, "name": "https" }] },
        ] } }))
        .unwrap();
        for (text, expected) in [
            ("80", Ok((80, 80))),
            ("8080:80", Ok((8080, 80))),
            (":80", Ok((0, 80))),
            ("0:80", Ok((0, 80))),
            ("https", Ok((443, 443))),
            ("8080:http", Ok((8080, 80))),
            ("8080:ftp", Err("no container of the pod has a port ftp")),
            ("0", Err("0 is not a port of a pod")),
            ("65536", Err("\"65536\" is not a port (1 to 65535)")),
            ("80:", Err("\"\" is not a port (1 to 65535)")),
            ("http:80", Err("\"http\" is not a port of this machine")),
            ("-1:80", Err("\"-1\" is not a port of this machine")),
        ] {
            let argument = text.parse::<PortArgument>();
            let actual = argument.and_then(|argument| argument.resolve(Some(&pod)));
            let actual = actual.map(|Forwarding { local, remote }| (local, remote));
            assert_eq!(actual, expected.map_err(str::to_owned), "{text}");
        }
    }

    #[test]
    fn addresses_are_localhost_or_numbers() {
        assert_eq!("localhost".parse(), Ok(Address::Localhost));
        assert_eq!("::".parse(), Ok(Address::Ip("::".parse().unwrap())));
        assert_eq!("edge1".parse::<Address>(), Err("edge1 is neither localhost nor an IP address".to_owned()));
    }
}
