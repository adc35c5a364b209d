//! Records which functions of a running program are executed, by a breakpoint at each that is removed when it is hit,
//! so that the program soon runs at its own speed. For x86-64.

use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use nix::sys::ptrace::{self, Event, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// `int3`.
const BREAKPOINT: u8 = 0xcc;
/// Ends a period of the recording; nothing else sends it to the program.
const END_SIGNAL: Signal = Signal::SIGURG;

/// Returns which of the `functions`, by the addresses at which they begin, the process executes for the first time in
/// each of the consecutive periods.
pub(super) fn executed(pid: u32, functions: &[u64], periods: &[Duration]) -> Result<Vec<Vec<u64>>> {
    let pid = Pid::from_raw(pid.try_into().context("a process id")?);
    let mut tracer = Tracer::attach(pid, functions)?;
    let recorded: Result<_> = periods.iter().map(|period| tracer.record(*period)).collect();
    let released = tracer.release();
    // Why nothing could be recorded matters more, because nothing can be released in a program that has ended.
    let recorded = recorded?;
    released.map(|()| recorded)
}

struct Tracer {
    pid: Pid,
    /// The first byte of each function, by its address.
    begins: Vec<(u64, u8)>,
    hit: Vec<u64>,
}

impl Tracer {
    /// Stops all threads, places the breakpoints, and lets the threads continue.
    fn attach(pid: Pid, functions: &[u64]) -> Result<Self> {
        let options = Options::PTRACE_O_TRACECLONE
            | Options::PTRACE_O_TRACEFORK
            | Options::PTRACE_O_TRACEVFORK
            | Options::PTRACE_O_TRACEEXEC;
        let threads = threads(pid)?;
        for thread in &threads {
            ptrace::seize(*thread, options)?;
            ptrace::interrupt(*thread)?;
            waitpid(*thread, Some(WaitPidFlag::__WALL))?;
        }
        let memory = memory(pid)?;
        let (mut begins, mut hit) = (Vec::new(), Vec::new());
        for thread in &threads {
            hit.extend(on_stack(*thread, &memory, functions)?);
        }
        for address in functions {
            let mut first = [0];
            memory.read_exact_at(&mut first, *address)?;
            memory.write_all_at(&[BREAKPOINT], *address)?;
            begins.push((*address, first[0]));
        }
        for thread in threads {
            ptrace::cont(thread, None)?;
        }
        Ok(Self { pid, begins, hit })
    }

    /// Follows the threads, and the processes that they start until those execute a program, until the time has passed.
    /// Returns what is hit for the first time.
    fn record(&mut self, period: Duration) -> Result<Vec<u64>> {
        let pid = self.pid;
        std::thread::spawn(move || {
            std::thread::sleep(period);
            kill(pid, END_SIGNAL)
        });
        loop {
            match waitpid(None, Some(WaitPidFlag::__WALL))? {
                WaitStatus::Stopped(thread, Signal::SIGTRAP) if self.is_hit(thread)? => ptrace::cont(thread, None)?,
                WaitStatus::Stopped(thread, END_SIGNAL) => {
                    ptrace::cont(thread, None)?;
                    return Ok(std::mem::take(&mut self.hit));
                }
                WaitStatus::Stopped(thread, Signal::SIGSTOP) => ptrace::cont(thread, None)?,
                WaitStatus::Stopped(thread, signal) => ptrace::cont(thread, signal)?,
                WaitStatus::PtraceEvent(process, _, event) if event == Event::PTRACE_EVENT_EXEC as i32 => {
                    ptrace::detach(process, None)?;
                }
                WaitStatus::PtraceEvent(thread, ..) => ptrace::cont(thread, None)?,
                WaitStatus::Exited(pid, _) | WaitStatus::Signaled(pid, ..) if pid == self.pid => {
                    bail!("the program has ended")
                }
                _ => {}
            }
        }
    }

    /// Whether the thread is at a breakpoint; it then continues with the original instruction.
    fn is_hit(&mut self, thread: Pid) -> Result<bool> {
        let mut registers = ptrace::getregs(thread)?;
        let address = registers.rip - 1;
        let Ok(index) = self.begins.binary_search_by_key(&address, |(begin, _)| *begin) else { return Ok(false) };
        memory(thread)?.write_all_at(&[self.begins[index].1], address)?;
        self.hit.push(address);
        registers.rip = address;
        ptrace::setregs(thread, registers)?;
        Ok(true)
    }

    /// Removes the breakpoints that were not hit, and lets the process go.
    fn release(&mut self) -> Result<()> {
        let threads = threads(self.pid)?;
        let mut stopped = Vec::new();
        for thread in threads {
            ptrace::interrupt(thread)?;
            stopped.push((thread, waitpid(thread, Some(WaitPidFlag::__WALL))?));
        }
        let memory = memory(self.pid)?;
        for (address, first) in &self.begins {
            memory.write_all_at(&[*first], *address)?;
        }
        for (thread, status) in stopped {
            if matches!(status, WaitStatus::Stopped(_, Signal::SIGTRAP)) {
                self.is_hit(thread)?;
            }
            ptrace::detach(thread, None)?;
        }
        Ok(())
    }
}

/// The functions in which a stopped thread is, and to which it will return, because loops that wait are never entered
/// again. A word that a function has left on the stack may count, too.
fn on_stack(thread: Pid, memory: &File, functions: &[u64]) -> Result<Vec<u64>> {
    let registers = ptrace::getregs(thread)?;
    let maps = format!("/proc/{thread}/maps");
    let text = std::fs::read_to_string(&maps).context(maps)?;
    let end =
        text.lines().filter_map(range).find(|range| range.contains(&registers.rsp)).context("a thread's stack")?.end;
    let mut stack = vec![0; (end - registers.rsp) as usize];
    memory.read_exact_at(&mut stack, registers.rsp).context("a thread's stack")?;
    let words = stack.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word));
    let last = functions.last().copied().unwrap_or_default();
    let returns = words.chain([registers.rip]).filter(|address| *address <= last);
    Ok(returns
        .filter_map(|address| functions[..functions.partition_point(|begin| *begin < address)].last().copied())
        .collect())
}

/// The addresses of a line of a process's maps.
fn range(line: &str) -> Option<Range<u64>> {
    let (begin, end) = line.split_once(' ')?.0.split_once('-')?;
    Some(u64::from_str_radix(begin, 16).ok()?..u64::from_str_radix(end, 16).ok()?)
}

fn threads(pid: Pid) -> Result<Vec<Pid>> {
    let directory = format!("/proc/{pid}/task");
    let mut threads = Vec::new();
    for entry in std::fs::read_dir(&directory).context(directory)? {
        let name = entry?.file_name();
        threads.push(Pid::from_raw(name.to_string_lossy().parse()?));
    }
    Ok(threads)
}

fn memory(process: Pid) -> Result<File> {
    let path = format!("/proc/{process}/mem");
    OpenOptions::new().read(true).write(true).open(&path).context(path)
}
