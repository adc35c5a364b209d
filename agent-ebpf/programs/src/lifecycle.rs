//! The OOM killer's victims, and who sends a fatal signal.
//!
//! Raw tracepoints: they need no tracefs, and give the kernel's own arguments.

use aya_ebpf::macros::raw_tracepoint;
use aya_ebpf::programs::RawTracePointContext;
use limpet_events::{ActorRecord, EventKind, SignalRecord};

use crate::kernel::{self, Pointer};
use crate::{actor, maps};

/// `struct kernel_siginfo *` that is none: from a process, and from the kernel itself.
const NO_INFO: u64 = 0;
const PRIVILEGED: u64 = 1;
/// `si_code` of the kernel's own signals.
const SI_KERNEL: i32 = 0x80;

/// Signals that end a process unless it says otherwise: INT, QUIT, ILL, TRAP, ABRT, BUS, FPE, KILL, SEGV, PIPE, TERM, XCPU, SYS.
const FATAL: u32 = 1 << 2
    | 1 << 3
    | 1 << 4
    | 1 << 5
    | 1 << 6
    | 1 << 7
    | 1 << 8
    | 1 << 9
    | 1 << 11
    | 1 << 13
    | 1 << 15
    | 1 << 24
    | 1 << 31;

/// A thread exits: the OOM killer's victim, or a followed process whose last signal is now of interest.
#[raw_tracepoint]
fn process_exit(_: RawTracePointContext) -> i32 {
    if let Some(last) = maps::last_signal(actor::thread()) {
        // SAFETY: a value of the map.
        let last = unsafe { *last };
        if last.signal != 0
            && let Some(mut entry) = maps::reserve::<SignalRecord>()
        {
            entry.write(last);
            entry.submit(0);
        }
    }
    if maps::take_victim(actor::thread())
        && let Some(mut entry) = maps::reserve::<ActorRecord>()
    {
        entry.write(actor::record(EventKind::OomVictim));
        entry.submit(0);
    }
    0
}

/// `mark_victim(pid)` before 6.9, `mark_victim(task, uid)` since: no pid is as large as an address of the kernel.
#[raw_tracepoint]
fn oom_victim(ctx: RawTracePointContext) -> i32 {
    let victim: u64 = ctx.arg(0);
    let thread = if victim > u32::MAX as u64 { kernel::thread_of(victim as Pointer) } else { Some(victim as u32) };
    if let Some(thread) = thread {
        maps::add_victim(thread);
    }
    0
}

/// `signal_generate(sig, info, task, group, result)`. The signal is kept until the process exits: however many a process
/// is sent, the agent reads of one.
#[raw_tracepoint]
fn signal_sent(ctx: RawTracePointContext) -> i32 {
    let signal: u32 = ctx.arg(0);
    if signal > 31 || FATAL & (1 << signal) == 0 {
        return 0;
    }
    let Some(target) = kernel::process_of(ctx.arg(2)) else { return 0 };
    let Some(last) = maps::last_signal(target) else { return 0 };
    let info: u64 = ctx.arg(1);
    let code = match info {
        NO_INFO => 0,
        PRIVILEGED => SI_KERNEL,
        info => kernel::signal_code(info as Pointer).unwrap_or(0),
    };
    let record = SignalRecord { sender: actor::record(EventKind::Signal), target, signal, code, reserved: 0 };
    // SAFETY: a value of the map.
    unsafe { last.write(record) };
    0
}
