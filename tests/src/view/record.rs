//! Views on disk: the first in full, each other as its difference from the first. Pure, except for reading and
//! writing the file.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use super::{View, Views};

/// The section with what is in `/dev`.
const DEVICES: &str = "devices";

/// The differences of two views, line by line.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// The lines that only the first has.
    #[serde(rename = "-", default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
    /// The lines that only the second has.
    #[serde(rename = "+", default, skip_serializing_if = "Vec::is_empty")]
    pub added: Vec<String>,
}

impl Difference {
    fn is_empty(&self) -> bool {
        self.missing.is_empty() && self.added.is_empty()
    }
}

/// One line of the file.
#[derive(Serialize, Deserialize)]
struct Line {
    view: String,
    /// The differences by section.
    #[serde(flatten)]
    differences: BTreeMap<String, Difference>,
}

/// The differences of `other` from `recorded`, by section; equal sections are left out.
pub fn differences(recorded: &View, other: &View) -> BTreeMap<String, Difference> {
    let sections: BTreeSet<_> = recorded.keys().chain(other.keys()).collect();
    let all = sections.into_iter().map(|section| {
        let lines = |view: &View| view.get(section).cloned().unwrap_or_default();
        (section.clone(), difference(&lines(recorded), &lines(other)))
    });
    all.filter(|(_, difference)| !difference.is_empty()).collect()
}

fn difference(recorded: &[String], other: &[String]) -> Difference {
    let without = |lines: &[String], taken: &[String]| {
        let mut left = taken.to_vec();
        let mut kept = lines.to_vec();
        kept.retain(|line| match left.iter().position(|taken| taken == line) {
            Some(at) => {
                left.swap_remove(at);
                false
            }
            None => true,
        });
        kept
    };
    Difference { missing: without(recorded, other), added: without(other, recorded) }
}

/// `recorded` with the differences applied.
fn applied(recorded: &View, differences: &BTreeMap<String, Difference>) -> View {
    let mut view = recorded.clone();
    for (section, Difference { missing, added }) in differences {
        let lines = view.entry(section.clone()).or_default();
        for gone in missing {
            if let Some(at) = lines.iter().position(|line| line == gone) {
                lines.remove(at);
            }
        }
        lines.extend(added.iter().cloned());
        lines.sort();
    }
    view.retain(|_, lines| !lines.is_empty());
    view
}

/// Views of containers and views of pods have little in common.
fn is_of_pod(name: &str) -> bool {
    !name.contains('/')
}

/// An intended difference: the prefix of the view's name (of a pod `pod`, of a container `pod/container`), section,
/// part of the line, and why.
pub type Known = (&'static str, &'static str, &'static str, &'static str);

/// The device of a line of the section `devices`; `None` for a link.
fn device(line: &str) -> Option<&str> {
    line.split_once(' ').filter(|(_, what)| what.contains("special file")).map(|(path, _)| path)
}

/// Leaves out the devices that only one of the two machines has: the one on which kubelet's views were recorded, and this
/// one, which has those for which `exists` says so. Kernels differ in them, and a privileged container has all.
pub fn retain_common_devices(kubelet: &mut Views, limpet: &mut Views, exists: impl Fn(&str) -> bool) {
    let devices = |views: &Views| -> BTreeSet<String> {
        let lines = views.values().filter_map(|view| view.get(DEVICES)).flatten();
        lines.filter_map(|line| device(line)).map(str::to_owned).collect()
    };
    let recorded = devices(kubelet);
    let is_common = |line: &String| device(line).is_none_or(|path| recorded.contains(path) && exists(path));
    for view in kubelet.values_mut().chain(limpet.values_mut()) {
        if let Some(lines) = view.get_mut(DEVICES) {
            lines.retain(is_common);
        }
    }
}

/// What differs from kubelet's views without being intended.
pub fn differing(kubelet: &Views, limpet: &Views, on_purpose: &[Known]) -> Vec<String> {
    let mut findings = Vec::new();
    for (name, view) in limpet {
        let none = View::new();
        // If only its status matters, nothing else of a pod is checked.
        let compared = |(section, _): &(String, Difference)| view.contains_key(section);
        for (section, Difference { missing, added }) in
            differences(kubelet.get(name).unwrap_or(&none), view).into_iter().filter(compared)
        {
            let is_known = |line: &str| {
                on_purpose.iter().any(|(view, of_section, part, _)| {
                    name.starts_with(view) && section.starts_with(of_section) && line.contains(part)
                })
            };
            let unknown = |lines: Vec<String>| lines.into_iter().filter(|line| !is_known(line));
            findings.extend(unknown(missing).map(|line| format!("{name} {section}: - {line}")));
            findings.extend(unknown(added).map(|line| format!("{name} {section}: + {line}")));
        }
    }
    findings
}

/// The text of the file: a line for each view.
pub fn written(views: &Views) -> Result<String> {
    let mut text = String::new();
    for of_pods in [false, true] {
        let mut base: Option<View> = None;
        for (name, view) in views.iter().filter(|(name, _)| is_of_pod(name) == of_pods) {
            let differences = differences(base.as_ref().unwrap_or(&View::new()), view);
            text += &serde_json::to_string(&Line { view: name.clone(), differences })?;
            text.push('\n');
            base.get_or_insert_with(|| view.clone());
        }
    }
    Ok(text)
}

/// The views of such a text.
pub fn read(text: &str) -> Result<Views> {
    let mut views = Views::new();
    let mut bases: [Option<View>; 2] = [None, None];
    for line in text.lines() {
        let Line { view: name, differences } = serde_json::from_str(line).with_context(|| line.to_owned())?;
        let base = &mut bases[usize::from(is_of_pod(&name))];
        let view = applied(base.as_ref().unwrap_or(&View::new()), &differences);
        base.get_or_insert_with(|| view.clone());
        views.insert(name, view);
    }
    Ok(views)
}

/// The file with kubelet's views of the pods in that directory.
pub fn path(dir: &Path) -> PathBuf {
    dir.join("kubelet.jsonl")
}

/// The recorded views of a real kubelet.
pub fn of_kubelet(dir: &Path) -> Result<Views> {
    let path = path(dir);
    read(&fs::read_to_string(&path).with_context(|| format!("{}", path.display()))?)
}

/// Replaces the recorded views by those of kubelet in `views`; pods without new views keep theirs. Returns what was
/// recorded before.
pub fn renew(dir: &Path, views: &Views) -> Result<Views> {
    let before = of_kubelet(dir).unwrap_or_default();
    let mut record: Views = before.clone();
    record.retain(|name, _| name.split('/').next().is_none_or(|pod| !views.contains_key(pod)));
    record.extend(views.clone());
    fs::write(path(dir), written(&record)?)?;
    Ok(before)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn view(sections: &[(&str, &[&str])]) -> View {
        let lines = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect();
        sections.iter().map(|(section, all)| ((*section).to_owned(), lines(all))).collect()
    }

    #[test]
    fn what_is_written_is_read() {
        let views = Views::from([
            ("a/main".to_owned(), view(&[("environment", &["A=1", "B=2", "B=2"]), ("limits", &["x"])])),
            ("b/main".to_owned(), view(&[("environment", &["A=1", "B=2", "C=3"])])),
            ("a".to_owned(), view(&[("status", &["phase = Running"])])),
            ("b".to_owned(), view(&[("status", &["phase = Failed"])])),
        ]);
        let text = written(&views).unwrap();
        assert_eq!(read(&text).unwrap(), views);
        assert!(!text.lines().nth(1).unwrap().contains("A=1"), "what is as in the first is not repeated: {text}");
    }

    #[test]
    fn devices_that_one_machine_lacks_are_not_compared() {
        let line = |name: &str| format!("/dev/{name} character special file 644 0:0 a:1");
        let views = |names: &[&str]| {
            let lines: Vec<String> =
                names.iter().map(|name| line(name)).chain(["/dev/fd symbolic link".into()]).collect();
            Views::from([("a/main".to_owned(), View::from([("devices".to_owned(), lines)]))])
        };
        let (mut kubelet, mut limpet) = (views(&["autofs", "fuse", "kmsg"]), views(&["fuse", "new"]));
        retain_common_devices(&mut kubelet, &mut limpet, |path| path != "/dev/autofs");
        assert_eq!((&kubelet, &limpet), (&views(&["fuse", "kmsg"]), &views(&["fuse"])));
        assert_eq!(differing(&kubelet, &limpet, &[]), [format!("a/main devices: - {}", line("kmsg"))]);
    }

    #[test]
    fn a_difference_is_what_one_alone_has() {
        let differing =
            differences(&view(&[("s", &["a", "b", "b"]), ("t", &["x"])]), &view(&[("s", &["b", "c"]), ("t", &["x"])]));
        let expected = Difference { missing: vec!["a".into(), "b".into()], added: vec!["c".into()] };
        assert_eq!(differing, BTreeMap::from([("s".to_owned(), expected)]));
    }
}
