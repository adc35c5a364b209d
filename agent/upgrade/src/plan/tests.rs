use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::*;

const AT: Time = Time(Timestamp::UNIX_EPOCH);

/// The disk's content: the journal, and the version of each executable.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Disk {
    step: Option<Step>,
    present: u32,
    staged: Option<u32>,
    previous: Option<u32>,
}

impl Disk {
    fn at(step: Option<Step>) -> Self {
        Self { step, present: 1, staged: Some(2), previous: None }
    }

    /// Every state that a power cut can leave while a starter follows `plan::start`; each write is atomic. The last
    /// one is the state when it runs an executable, whose version is also returned.
    fn start(mut self) -> (Vec<Self>, u32) {
        let mut states = vec![self.clone()];
        let journal = self.step.clone().map(Journal::fixture);
        let runs = match start(journal.as_ref(), self.staged.is_some()) {
            Start::Present => self.present,
            Start::Trial { attempt } => {
                self.step = Some(Step::Trial { attempts: attempt });
                states.push(self.clone());
                self.staged.unwrap_or(self.present)
            }
            Start::Install => {
                if let Some(staged) = self.staged {
                    self.previous = Some(self.present);
                    states.push(self.clone());
                    (self.present, self.staged) = (staged, None);
                    states.push(self.clone());
                }
                self.step = Some(Step::Installed { at: AT });
                states.push(self.clone());
                self.present
            }
            Start::Undo { reason } => {
                self.step = Some(Step::Undone { at: AT, reason });
                states.push(self.clone());
                self.staged = None;
                states.push(self.clone());
                self.present
            }
        };
        (states, runs)
    }
}

#[test]
fn a_power_cut_at_any_step_leaves_one_of_the_two_versions() {
    let undone = Step::Undone { at: AT, reason: String::new() };
    let mut first = vec![Disk::at(None)];
    first.extend((0..=MAX_ATTEMPTS).map(|attempts| Disk::at(Some(Step::Trial { attempts }))));
    first.extend([Step::Accepted, Step::Installed { at: AT }, undone].map(|step| Disk::at(Some(step))));
    first.push(Disk { staged: None, ..Disk::at(Some(Step::Trial { attempts: 1 })) });
    let (mut left, mut seen) = (first, Vec::new());
    while let Some(disk) = left.pop() {
        if seen.contains(&disk) {
            continue;
        }
        let (states, runs) = disk.clone().start();
        assert!([1, 2].contains(&runs) && [1, 2].contains(&disk.present), "{disk:?} runs {runs}");
        if disk.step == Some(Step::Accepted) {
            assert_eq!(runs, 2, "{disk:?}");
        }
        seen.push(disk);
        left.extend(states);
    }
    assert!(seen.len() > 12, "{}", seen.len());
}

#[test]
fn a_version_that_always_ends_is_undone_after_its_attempts() {
    let mut disk = Disk::at(Some(Step::Trial { attempts: 0 }));
    let mut ran = Vec::new();
    for _ in 0..=MAX_ATTEMPTS {
        let (states, runs) = disk.start();
        disk = states.last().cloned().unwrap_or(Disk::at(None));
        ran.push(runs);
    }
    assert_eq!(ran, [2, 2, 2, 1]);
    assert!(
        matches!(&disk.step, Some(Step::Undone { reason, .. }) if reason.starts_with("it ended 3 times")),
        "{disk:?}"
    );
    assert_eq!((disk.present, disk.staged), (1, None));
}

#[test]
fn everything_has_to_be_as_it_was_before() {
    let set = |all: &[&str]| all.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
    let seen = |containerd, pods: &[&str], sources: &[&str]| Observation {
        containerd,
        pods: pods.iter().map(|uid| ((*uid).to_owned(), String::new())).collect(),
        sources: set(sources),
    };
    let baseline = seen(true, &["a", "b"], &["file"]).baseline();
    for (observed, expected) in [
        (None, Some("the agent does not answer")),
        (Some(seen(false, &["a", "b"], &["file"])), Some("containerd is not connected")),
        (Some(seen(true, &["b", "c"], &["file"])), Some("1 of 2 pods were not taken over")),
        (Some(seen(true, &["a", "b"], &["http"])), Some("the source file cannot be read")),
        (Some(seen(true, &["a", "b", "c"], &["file", "http"])), None),
    ] {
        assert_eq!(fault(&baseline, observed.as_ref()).as_deref(), expected, "{observed:?}");
    }
    // What was missing before may still be missing.
    assert_eq!(fault(&Baseline::default(), Some(&Observation::default())), None);
}

#[test]
fn a_version_is_accepted_after_a_time_without_fault_and_undone_at_the_deadline() {
    let (second, deadline) = (Duration::from_secs, Duration::from_secs(10));
    let run = |seen: &[(u64, bool)]| {
        let mut attempt = Attempt::default();
        let judge = |(at, healthy): &(u64, bool)| {
            let fault = (!healthy).then(|| "containerd is not connected".to_owned());
            attempt.judge(fault, second(*at), deadline)
        };
        seen.iter().map(judge).collect::<Vec<_>>()
    };
    use Verdict::{Accept, Wait};
    assert_eq!(run(&[(0, false), (1, true), (5, true), (6, true)]), [Wait, Wait, Wait, Accept]);
    assert_eq!(run(&[(1, true), (3, false), (4, true), (8, true), (9, true)]), [Wait, Wait, Wait, Wait, Accept]);
    // Healthy at the deadline: it gets the rest of the settling time.
    assert_eq!(run(&[(8, true), (12, true), (13, true)]), [Wait, Wait, Accept]);
    let undo = Verdict::Undo { reason: "containerd is not connected after 10 s".to_owned() };
    assert_eq!(run(&[(9, false), (10, false)]), [Wait, undo.clone()]);
    assert_eq!(run(&[(8, true), (12, false)]), [Wait, undo]);
}
