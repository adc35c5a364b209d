//! The calls of `iscsiadm` for a login, in kubelet's order.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use limpet_model::object::SecretBytes;

use super::disk::Disk;

/// Exit codes of `iscsiadm`: the session already exists, and nothing matched.
pub(super) const SESSION_EXISTS: i32 = 15;
pub(super) const NOTHING_FOUND: [i32; 2] = [2, 21];

const LOGIN: &str = "--login";

/// The Secret's keys for discovery, and for the session.
const DISCOVERY: &str = "discovery.sendtargets.auth";
const SESSION: &str = "node.session.auth";
const VALUES: [&str; 4] = ["username", "password", "username_in", "password_in"];

/// The name of an interface's own record, which cannot change.
const INTERFACE_NAME: &str = "iface.iscsi_ifacename";
const INITIATOR: &str = "iface.initiatorname";

/// How often iscsid retries an unresponsive portal before a login fails. Its default of eight takes two minutes.
const LOGIN_TRIES: &str = "1";

/// The credentials with which this node and the target authenticate to each other.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in super::super) struct Chap {
    /// At discovery.
    pub discovery: bool,
    /// At the login.
    pub session: bool,
    /// The Secret's values, by iscsid's names.
    pub values: BTreeMap<String, SecretBytes>,
}

/// What a failed call means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum OnFailure {
    /// The sequence continues.
    Ignore,
    /// The login fails with this message, after this call.
    Abort(String, Option<Vec<String>>),
}

/// One call. Its arguments may contain secrets.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Step {
    pub arguments: Vec<String>,
    pub on_failure: OnFailure,
}

impl Step {
    /// Whether it is the login itself.
    pub(super) fn is_login(&self) -> bool {
        self.arguments.last().is_some_and(|last| last == LOGIN)
    }
}

/// The calls that log in to the disk's target at `portal`.
pub(super) fn log_in(disk: &Disk, portal: SocketAddr, chap: &Chap) -> Vec<Step> {
    let discovery = |rest: &[&str]| discovery(disk, portal, rest);
    let node = |rest: &[&str]| node(disk, portal, rest);
    let passes = |arguments| Step { arguments, on_failure: OnFailure::Ignore };
    let fails = |arguments, what: String, undone| Step { arguments, on_failure: OnFailure::Abort(what, undone) };
    let mut steps = vec![passes(discovery(&["-o", "new"]))];
    if chap.discovery {
        let what = format!("iscsi: failed to update discoverydb to portal {portal}");
        steps.extend(settings(DISCOVERY, chap).map(|rest| fails(discovery(&texts(&rest)), what.clone(), None)));
    }
    let what = format!("iscsi: failed to sendtargets to portal {portal}");
    steps.push(fails(discovery(&["--discover"]), what, Some(discovery(&["-o", "delete"]))));
    // The node must not see the target's other disks.
    steps.push(passes(node(&texts(&update("node.session.scan", "manual")))));
    steps.push(passes(node(&texts(&update("node.session.initial_login_retry_max", LOGIN_TRIES)))));
    if chap.session {
        let what = format!("iscsi: failed to update iscsi node to portal {portal}");
        steps.extend(settings(SESSION, chap).map(|rest| fails(node(&texts(&rest)), what.clone(), None)));
    }
    let what = format!("iscsi: failed to log in to portal {portal}");
    steps.push(fails(node(&[LOGIN]), what, Some(node(&["-o", "delete"]))));
    // A boot must not wait for a target that may be gone.
    steps.push(passes(node(&texts(&update("node.startup", "manual")))));
    steps
}

/// The calls that set CHAP and the Secret's values.
fn settings<'a>(section: &'static str, chap: &'a Chap) -> impl Iterator<Item = [String; 6]> + use<'a> {
    let value = move |name: &str| {
        let key = format!("{section}.{name}");
        let value = chap.values.get(&key)?.expose_text().filter(|value| !value.is_empty())?;
        Some(update(&key, value))
    };
    std::iter::once(update(&format!("{section}.authmethod"), "CHAP")).chain(VALUES.into_iter().filter_map(value))
}

pub(super) fn show_interface(name: &str) -> Vec<String> {
    interface(name, &["-o", "show"])
}

pub(super) fn new_interface(name: &str) -> Vec<String> {
    interface(name, &["-o", "new"])
}

pub(super) fn delete_interface(name: &str) -> Vec<String> {
    interface(name, &["-o", "delete"])
}

/// Gives the interface the settings of another one, as `iscsiadm` shows them, and the initiator's name.
pub(super) fn clone_interface(name: &str, shown: &str, initiator: &str) -> Vec<Vec<String>> {
    let setting = |line: &str| {
        let (key, value) = line.split_once(" = ")?;
        let (key, value) = (key.trim().to_owned(), value.trim().to_owned());
        (key.starts_with("iface.") && key != INTERFACE_NAME && !value.contains("<empty>")).then_some((key, value))
    };
    let mut settings: BTreeMap<String, String> = shown.lines().filter_map(setting).collect();
    settings.insert(INITIATOR.to_owned(), initiator.to_owned());
    settings.iter().map(|(key, value)| interface(name, &texts(&update(key, value)))).collect()
}

/// Ends a session.
pub(super) fn log_out(session: u32) -> Vec<String> {
    owned(&["-m", "session", "-r", &session.to_string(), "--logout"])
}

/// Removes iscsid's record of the target at `portal`.
pub(super) fn delete_node(disk: &Disk, portal: SocketAddr) -> Vec<String> {
    node(disk, portal, &["-o", "delete"])
}

fn discovery(disk: &Disk, portal: SocketAddr, rest: &[&str]) -> Vec<String> {
    let portal = portal.to_string();
    let all = ["-m", "discoverydb", "-t", "sendtargets", "-p", &portal, "-I", &disk.interface];
    owned(&[&all[..], rest].concat())
}

fn node(disk: &Disk, portal: SocketAddr, rest: &[&str]) -> Vec<String> {
    let portal = portal.to_string();
    let all = ["-m", "node", "-p", &portal, "-T", &disk.iqn, "-I", &disk.interface];
    owned(&[&all[..], rest].concat())
}

fn interface(name: &str, rest: &[&str]) -> Vec<String> {
    owned(&[&["-m", "iface", "-I", name][..], rest].concat())
}

fn update(key: &str, value: &str) -> [String; 6] {
    ["-o", "update", "-n", key, "-v", value].map(str::to_owned)
}

fn texts(rest: &[String]) -> Vec<&str> {
    rest.iter().map(String::as_str).collect()
}

fn owned(arguments: &[&str]) -> Vec<String> {
    arguments.iter().map(|argument| (*argument).to_owned()).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::super::disk::tests::volume;
    use super::*;

    #[test]
    fn a_login_is_kubelets() {
        let disk = Disk::new(&volume(json!({}))).unwrap();
        let value = |name: &str, text: &str| (name.to_owned(), SecretBytes::new(text.as_bytes().to_vec()));
        let values = BTreeMap::from([
            value("node.session.auth.username", "me"),
            value("node.session.auth.password", "hunter2"),
            value("node.session.auth.password_in", ""),
            value("discovery.sendtargets.auth.username", "you"),
        ]);
        let lines = |discovery: bool, session: bool| -> Vec<String> {
            let chap = Chap { discovery, session, values: values.clone() };
            log_in(&disk, disk.portals[0], &chap).iter().map(|step| step.arguments.join(" ")).collect()
        };
        let db = "-m discoverydb -t sendtargets -p 192.0.2.1:3260 -I default";
        let node = "-m node -p 192.0.2.1:3260 -T iqn.2001-04.test:a -I default";
        let plain = [
            format!("{db} -o new"),
            format!("{db} --discover"),
            format!("{node} -o update -n node.session.scan -v manual"),
            format!("{node} -o update -n node.session.initial_login_retry_max -v 1"),
            format!("{node} --login"),
            format!("{node} -o update -n node.startup -v manual"),
        ];
        assert_eq!(lines(false, false), plain);
        let mut session = plain.to_vec();
        session.splice(
            4..4,
            ["authmethod -v CHAP", "username -v me", "password -v hunter2"]
                .map(|setting| format!("{node} -o update -n node.session.auth.{setting}")),
        );
        assert_eq!(lines(false, true), session);
        let mut discovery = plain.to_vec();
        discovery.splice(
            1..1,
            ["authmethod -v CHAP", "username -v you"]
                .map(|setting| format!("{db} -o update -n discovery.sendtargets.auth.{setting}")),
        );
        assert_eq!(lines(true, false), discovery);
    }

    #[test]
    fn an_interface_of_its_own_has_the_settings_of_another() {
        let shown = "# BEGIN RECORD 2.1.8\niface.iscsi_ifacename = default\niface.net_ifacename = <empty>\n\
            iface.transport_name = tcp\niface.initiatorname = <empty>\n# END RECORD\n";
        let lines: Vec<String> =
            clone_interface("192.0.2.1:3260:data", shown, "iqn.x:y").iter().map(|call| call.join(" ")).collect();
        let call = "-m iface -I 192.0.2.1:3260:data -o update -n";
        let expected =
            [format!("{call} iface.initiatorname -v iqn.x:y"), format!("{call} iface.transport_name -v tcp")];
        assert_eq!(lines, expected);
    }
}
