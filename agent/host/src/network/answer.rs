//! Parses a CNI plugin's answer: a result with addresses, or an error. Pure.

use std::net::IpAddr;
use std::path::Path;

use serde::Deserialize;
use serde_json::{Value, json};

use super::kernel::InterfaceAddress;

use limpet_model::sandbox::PodAddresses;

/// The used fields of an ADD's result, in CNI 0.3.0 to 1.1.0 and in earlier versions.
#[derive(Debug, Deserialize)]
struct AddResult {
    ip4: Option<OldIp>,
    ip6: Option<OldIp>,
    #[serde(default)]
    interfaces: Vec<Interface>,
    #[serde(default)]
    ips: Vec<Ip>,
}

#[derive(Debug, Deserialize)]
struct Interface {
    #[serde(default)]
    name: String,
    /// The namespace's path; empty for an interface on the host.
    #[serde(default)]
    sandbox: String,
}

#[derive(Debug, Deserialize)]
struct Ip {
    /// With prefix length: `10.1.2.3/24`.
    address: String,
    interface: Option<usize>,
}

/// An address of the requested interface, before CNI 0.3.0.
#[derive(Debug, Deserialize)]
struct OldIp {
    /// With prefix length.
    ip: String,
}

/// An error as plugins print it.
#[derive(Debug, Deserialize)]
struct ErrorAnswer {
    #[serde(default)]
    code: u32,
    #[serde(default)]
    msg: String,
    #[serde(default)]
    details: String,
}

/// Why a plugin's result is unusable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum ResultError {
    #[error("its result cannot be parsed: {0}")]
    Malformed(String),
    #[error("its result has no address for the pod")]
    NoAddress,
}

/// The pod's addresses: those of `interface` within the pod, one per family, IPv4 first, as containerd reports them
/// by default.
pub(super) fn addresses(result: &Value, interface: &str) -> Result<PodAddresses, ResultError> {
    let result = AddResult::deserialize(result).map_err(|error| ResultError::Malformed(error.to_string()))?;
    let ours = |ip: &&Ip| match ip.interface {
        // Plugins need not name the interface; the requested one is assumed.
        None => true,
        Some(index) => {
            result.interfaces.get(index).is_some_and(|listed| listed.name == interface && !listed.sandbox.is_empty())
        }
    };
    let old = [&result.ip4, &result.ip6].into_iter().flatten().map(|old| &old.ip);
    let mut ips: Vec<IpAddr> = Vec::with_capacity(2);
    for text in result.ips.iter().filter(ours).map(|ip| &ip.address).chain(old) {
        let address = text.split('/').next().unwrap_or_default();
        let address: IpAddr =
            address.parse().map_err(|_| ResultError::Malformed(format!("{text:?} is not an address")))?;
        if !ips.iter().any(|known| known.is_ipv4() == address.is_ipv4()) {
            ips.push(address);
        }
    }
    ips.sort_by_key(IpAddr::is_ipv6);
    if ips.is_empty() { Err(ResultError::NoAddress) } else { Ok(PodAddresses { ips }) }
}

/// The result of an ADD that has assigned these addresses to `interface` in the namespace at `netns`.
pub(super) fn result(version: &str, interface: &str, netns: &Path, addresses: &[InterfaceAddress]) -> Value {
    let ip = |address: &InterfaceAddress| {
        let mut ip = json!({"address": format!("{}/{}", address.ip, address.prefix), "interface": 0});
        // A field of versions before 1.0.
        if version.starts_with("0.") {
            ip["version"] = json!(if address.ip.is_ipv4() { "4" } else { "6" });
        }
        ip
    };
    let ips: Vec<Value> = addresses.iter().map(ip).collect();
    json!({"cniVersion": version, "interfaces": [{"name": interface, "sandbox": netns}], "ips": ips})
}

/// A plugin's failure in one line: the message that it printed, else its output.
pub(super) fn failure(stdout: &[u8], stderr: &[u8]) -> (Option<u32>, String) {
    match serde_json::from_slice::<ErrorAnswer>(stdout) {
        Ok(answer) if !answer.msg.is_empty() || answer.code != 0 => {
            let message = match (answer.msg.as_str(), answer.details.as_str()) {
                (message, "") => message.to_owned(),
                ("", details) => details.to_owned(),
                (message, details) => format!("{message}; {details}"),
            };
            (Some(answer.code), message)
        }
        _ => {
            let text = if stderr.trim_ascii().is_empty() { stdout } else { stderr };
            let text = String::from_utf8_lossy(text.trim_ascii()).into_owned();
            (None, if text.is_empty() { "no error message".to_owned() } else { text })
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn results_of_all_versions() {
        let pod = json!([
            {"name": "cni0", "mac": "00:11"},
            {"name": "veth1", "mac": "00:12"},
            {"name": "eth0", "mac": "00:13", "sandbox": "/run/netns/x"},
            {"name": "net1", "mac": "00:14", "sandbox": "/run/netns/x"},
        ]);
        let table = [
            // 0.3.1 and 0.4.0 name the IP version
            (
                json!({"interfaces": pod, "ips": [{"version": "4", "address": "10.1.0.5/16", "gateway": "10.1.0.1", "interface": 2}]}),
                Ok(vec!["10.1.0.5"]),
            ),
            // 1.0.0 and 1.1.0 do not
            (
                json!({"interfaces": pod, "ips": [{"address": "10.1.0.5/16", "interface": 2}], "dns": {}}),
                Ok(vec!["10.1.0.5"]),
            ),
            // dual stack: IPv4 first whatever the order
            (
                json!({"interfaces": pod, "ips": [{"address": "fd00::5/64", "interface": 2}, {"address": "10.1.0.5/16", "interface": 2}]}),
                Ok(vec!["10.1.0.5", "fd00::5"]),
            ),
            (json!({"interfaces": pod, "ips": [{"address": "fd00::5/64", "interface": 2}]}), Ok(vec!["fd00::5"])),
            // 0.1.0 and 0.2.0
            (json!({"ip4": {"ip": "10.1.0.5/16", "gateway": "10.1.0.1"}, "dns": {}}), Ok(vec!["10.1.0.5"])),
            (
                json!({"cniVersion": "0.2.0", "ip4": {"ip": "10.1.0.5/16"}, "ip6": {"ip": "fd00::5/64"}}),
                Ok(vec!["10.1.0.5", "fd00::5"]),
            ),
            (json!({"ip4": {"ip": "ten"}}), Err(ResultError::Malformed("\"ten\" is not an address".to_owned()))),
            // no interface named
            (json!({"ips": [{"address": "10.1.0.5/16"}]}), Ok(vec!["10.1.0.5"])),
            // the bridge's own address and a second interface's are not the pod's
            (
                json!({"interfaces": pod, "ips": [{"address": "10.1.0.1/16", "interface": 0}, {"address": "10.9.0.5/16", "interface": 3}, {"address": "10.1.0.5/16", "interface": 2}]}),
                Ok(vec!["10.1.0.5"]),
            ),
            (
                json!({"interfaces": pod, "ips": [{"address": "10.1.0.1/16", "interface": 7}]}),
                Err(ResultError::NoAddress),
            ),
            (json!({}), Err(ResultError::NoAddress)),
            (
                json!({"ips": [{"address": "ten/16"}]}),
                Err(ResultError::Malformed("\"ten/16\" is not an address".to_owned())),
            ),
        ];
        for (result, wanted) in table {
            let wanted =
                wanted.map(|ips| PodAddresses { ips: ips.iter().map(|ip: &&str| ip.parse().unwrap()).collect() });
            assert_eq!(addresses(&result, "eth0"), wanted, "{result}");
        }
        assert!(matches!(addresses(&json!([1]), "eth0"), Err(ResultError::Malformed(_))));
    }

    #[test]
    fn a_result_made_from_the_kernels_answer_is_read_as_any_other() {
        let assigned = [("10.1.0.5", 16), ("fd00::5", 64)]
            .map(|(ip, prefix)| InterfaceAddress { ip: ip.parse().unwrap(), prefix });
        for (version, family) in [("1.0.0", None), ("0.4.0", Some("4"))] {
            let made = result(version, "eth0", Path::new("/run/net"), &assigned);
            assert_eq!(addresses(&made, "eth0").unwrap().ips, assigned.map(|address| address.ip));
            assert_eq!(made["ips"][0]["address"], "10.1.0.5/16");
            assert_eq!(made["ips"][0].get("version").and_then(Value::as_str), family, "{version}");
        }
    }

    #[test]
    fn errors() {
        // stdout, stderr, code, message
        let table = [
            (r#"{"cniVersion":"1.0.0","code":11,"msg":"try again"}"#, "", Some(11), "try again"),
            (r#"{"code":7,"msg":"no","details":"bad subnet"}"#, "log", Some(7), "no; bad subnet"),
            (r#"{"code":100,"details":"d"}"#, "", Some(100), "d"),
            ("{}", "panic: oh\n", None, "panic: oh"),
            ("not json", "", None, "not json"),
            ("", " \n", None, "no error message"),
        ];
        for (stdout, stderr, code, message) in table {
            assert_eq!(failure(stdout.as_bytes(), stderr.as_bytes()), (code, message.to_owned()), "{stdout}");
        }
    }
}
