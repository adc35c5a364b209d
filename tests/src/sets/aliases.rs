//! Names for what differs between any two runs: hashes, suffixes, addresses, UIDs. Pure.

use std::collections::BTreeMap;

use serde_json::Value;

/// Texts of a run, each with the name that stands for it.
#[derive(Debug, Clone, Default)]
pub struct Aliases(BTreeMap<String, String>);

impl Aliases {
    /// `text` is shown as `name` from now on, unless it has a name already.
    pub fn add(&mut self, text: &str, name: &str) {
        if !text.is_empty() && text != name {
            self.0.entry(text.to_owned()).or_insert_with(|| name.to_owned());
        }
    }

    /// The same for what is called differently each time, such as an address that another pod had.
    pub fn set(&mut self, text: &str, name: &str) {
        if !text.is_empty() {
            self.0.insert(text.to_owned(), name.to_owned());
        }
    }

    /// The line with all texts replaced, the longest first, where they are no part of a longer word.
    pub fn normal(&self, line: &str) -> String {
        let mut texts: Vec<_> = self.0.iter().collect();
        texts.sort_by_key(|(text, _)| std::cmp::Reverse(text.len()));
        texts.into_iter().fold(line.trim_end().to_owned(), |line, (text, name)| replaced(&line, text, name))
    }

    /// Learns the names of a pod.
    pub fn learn(&mut self, pod: &Value) {
        let metadata = &pod["metadata"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let label = |name: &str| text(&metadata["labels"][name]);
        self.add(&text(&metadata["uid"]), "UID");
        self.add(&label("batch.kubernetes.io/controller-uid"), "UID");
        self.add(&label("pod-template-hash"), "HASH");
        self.add(label("controller-revision-hash").rsplit('-').next().unwrap_or_default(), "HASH");
        let job = label("batch.kubernetes.io/job-name");
        self.add(job.rsplit('-').next().filter(|end| is_minutes(end)).unwrap_or_default(), "MINUTES");
        let name = text(&metadata["name"]);
        let shown = self.normal(&pattern(&name, &text(&metadata["ownerReferences"][0]["kind"])));
        // The name of a pod of a manifest ends with that of its node.
        self.set(&name, shown.trim_end_matches("-NODE"));
    }

    /// Gives a pod's addresses its name. Those of the node are that of the host.
    pub fn place(&mut self, pod: &Value) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (host, name) = (text(&pod["status"]["hostIP"]), self.normal(&text(&pod["metadata"]["name"])));
        for address in pod["status"]["podIPs"].as_array().into_iter().flatten().map(|it| text(&it["ip"])) {
            if address != host {
                self.set(&address, &name);
                self.set(&address.replace(['.', ':'], "-"), &name);
            }
        }
        self.set(&host, "HOST_IP");
    }
}

/// Minutes since 1970 at the end of the name of a CronJob's Job.
pub fn is_minutes(text: &str) -> bool {
    text.len() == 8 && text.chars().all(|c| c.is_ascii_digit())
}

/// The name with `SUFFIX` in place of the five characters that a controller has chosen.
fn pattern(name: &str, owner: &str) -> String {
    match name.rsplit_once('-') {
        Some((kept, suffix)) if suffix.len() == 5 && ["ReplicaSet", "DaemonSet", "Job"].contains(&owner) => {
            format!("{kept}-SUFFIX")
        }
        _ => name.to_owned(),
    }
}

fn replaced(line: &str, text: &str, name: &str) -> String {
    let (mut done, mut rest) = (String::new(), line);
    while let Some(at) = rest.find(text) {
        let (before, after) = (&rest[..at], &rest[at + text.len()..]);
        let is_word = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
        let part = is_word(before.chars().next_back().or(done.chars().next_back())) || is_word(after.chars().next());
        done.push_str(before);
        done.push_str(if part { text } else { name });
        rest = after;
    }
    done + rest
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_goes_by_its_controllers_name() {
        let mut aliases = Aliases::default();
        let pod = json!({
            "metadata": {
                "name": "web-5d9c7b8f6-x2b4c", "uid": "1-2-3", "labels": { "pod-template-hash": "5d9c7b8f6" },
                "ownerReferences": [{ "kind": "ReplicaSet", "name": "web-5d9c7b8f6" }],
            },
            "status": { "hostIP": "192.0.2.1", "podIPs": [{ "ip": "10.1.2.3" }] },
        });
        aliases.learn(&pod);
        aliases.place(&pod);
        let line = "web-5d9c7b8f6-x2b4c of web-5d9c7b8f6 at 10.1.2.3:80, 10-1-2-3, 10.1.2.30 on 192.0.2.1";
        let expected = "web-HASH-SUFFIX of web-HASH at web-HASH-SUFFIX:80, web-HASH-SUFFIX, 10.1.2.30 on HOST_IP";
        assert_eq!(aliases.normal(line), expected);
    }

    #[test]
    fn a_job_of_a_schedule_goes_without_its_time() {
        let mut aliases = Aliases::default();
        aliases.learn(&json!({ "metadata": {
            "name": "tick-29411234-abcde", "ownerReferences": [{ "kind": "Job" }],
            "labels": { "batch.kubernetes.io/job-name": "tick-29411234" },
        } }));
        assert_eq!(
            aliases.normal("tick-29411234-abcde of Job/tick-29411234"),
            "tick-MINUTES-SUFFIX of Job/tick-MINUTES"
        );
    }
}
