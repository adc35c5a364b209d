//! Loads and attaches the BPF programs, one at a time.

use std::cell::OnceCell;
use std::collections::HashMap as Table;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;

use aya::maps::{HashMap, MapData, PerCpuArray, RingBuf};
use aya::programs::links::FdLink;
use aya::programs::{KProbe, Lsm, Program as Loading, ProgramError, RawTracePoint};
use aya::{Btf, Ebpf, EbpfLoader, Pod};
use limpet_events::{SignalRecord, guarded};

use crate::offsets::Offsets;
use crate::table::{Attachment, PROGRAMS, Program};
use crate::{Events, GuardRules, InodeId, LoadError, ProgramState, Purpose, Request};

/// The programs, built by `cargo xtask build-ebpf`.
static OBJECT: &[u8] = aya::include_bytes_aligned!("../../limpet.bpf.o");

/// Bytes of the ring where changes of files are reported, too, which come in bursts: it holds some 9,000. The object's own size
/// is for exits alone. Resident as long as the programs are loaded.
const EVENT_BUFFER_SIZE: u32 = 1 << 20;
/// Where a kernel has probes, by which changes are watched.
const PROBES: &str = "/sys/bus/event_source/devices/kprobe";

/// Programs that are attached; dropping it detaches them.
pub struct Loaded {
    /// The object's programs, 200 KiB, where one holds its link or may be attached again.
    ebpf: Option<Ebpf>,
    programs: Vec<ProgramState>,
    pub(crate) links: Table<&'static str, FdLink>,
    maps: Maps,
    pub(crate) guard: Option<GuardRules>,
}

/// The maps that are written and read while the programs run.
struct Maps {
    watched: HashMap<MapData, [u64; 2], u32>,
    processes: HashMap<MapData, u32, [u8; size_of::<SignalRecord>()]>,
    on_trial: HashMap<MapData, u32, u32>,
    guarded: HashMap<MapData, [u64; 2], u32>,
    lost: PerCpuArray<MapData, u64>,
    events: Option<RingBuf<MapData>>,
}

/// The running kernel's BTF: tens of megabytes while it is loaded, so drop it soon.
#[derive(Debug)]
pub struct Kernel {
    offsets: Offsets,
    types: OnceCell<Result<Btf, String>>,
}

impl Kernel {
    /// Reads it; on a kernel without BTF fewer programs work.
    pub fn read() -> Self {
        let offsets = Offsets::of_kernel()
            .inspect_err(|error| tracing::debug!(%error, "kernel BTF is not available"))
            .unwrap_or_default();
        Self { offsets, types: OnceCell::new() }
    }

    /// The offsets as text, for another process: see [`Self::from_text`].
    pub fn to_text(&self) -> String {
        self.offsets.to_text()
    }

    /// Parses the text of another process. Reading BTF takes memory that an allocator may never return to the kernel.
    pub fn from_text(text: &str) -> Self {
        Self { offsets: Offsets::from_text(text), types: OnceCell::new() }
    }

    /// Loads and attaches what `request` requires. [`Loaded::programs`] lists those that do not work here.
    ///
    /// # Errors
    /// Nothing can be loaded here at all.
    pub fn load(&self, request: &Request) -> Result<Loaded, LoadError> {
        let mut ebpf = create(&self.offsets, request)?;
        if let Some(rules) = &request.guard {
            write_rules(&mut ebpf, rules)?;
        }
        let wanted = |purpose| match purpose {
            Purpose::Lifecycle => request.lifecycle,
            Purpose::Watch => request.watch,
            Purpose::Guard => request.guard.is_some(),
        };
        let (mut programs, mut links) = (Vec::new(), Table::new());
        let has_hook = |program: &Program| program.only_with.is_none_or(|global| self.offsets.has(global));
        for program in PROGRAMS.iter().filter(|program| wanted(program.purpose) && has_hook(program)) {
            let attached = self.attach(&mut ebpf, program);
            let (name, purpose, hook) = (program.name, program.purpose, program.attachment.hook());
            let failure = attached.map(|link| links.extend(link.map(|link| (name, link)))).err();
            programs.push(ProgramState { name, purpose, hook, failure });
        }
        let maps = Maps {
            watched: take(&mut ebpf, "WATCHED")?,
            processes: take(&mut ebpf, "PROCESSES")?,
            on_trial: take(&mut ebpf, "ON_TRIAL")?,
            guarded: take(&mut ebpf, "GUARDED")?,
            lost: take(&mut ebpf, "LOST")?,
            events: Some(take(&mut ebpf, "EVENTS")?),
        };
        let holds_link = |state: &ProgramState| state.purpose == Purpose::Watch && state.failure.is_none();
        let is_needed = request.guard.is_some() || programs.iter().any(holds_link);
        let ebpf = is_needed.then_some(ebpf);
        Ok(Loaded { ebpf, programs, links, maps, guard: request.guard.clone() })
    }

    /// Loads and attaches one program. Its link, or none where the program holds it itself.
    fn attach(&self, ebpf: &mut Ebpf, program: &Program) -> Result<Option<FdLink>, String> {
        if let Some(missing) = self.offsets.missing(program.needs) {
            return Err(format!("this kernel's BTF has no {missing}"));
        }
        let loading = ebpf.program_mut(program.name).ok_or("not in the object")?;
        let attached = match (program.attachment, loading) {
            (Attachment::Tracepoint(event), Loading::RawTracePoint(point)) => attach_tracepoint(point, event).map(Some),
            (Attachment::Probe(function), Loading::KProbe(probe)) => attach_probe(probe, function).map(|()| None),
            (Attachment::Lsm(hook), Loading::Lsm(lsm)) => attach_lsm(lsm, hook, self.types()?).map(Some),
            (_, other) => return Err(format!("is a program of type {:?} in the object", other.prog_type())),
        };
        attached.map_err(|error| chain(&error))
    }

    /// Parsed only when a program is attached by type.
    fn types(&self) -> Result<&Btf, String> {
        let types = self.types.get_or_init(|| Btf::from_sys_fs().map_err(|error| chain(&error)));
        types.as_ref().map_err(Clone::clone)
    }
}

/// Creates the object's maps; no program is loaded yet.
fn create(offsets: &Offsets, request: &Request) -> Result<Ebpf, LoadError> {
    let mut loader = EbpfLoader::new();
    if request.guard.is_some() || request.watch && Path::new(PROBES).exists() {
        loader.map_max_entries("EVENTS", EVENT_BUFFER_SIZE);
    }
    // The object has no CO-RE relocations: the loader need not parse the kernel's BTF.
    loader.btf(None);
    for (global, offset) in offsets.iter() {
        loader.override_global(global, offset, true);
    }
    let mode = request.guard.as_ref().map_or(limpet_events::UNKNOWN, |rules| rules.mode.code());
    loader.override_global("GUARD_MODE", &mode, true);
    loader.load(OBJECT).map_err(|error| LoadError::Maps(chain(&error)))
}

fn write_rules(ebpf: &mut Ebpf, rules: &GuardRules) -> Result<(), LoadError> {
    let mut guarded: Table<[u64; 2], u32> = Table::new();
    for entry in &rules.guarded {
        let key = entry.id.key();
        *guarded.entry(key).or_default() |= entry.what;
        // Those above hold any file of the node, and are only kept in place.
        if !entry.is_place() {
            *guarded.entry([guarded::ANY_INODE, key[1]]).or_default() |= guarded::DETACHED << guarded::FROM_PODS;
        }
    }
    fill(ebpf, "GUARDED", guarded)?;
    fill(ebpf, "POD_CGROUPS", rules.pod_cgroups.iter().map(|id| (*id, 1)))?;
    fill(ebpf, "ALLOWED_CGROUPS", rules.allowed_cgroups.iter().map(|id| (*id, 1)))?;
    fill(ebpf, "ALLOWED_EXECUTABLES", rules.allowed_executables.iter().map(|id| (id.key(), 1)))
}

fn fill<K: Pod>(
    ebpf: &mut Ebpf,
    name: &'static str,
    entries: impl IntoIterator<Item = (K, u32)>,
) -> Result<(), LoadError> {
    let refused = |reason: String| LoadError::Map { map: name, reason };
    let map = ebpf.map_mut(name).ok_or_else(|| refused("not in the object".to_owned()))?;
    let mut map: HashMap<_, K, u32> = HashMap::try_from(map).map_err(|error| refused(chain(&error)))?;
    for (key, value) in entries {
        map.insert(key, value, 0).map_err(|error| refused(chain(&error)))?;
    }
    Ok(())
}

fn take<M: TryFrom<aya::maps::Map, Error = aya::maps::MapError>>(
    ebpf: &mut Ebpf,
    name: &'static str,
) -> Result<M, LoadError> {
    let refused = |reason: String| LoadError::Map { map: name, reason };
    let map = ebpf.take_map(name).ok_or_else(|| refused("not in the object".to_owned()))?;
    M::try_from(map).map_err(|error| refused(chain(&error)))
}

fn attach_tracepoint(program: &mut RawTracePoint, event: &str) -> Result<FdLink, ProgramError> {
    program.load()?;
    let id = program.attach(event)?;
    program.take_link(id).map(FdLink::from)
}

/// The link stays with the program: kernels before 5.15 have none that is a descriptor of its own.
fn attach_probe(program: &mut KProbe, function: &str) -> Result<(), ProgramError> {
    program.load()?;
    program.attach(function, 0).map(drop)
}

fn attach_lsm(program: &mut Lsm, hook: &str, btf: &Btf) -> Result<FdLink, ProgramError> {
    program.load(hook, btf)?;
    let id = program.attach()?;
    program.take_link(id).map(FdLink::from)
}

/// An error with its causes, on one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let further = error.to_string();
        if !text.contains(&further) {
            text = format!("{text}: {further}");
        }
        cause = error.source();
    }
    // A verifier's log ends with the error, followed by statistics.
    let (text, log) = text.split_once(" Verifier output:").unwrap_or((&text, ""));
    let last = log.lines().rfind(|line| !line.trim().is_empty() && !is_statistics(line));
    match last {
        Some(line) => format!("{text}: {}", line.trim()),
        None => text.to_owned(),
    }
}

/// Whether a line is one of the verifier's closing statistics.
fn is_statistics(line: &str) -> bool {
    ["processed ", "stack depth ", "verification time "].iter().any(|prefix| line.starts_with(prefix))
}

impl std::fmt::Debug for Loaded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loaded").field("programs", &self.programs).finish_non_exhaustive()
    }
}

impl Loaded {
    /// The state of each requested program.
    pub fn programs(&self) -> &[ProgramState] {
        &self.programs
    }

    /// The events; `None` when they were taken before.
    ///
    /// # Errors
    /// Called outside a tokio runtime, or epoll refuses the map.
    pub fn events(&mut self) -> std::io::Result<Option<Events>> {
        self.maps.events.take().map(Events::new).transpose()
    }

    /// Reports changes in `directory` from now on. It must be watched by inotify or fanotify, too: the kernel reports what
    /// is written there only then.
    ///
    /// # Errors
    /// The map is full (64 directories).
    pub fn watch(&mut self, directory: InodeId) -> Result<(), LoadError> {
        insert("WATCHED", &mut self.maps.watched, directory.key(), 1)
    }

    /// Stops reporting them; a directory that was not watched is not an error.
    pub fn unwatch(&mut self, directory: InodeId) {
        self.maps.watched.remove(&directory.key()).ok();
    }

    /// Reports the last fatal signal to `process` when it exits.
    ///
    /// # Errors
    /// The map is full (2,048 processes).
    pub fn follow_process(&mut self, process: u32) -> Result<(), LoadError> {
        insert("PROCESSES", &mut self.maps.processes, process, [0; size_of::<SignalRecord>()])
    }

    /// Stops reporting them.
    pub fn forget_process(&mut self, process: u32) {
        self.maps.processes.remove(&process).ok();
    }

    /// How many events were dropped because the ring buffer was full.
    pub fn lost(&self) -> u64 {
        self.maps.lost.get(&0, 0).map_or(0, |values| values.iter().sum())
    }

    /// How often the watch program was skipped because another program ran on its CPU: counted since Linux 6.7.
    pub fn skipped(&self) -> u64 {
        let watching = PROGRAMS.iter().filter(|program| program.purpose == Purpose::Watch);
        let loaded = watching.filter_map(|program| self.ebpf.as_ref()?.program(program.name)?.fd().ok());
        loaded.map(|program| skipped(program.as_fd())).sum()
    }

    /// Refuses changes by `thread` whatever the mode, or stops doing so.
    pub(crate) fn set_on_trial(&mut self, thread: u32, on: bool) -> Result<(), LoadError> {
        if on {
            return insert("ON_TRIAL", &mut self.maps.on_trial, thread, 1);
        }
        self.maps.on_trial.remove(&thread).ok();
        Ok(())
    }

    /// Refuses pods every change of `directory`, which holds the guard's own pins.
    pub(crate) fn guard_pins(&mut self, directory: InodeId) -> Result<(), LoadError> {
        let what = (guarded::CHILDREN | guarded::ITSELF | guarded::PLACE) << guarded::FROM_PODS;
        insert("GUARDED", &mut self.maps.guarded, directory.key(), what)
    }

    /// Detaches one program, so that tests can prove that it is needed.
    pub fn detach(&mut self, program: &str) -> bool {
        self.links.remove(program).is_some()
    }

    /// Loads and attaches a detached program again: kernels before 5.14 attach a loaded program only once.
    ///
    /// # Errors
    /// The program does not exist, or the kernel refuses it.
    pub fn attach_again(&mut self, kernel: &Kernel, name: &str) -> Result<(), String> {
        let program = PROGRAMS.iter().find(|program| program.name == name).ok_or("no such program")?;
        let ebpf = self.ebpf.as_mut().ok_or("the programs are not kept without a guard")?;
        let loaded = ebpf.program_mut(program.name).ok_or("not in the object")?;
        match loaded {
            Loading::Lsm(lsm) => lsm.unload().map_err(|error| chain(&error))?,
            other => return Err(format!("is a program of type {:?}", other.prog_type())),
        }
        let link = kernel.attach(ebpf, program)?;
        self.links.extend(link.map(|link| (program.name, link)));
        Ok(())
    }
}

/// How often the kernel did not run a program because it was running already (proc(5), `fdinfo` of a BPF program).
fn skipped(program: BorrowedFd<'_>) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", program.as_raw_fd())).unwrap_or_default();
    let count = text.lines().find_map(|line| line.strip_prefix("recursion_misses:"));
    count.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

fn insert<K: Pod, V: Pod>(
    name: &'static str,
    map: &mut HashMap<MapData, K, V>,
    key: K,
    value: V,
) -> Result<(), LoadError> {
    map.insert(key, value, 0).map_err(|error| LoadError::Map { map: name, reason: chain(&error) })
}
