//! Gives sets to a stage, and looks until they have come to rest.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::aliases::Aliases;
use super::files::Set;
use super::lookup::Question;
use super::rollout::Rollouts;
use super::stage::{Snapshot, Stage, change};
use super::view;
use crate::process::Daemon;
use crate::view::Views;
use crate::wait;

/// The time between two looks, which cost the node something, too.
const INTERVAL: Duration = Duration::from_millis(400);

/// Some sets on a stage.
pub struct Run<'a> {
    sets: &'a [Set],
    stage: &'a dyn Stage,
    /// The version of each set that was applied.
    versions: Vec<usize>,
    aliases: Vec<Aliases>,
    /// The events that were seen of each set: a node forgets them after a while.
    events: BTreeMap<String, Value>,
    rollouts: Rollouts,
    changes: BufReader<File>,
    /// The beginning of a line that was not there as a whole.
    unfinished: String,
    _watch: Daemon,
}

impl<'a> Run<'a> {
    /// Applies the first version of every set. Changes of pods are written to `file`.
    pub fn begin(sets: &'a [Set], stage: &'a dyn Stage, file: &Path) -> Result<Self> {
        let watch = stage.watch(file)?;
        let mut aliases = Aliases::default();
        stage.aliases().iter().for_each(|(text, name)| aliases.add(text, name));
        let run = Self {
            sets,
            stage,
            versions: vec![0; sets.len()],
            aliases: vec![aliases; sets.len()],
            events: BTreeMap::new(),
            rollouts: Rollouts::default(),
            changes: BufReader::new(File::open(file).with_context(|| format!("{}", file.display()))?),
            unfinished: String::new(),
            _watch: watch,
        };
        sets.iter().try_for_each(|set| stage.apply(set, 0))?;
        Ok(run)
    }

    /// Applies the next version of the sets that have one, and returns how many have.
    pub fn proceed(&mut self) -> Result<usize> {
        self.read_changes()?;
        let mut count = 0;
        for (set, version) in self.sets.iter().zip(&mut self.versions) {
            if *version + 1 < set.versions.len() {
                *version += 1;
                count += 1;
                self.rollouts.begin(&set.name);
                self.stage.apply(set, *version)?;
            }
        }
        Ok(count)
    }

    /// Looks until `is_done` says so of all views.
    pub fn wait(&mut self, limit: Duration, mut is_done: impl FnMut(&Views) -> bool) -> Result<Views> {
        let mut seen = Views::new();
        let mut failed = None;
        let done = wait::until_every(INTERVAL, limit, "the sets to come to rest", || match self.look() {
            Ok(views) => {
                seen = views;
                is_done(&seen).then_some(())
            }
            // A name server may not answer yet.
            Err(error) => {
                failed = Some(error);
                None
            }
        });
        if wait::interrupted() {
            done?;
        }
        match failed.filter(|_| seen.is_empty()) {
            Some(error) => Err(error),
            None => Ok(seen),
        }
    }

    /// Looks until nothing has changed for that time.
    pub fn wait_rest(&mut self, time: Duration, limit: Duration) -> Result<Views> {
        let mut last: Option<(Views, Instant)> = None;
        self.wait(limit, |views| match &last {
            Some((before, since)) if before == views => since.elapsed() > time,
            _ => {
                last = Some((views.clone(), Instant::now()));
                false
            }
        })
    }

    /// The views of all sets as they are now.
    pub fn look(&mut self) -> Result<Views> {
        let mut snapshot = Snapshot::take(self.stage)?;
        self.keep_events(&mut snapshot);
        self.read_changes()?;
        let questions: Vec<Vec<Question>> =
            self.sets.iter().zip(&self.versions).map(|(set, version)| view::questions(set, *version)).collect();
        let mut answers = self.stage.ask(&questions.concat())?.into_iter();
        let mut views = Views::new();
        for (at, set) in self.sets.iter().enumerate() {
            let aliases = self.aliases_of(at, &snapshot);
            let mut of_set = view::view(set, self.versions[at], &snapshot, self.stage, &aliases);
            let said: Vec<_> = answers.by_ref().take(questions[at].len()).collect();
            of_set.insert("names".to_owned(), view::names(&questions[at], &said, &aliases));
            let passed = self.passed(at).iter().map(|line| aliases.normal(line)).collect();
            of_set.insert("rollout".to_owned(), passed);
            views.insert(set.view_name(self.versions[at]), of_set);
        }
        Ok(views)
    }

    /// The names of everything in that set. Those of pods and Services are kept, because files and variables have them later.
    fn aliases_of(&mut self, at: usize, snapshot: &Snapshot) -> Aliases {
        let namespace = &self.sets[at].name;
        let known = &mut self.aliases[at];
        snapshot.pods_in(namespace).for_each(|pod| known.learn(pod));
        for service in snapshot.services_in(namespace) {
            for address in service.addresses.iter().filter(|address| *address != "None") {
                known.set(address, &format!("ADDRESS-{}", service.name));
            }
        }
        let mut aliases = known.clone();
        snapshot.pods_in(namespace).for_each(|pod| aliases.place(pod));
        aliases
    }

    fn passed(&self, at: usize) -> Vec<String> {
        let (set, version) = (&self.sets[at], self.versions[at]);
        let before = version.checked_sub(1).map_or(&[][..], |before| &set.versions[before]);
        self.rollouts.lines(&set.name, before, &set.versions[version])
    }

    fn keep_events(&mut self, snapshot: &mut Snapshot) {
        for event in std::mem::take(&mut snapshot.events) {
            let object = &event["involvedObject"];
            let parts = [&object["namespace"], &object["kind"], &object["name"], &event["reason"]];
            self.events.insert(parts.map(ToString::to_string).join(" "), event);
        }
        snapshot.events = self.events.values().cloned().collect();
    }

    fn read_changes(&mut self) -> Result<()> {
        while self.changes.read_line(&mut self.unfinished)? > 0 {
            if !self.unfinished.ends_with('\n') {
                break;
            }
            if let Some((pod, is_gone)) = change(&std::mem::take(&mut self.unfinished))? {
                self.rollouts.change(&pod, is_gone);
            }
        }
        Ok(())
    }
}

/// The sets of these views, without their versions.
pub fn names(views: &Views) -> BTreeSet<&str> {
    views.keys().map(|name| name.split(',').next().unwrap_or_default()).collect()
}
