//! Replaces what differs between any two runs by names: UIDs, addresses, ids, directories, the machine's own figures.
//! Pure.

use std::collections::BTreeMap;

use super::View;

/// The texts of this run with their names, the longest texts first.
#[derive(Debug, Clone, Default)]
pub struct Names(Vec<(String, &'static str)>);

impl Names {
    /// `text` is shown as `name`.
    pub fn add(&mut self, text: &str, name: &'static str) {
        if !text.is_empty() && self.0.iter().all(|(known, _)| known != text) {
            self.0.push((text.to_owned(), name));
            self.0.sort_by_key(|(text, _)| std::cmp::Reverse(text.len()));
        }
    }

    /// The line with the texts of this run replaced.
    pub fn normal(&self, line: &str) -> String {
        let mut line = line.trim_end().to_owned();
        for (text, name) in &self.0 {
            line = replaced(&line, text, name);
        }
        without_ids(&without_version(&line))
    }
}

/// `text` replaced wherever it is not part of a longer number.
fn replaced(line: &str, text: &str, name: &str) -> String {
    let (mut done, mut rest) = (String::new(), line);
    while let Some(at) = rest.find(text) {
        let (before, after) = (&rest[..at], &rest[at + text.len()..]);
        let digit_before = before.chars().next_back().or(done.chars().next_back()).is_some_and(|c| c.is_ascii_digit());
        let part = digit_before || after.starts_with(|c: char| c.is_ascii_digit());
        done.push_str(before);
        done.push_str(if part { text } else { name });
        rest = after;
    }
    done + rest
}

/// The facts of the machine that occur in views.
#[derive(Debug, Clone, Default)]
pub struct Machine {
    /// `net` → `net:[4026531840]`.
    pub namespaces: BTreeMap<String, String>,
    /// The lines of a `limits` file that the runtime passes on.
    pub limits: Vec<String>,
    /// Bytes of memory.
    pub memory: u64,
    /// The address that its packets have.
    pub address: String,
}

/// The sections of what the script has printed, with normalised and sorted lines. Namespaces come later, because they
/// are compared with those of the pod's other containers.
pub fn view(printed: &str, names: &Names, machine: &Machine) -> View {
    let mut view = View::new();
    let mut section = String::new();
    for line in printed.lines() {
        if let Some(name) = line.strip_prefix("== ") {
            name.clone_into(&mut section);
            view.entry(section.clone()).or_default();
        } else if let Some(lines) = view.get_mut(&section) {
            lines.extend(normal_line(&section, line, machine).map(|line| names.normal(&line)));
        }
    }
    view.remove("end");
    let of_host = view.get("namespaces").is_some_and(|lines| {
        lines
            .iter()
            .any(|line| machine.namespaces.get("net").is_some_and(|namespace| *line == format!("net {namespace}")))
    });
    if of_host {
        view.insert("network".to_owned(), vec!["the node's".to_owned()]);
    }
    for (section, lines) in &mut view {
        match section.as_str() {
            // The order matters.
            "hosts" | "resolv.conf" | "command" | "hostname" => *lines = vec![lines.join("\\n")],
            _ => lines.sort(),
        }
    }
    view
}

fn normal_line(section: &str, line: &str, machine: &Machine) -> Option<String> {
    let squeezed = || line.split_whitespace().collect::<Vec<_>>().join(" ");
    match section {
        "mounts" => Some(mount(line).unwrap_or_else(|| line.to_owned())),
        "limits" => {
            let line = squeezed();
            (!machine.limits.contains(&line)).then_some(line)
        }
        "environment" if line.is_empty() => None,
        // The hierarchies are numbered as they were mounted.
        "cgroup" if line.contains(":/") => line.split_once(':').map(|(_, rest)| rest.to_owned()),
        "volumes" if line.is_empty() => None,
        _ => Some(line.to_owned()),
    }
}

/// `/dev tmpfs rw,nosuid size=65536k,mode=755`: without numbers, and without the node's directories behind it.
fn mount(line: &str) -> Option<String> {
    let (mount, file_system) = line.split_once(" - ")?;
    let mut fields = mount.split(' ').skip(4);
    let (path, options) = (fields.next()?, fields.next()?);
    let propagation: String = fields.map(|field| format!(" {}", field.split(':').next().unwrap_or_default())).collect();
    let mut fields = file_system.split(' ');
    let (kind, _source, details) = (fields.next()?, fields.next()?, fields.next().unwrap_or_default());
    // A pod cannot choose a disk's own options.
    match kind {
        "tmpfs" | "proc" | "sysfs" | "devpts" | "mqueue" | "cgroup" | "cgroup2" => {
            Some(format!("{path} {kind} {options} {details}{propagation}"))
        }
        "overlay" => Some(format!("{path} {kind} {options}{propagation}")),
        _ => Some(format!("{path} disk {options}{propagation}")),
    }
}

/// `..2026_11_24_22_15_01.123456789`, the directory of a version of a volume, as `..VERSION`.
fn without_version(line: &str) -> String {
    let Some(at) = line.find("..20") else { return line.to_owned() };
    let end = line[at + 2..].find(|c: char| !(c.is_ascii_digit() || c == '_' || c == '.')).map(|end| at + 2 + end);
    let end = end.unwrap_or(line.len());
    if end - at < 20 {
        return line.to_owned();
    }
    format!("{}..VERSION{}", &line[..at], without_version(&line[end..]))
}

/// Ids are 32 hexadecimal digits and more.
fn without_ids(line: &str) -> String {
    let (mut normal, mut run) = (String::new(), String::new());
    for c in line.chars().map(Some).chain([None]) {
        if let Some(digit) = c.filter(char::is_ascii_hexdigit) {
            run.push(digit);
            continue;
        }
        normal.push_str(if run.len() >= 32 { "ID" } else { &run });
        run.clear();
        normal.extend(c);
    }
    normal
}

/// Names the namespaces of a pod's containers: the node's, one that several of them have, or a container's own.
pub fn name_namespaces(of_pod: &mut [(&mut View, bool)], machine: &Machine) {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let running = of_pod.iter().filter(|(_, runs)| *runs);
    for line in running.filter_map(|(view, _)| view.get("namespaces")).flatten() {
        *seen.entry(line.clone()).or_default() += 1;
    }
    for (view, runs) in of_pod {
        let Some(lines) = view.get_mut("namespaces") else { continue };
        for line in lines {
            let Some((kind, id)) = line.split_once(' ') else { continue };
            let whose = match (machine.namespaces.get(kind.trim_end_matches("_for_children")), seen.get(line)) {
                (Some(uid), _) if uid == id => "the node's",
                // The number of a namespace that was removed with its container may already belong to another one.
                (_, Some(2..)) if *runs => "shared in the pod",
                _ => "own",
            };
            *line = format!("{kind}: {whose}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Names {
        let mut names = Names::default();
        names.add("edge-1", "NODE");
        names.add("kubelet-edge-1", "NODE");
        names.add("10.1.2.3", "POD_IP");
        names
    }

    #[test]
    fn what_differs_from_run_to_run_has_a_name() {
        let id = "0123456789abcdef".repeat(4);
        for (line, normal) in [
            ("HOSTNAME=web-kubelet-edge-1", "HOSTNAME=web-NODE"),
            ("10.1.2.3\tweb-edge-1", "POD_IP\tweb-NODE"),
            ("nameserver 10.1.2.30", "nameserver 10.1.2.30"),
            (&format!("containerd://{id}"), "containerd://ID"),
            ("CapEff: 00000000a80425fb", "CapEff: 00000000a80425fb"),
            ("/volumes/a/..data -> ..2026_11_24_22_15_01.1234567", "/volumes/a/..data -> ..VERSION"),
            ("/volumes/a/..2026_11_24_22_15_01.123/key file", "/volumes/a/..VERSION/key file"),
        ] {
            assert_eq!(names().normal(line), normal);
        }
    }

    #[test]
    fn a_mount_is_where_what_and_how() {
        for (line, normal) in [
            (
                "1 2 0:3 / /dev rw,nosuid - tmpfs tmpfs rw,size=65536k,mode=755",
                "/dev tmpfs rw,nosuid rw,size=65536k,mode=755",
            ),
            (
                "1 2 8:1 /pods/x/etc-hosts /etc/hosts rw,relatime master:9 - ext4 /dev/vda rw",
                "/etc/hosts disk rw,relatime master",
            ),
            ("1 2 0:9 / / rw,relatime - overlay overlay rw,lowerdir=/a", "/ overlay rw,relatime"),
        ] {
            assert_eq!(mount(line).as_deref(), Some(normal));
        }
    }

    #[test]
    fn sections_hold_their_lines_in_order_of_text() {
        let machine = Machine { limits: vec!["Max files 5 5".into()], ..Machine::default() };
        let view = view(
            "== environment\nB=1\nA=10.1.2.3\n\n== limits\nMax  files  5 5\nMax pipes 1 1\n== hosts\nb\na\n== end\n",
            &names(),
            &machine,
        );
        let lines = |section: &str| view.get(section).cloned().unwrap_or_default();
        assert_eq!(lines("environment"), ["A=POD_IP", "B=1"]);
        assert_eq!(lines("limits"), ["Max pipes 1 1"]);
        assert_eq!(lines("hosts"), ["b\\na"]);
        assert_eq!(view.len(), 3);
    }

    #[test]
    fn a_namespace_is_the_nodes_the_pods_or_the_containers() {
        let machine = Machine { namespaces: [("net".to_owned(), "net:[1]".to_owned())].into(), ..Machine::default() };
        let view = |lines: &[&str]| {
            View::from([("namespaces".to_owned(), lines.iter().map(|line| (*line).to_owned()).collect())])
        };
        let (mut main, mut side) =
            (view(&["ipc ipc:[2]", "net net:[1]", "pid pid:[3]"]), view(&["ipc ipc:[2]", "pid pid:[4]"]));
        let mut ended = view(&["pid pid:[3]"]);
        name_namespaces(&mut [(&mut main, true), (&mut side, true), (&mut ended, false)], &machine);
        assert_eq!(main["namespaces"], ["ipc: shared in the pod", "net: the node's", "pid: own"]);
        assert_eq!(side["namespaces"], ["ipc: shared in the pod", "pid: own"]);
        assert_eq!(ended["namespaces"], ["pid: own"]);
    }
}
