//! Selects a container's seccomp profile, and defines `RuntimeDefault`.
//!
//! The default is containerd's policy: calls of ordinary programs are allowed, calls that affect the kernel or other
//! processes only with their capability, and all others fail with `EPERM`.

use oci_spec::runtime::{
    Arch, Capabilities, Capability, LinuxSeccomp, LinuxSeccompAction, LinuxSeccompArg, LinuxSeccompArgBuilder,
    LinuxSeccompOperator, LinuxSyscall,
};

use super::{SpecError, SpecInput};

/// A profile as the Pod configures it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Profile<'a> {
    Unconfined,
    RuntimeDefault,
    /// A file below the node's seccomp directory.
    Localhost(&'a str),
}

/// The container's profile, else its pod's, else the node's default. Privileged containers have none.
pub(super) fn profile_of<'a>(input: &SpecInput<'a>) -> Profile<'a> {
    if super::is_privileged(input.container) {
        return Profile::Unconfined;
    }
    let container = input.container.security_context.as_ref().and_then(|context| context.seccomp_profile.as_ref());
    let pod = input.pod.spec().security_context.as_ref().and_then(|context| context.seccomp_profile.as_ref());
    match container.or(pod) {
        Some(profile) => match profile.type_.as_str() {
            "RuntimeDefault" => Profile::RuntimeDefault,
            "Localhost" => Profile::Localhost(profile.localhost_profile.as_deref().unwrap_or_default()),
            _ => Profile::Unconfined,
        },
        None if input.node.seccomp_default => Profile::RuntimeDefault,
        None => Profile::Unconfined,
    }
}

/// System calls that are always allowed, by subject. `*32`, `*64` and `*_time64` are the forms for other word sizes;
/// the runtime skips names that an architecture lacks.
const ALLOWED: &[&str] = &[
    // files and directories
    "access chdir chmod chown chown32 close close_range copy_file_range creat dup dup2 dup3 faccessat faccessat2 \
     fadvise64 fadvise64_64 fallocate fchdir fchmod fchmodat fchmodat2 fchown fchown32 fchownat fcntl fcntl64 \
     fdatasync flock fstat fstat64 fstatat64 fstatfs fstatfs64 fsync ftruncate ftruncate64 futimesat getcwd \
     getdents getdents64 ioctl lchown lchown32 link linkat _llseek lseek lstat lstat64 mkdir mkdirat mknod mknodat \
     name_to_handle_at newfstatat open openat openat2 readlink readlinkat rename renameat renameat2 rmdir stat \
     stat64 statfs statfs64 statx symlink symlinkat sync sync_file_range syncfs truncate truncate64 umask unlink \
     unlinkat utime utimensat utimensat_time64 utimes cachestat",
    // extended attributes
    "fgetxattr flistxattr fremovexattr fsetxattr getxattr lgetxattr listxattr llistxattr lremovexattr lsetxattr \
     removexattr setxattr",
    // reading, writing, pipes
    "pipe pipe2 pread64 preadv preadv2 pwrite64 pwritev pwritev2 read readahead readv sendfile sendfile64 splice \
     tee vmsplice write writev io_cancel io_destroy io_getevents io_pgetevents io_pgetevents_time64 io_setup \
     io_submit ioprio_get ioprio_set",
    // waiting for files and events
    "epoll_create epoll_create1 epoll_ctl epoll_ctl_old epoll_pwait epoll_pwait2 epoll_wait epoll_wait_old eventfd \
     eventfd2 fanotify_mark inotify_add_watch inotify_init inotify_init1 inotify_rm_watch _newselect poll ppoll \
     ppoll_time64 pselect6 pselect6_time64 select signalfd signalfd4",
    // sockets
    "accept accept4 bind connect getpeername getsockname getsockopt listen recv recvfrom recvmmsg recvmmsg_time64 \
     recvmsg send sendmmsg sendmsg sendto setsockopt shutdown socketcall socketpair",
    // memory
    "brk madvise map_shadow_stack memfd_create memfd_secret mincore mlock mlock2 mlockall mmap mmap2 mprotect \
     mremap msync munlock munlockall munmap pkey_alloc pkey_free pkey_mprotect process_mrelease \
     remap_file_pages membarrier",
    // processes and threads
    "execve execveat exit exit_group fork futex futex_requeue futex_time64 futex_wait futex_waitv futex_wake \
     get_robust_list get_thread_area getcpu getpgid getpgrp getpid getppid getpriority getrlimit getrusage getsid \
     gettid landlock_add_rule landlock_create_ruleset landlock_restrict_self pidfd_open pidfd_send_signal prctl \
     prlimit64 rseq sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getattr sched_getparam \
     sched_getscheduler sched_rr_get_interval sched_rr_get_interval_time64 sched_setaffinity sched_setattr \
     sched_setparam sched_setscheduler sched_yield seccomp set_robust_list set_thread_area set_tid_address setpgid \
     setpriority setrlimit setsid sysinfo times ugetrlimit uname vfork wait4 waitid waitpid",
    // signals
    "kill pause restart_syscall rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn \
     rt_sigsuspend rt_sigtimedwait rt_sigtimedwait_time64 rt_tgsigqueueinfo sigaltstack sigprocmask sigreturn \
     tgkill tkill",
    // credentials
    "capget capset getegid getegid32 geteuid geteuid32 getgid getgid32 getgroups getgroups32 getresgid getresgid32 \
     getresuid getresuid32 getuid getuid32 setfsgid setfsgid32 setfsuid setfsuid32 setgid setgid32 setgroups \
     setgroups32 setregid setregid32 setresgid setresgid32 setresuid setresuid32 setreuid setreuid32 setuid \
     setuid32",
    // time; reading the clock's adjustment needs no capability, and the kernel checks it for changing it
    "adjtimex alarm clock_adjtime clock_adjtime64 clock_getres clock_getres_time64 clock_gettime clock_gettime64 \
     clock_nanosleep clock_nanosleep_time64 getitimer gettimeofday nanosleep setitimer time timer_create \
     timer_delete timer_getoverrun timer_gettime timer_gettime64 timer_settime timer_settime64 timerfd_create \
     timerfd_gettime timerfd_gettime64 timerfd_settime timerfd_settime64",
    // System V and POSIX inter-process communication
    "ipc mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedreceive_time64 mq_timedsend mq_timedsend_time64 \
     mq_unlink msgctl msgget msgrcv msgsnd semctl semget semop semtimedop semtimedop_time64 shmat shmctl shmdt \
     shmget",
    // others
    "getrandom",
    // inspecting other processes of the same user: safe since Linux 4.8
    "process_vm_readv process_vm_writev ptrace",
];

/// System calls allowed with a capability.
const WITH_CAPABILITY: &[(Capability, &str)] = &[
    (Capability::DacReadSearch, "open_by_handle_at"),
    (
        Capability::SysAdmin,
        "bpf clone clone3 fanotify_init fsconfig fsmount fsopen fspick lookup_dcookie mount mount_setattr move_mount \
         open_tree perf_event_open quotactl quotactl_fd setdomainname sethostname setns syslog umount umount2 unshare",
    ),
    (Capability::SysBoot, "reboot"),
    (Capability::SysChroot, "chroot"),
    (Capability::SysModule, "delete_module init_module finit_module"),
    (Capability::SysPacct, "acct"),
    (Capability::SysPtrace, "kcmp pidfd_getfd process_madvise process_vm_readv process_vm_writev ptrace"),
    (Capability::SysRawio, "iopl ioperm"),
    (Capability::SysTime, "settimeofday stime clock_settime clock_settime64"),
    (Capability::SysTtyConfig, "vhangup"),
    (Capability::SysNice, "get_mempolicy mbind set_mempolicy set_mempolicy_home_node"),
    (Capability::Syslog, "syslog"),
    (Capability::Bpf, "bpf"),
    (Capability::Perfmon, "perf_event_open"),
];

/// The execution domains that a program may choose: Linux, 32-bit Linux, both also without address randomization, and
/// a query.
const PERSONALITIES: [u64; 5] = [0x0, 0x8, 0x2_0000, 0x2_0008, 0xffff_ffff];

/// `CLONE_NEW*` of mount, cgroup, UTS, IPC, user, PID and network namespaces.
const CLONE_NEW: u64 = 0x7e02_0000;

/// `AF_VSOCK`: reaches the hypervisor and other machines, bypassing the pod's network.
const AF_VSOCK: u64 = 40;

/// `ENOSYS`: makes libraries fall back from `clone3`, whose flags a filter cannot see, to `clone`.
const ENOSYS: u32 = 38;

/// The default profile for a process with these capabilities on an architecture (`std::env::consts::ARCH`).
///
/// # Errors
///
/// Never for the tables above; the builder of argument filters is fallible.
pub(super) fn runtime_default(capabilities: &Capabilities, arch: &str) -> Result<LinuxSeccomp, SpecError> {
    use LinuxSeccompOperator::{ScmpCmpEq, ScmpCmpMaskedEq, ScmpCmpNe};
    let mut rules: Vec<LinuxSyscall> = ALLOWED.iter().map(|names| allow(names)).collect();
    rules.push(allow_if("socket", argument(0, ScmpCmpNe, AF_VSOCK, None)?));
    for personality in PERSONALITIES {
        rules.push(allow_if("personality", argument(0, ScmpCmpEq, personality, None)?));
    }
    let of_arch = match arch {
        "x86_64" => Some("arch_prctl modify_ldt"),
        "x86" => Some("modify_ldt"),
        "arm" | "aarch64" => {
            Some("arm_fadvise64_64 arm_sync_file_range sync_file_range2 breakpoint cacheflush set_tls")
        }
        "riscv64" => Some("riscv_flush_icache"),
        "powerpc64" => Some("sync_file_range2 swapcontext"),
        "s390x" => Some("s390_pci_mmio_read s390_pci_mmio_write s390_runtime_instr"),
        _ => None,
    };
    rules.extend(of_arch.map(allow));
    let granted = WITH_CAPABILITY.iter().filter(|(capability, _)| capabilities.contains(capability));
    rules.extend(granted.map(|(_, names)| allow(names)));
    if !capabilities.contains(&Capability::SysAdmin) {
        // Allows new processes and threads, but not in new namespaces. s390x has the arguments in reverse order.
        let flags = if arch == "s390x" { 1 } else { 0 };
        rules.push(allow_if("clone", argument(flags, ScmpCmpMaskedEq, CLONE_NEW, Some(0))?));
        let mut clone3 = allow("clone3");
        clone3.set_action(LinuxSeccompAction::ScmpActErrno).set_errno_ret(Some(ENOSYS));
        rules.push(clone3);
    }
    let mut profile = LinuxSeccomp::default();
    profile
        .set_default_action(LinuxSeccompAction::ScmpActErrno)
        .set_architectures(Some(architectures(arch)))
        .set_syscalls(Some(rules));
    Ok(profile)
}

/// The ABIs of a CPU; the runtime adds the native one if none is listed.
fn architectures(arch: &str) -> Vec<Arch> {
    match arch {
        "x86_64" => vec![Arch::ScmpArchX86_64, Arch::ScmpArchX86, Arch::ScmpArchX32],
        "aarch64" => vec![Arch::ScmpArchArm, Arch::ScmpArchAarch64],
        "s390x" => vec![Arch::ScmpArchS390, Arch::ScmpArchS390x],
        _ => Vec::new(),
    }
}

fn allow(names: &str) -> LinuxSyscall {
    let mut rule = LinuxSyscall::default();
    rule.set_names(names.split_whitespace().map(str::to_owned).collect()).set_action(LinuxSeccompAction::ScmpActAllow);
    rule
}

fn allow_if(name: &str, condition: LinuxSeccompArg) -> LinuxSyscall {
    let mut rule = allow(name);
    rule.set_args(Some(vec![condition]));
    rule
}

fn argument(
    index: usize,
    operator: LinuxSeccompOperator,
    value: u64,
    value_two: Option<u64>,
) -> Result<LinuxSeccompArg, SpecError> {
    let builder = LinuxSeccompArgBuilder::default().index(index).op(operator).value(value);
    let builder = match value_two {
        Some(value_two) => builder.value_two(value_two),
        None => builder,
    };
    builder.build().map_err(|source| SpecError::Document(source.to_string()))
}

#[cfg(test)]
mod tests;
