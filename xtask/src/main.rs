//! limpet's development tasks. `cargo xtask --help` lists them.

mod apt;
mod architecture;
mod bench;
mod bench_emulated;
mod bench_pressure;
mod cargo;
mod cargo_programs;
mod cluster;
mod conformance;
mod corpus;
mod crate_borders;
mod cross;
mod demo;
mod dist;
mod ebpf;
mod go_program;
mod idle_text;
mod initrd;
mod kubernetes;
mod lint;
mod module_cycles;
mod names;
mod nightly;
mod page_links;
mod record_state;
mod record_ui;
mod release;
mod runtime;
mod setup;
mod simulate;
mod site;
mod suites;
mod test;
mod test_kernels;
mod test_vm;
#[cfg(test)]
mod threat_model;
mod vm_image;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// limpet's development tasks.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Install what building and testing limpet needs: containerd, runc, CNI plugins, a registry, protoc.
    ///
    /// What the machine has is used; what it lacks is installed by apt, or unpacked into ~/.cache/limpet where an
    /// installation could disturb what is there. Run as root on Debian or Ubuntu. Does nothing when nothing is missing.
    Setup(setup::Arguments),
    /// Show the life of a pod on a real containerd: create, edit, restart, logs, delete. Cleans up after itself.
    Demo(demo::Arguments),
    /// Record limpet ui on a real agent for the picture in the README: docs/ui.svg.
    RecordUi,
    /// Record the root directory that an agent of this release leaves, for the tests of later releases: tests/states.
    RecordState,
    /// Build the executable for nodes: static, so that it runs on any Linux of this architecture. Takes minutes.
    Dist(dist::Arguments),
    /// Make what nodes install, for x86_64, aarch64, armv7 and riscv64: tarball, deb, rpm, SBOM, checksums, signatures.
    ///
    /// Compilers for the other architectures are installed by apt if they are missing. docs/release.md has the steps.
    Release(release::Arguments),
    /// Make a site of the pages, with search, by mdBook; every link in it is checked. Prints the path of its first page.
    Site(site::Arguments),
    /// Record the functions that an idle agent runs, which the linker puts side by side: xtask/src/idle_text.ld.
    ///
    /// Takes some 20 minutes. Useful before a release; without a new record the agent only takes some more memory.
    IdleText,
    /// Set up, build, and run all tests except the nightly ones.
    Test(test::Arguments),
    /// Boot a whole Debian under emulation and test installation, cgroup v2 with systemd, reboots and power cuts.
    TestVm(test_vm::Arguments),
    /// Boot stock kernels under emulation and test the BPF programs in each: 5.10, 6.1, 6.12 and the newest.
    TestKernels(test_kernels::Arguments),
    /// Run the tests that take too long for every change: all kernels, the long forms, containerd 2. Takes hours.
    Nightly(nightly::Arguments),
    /// Run Kubernetes' conformance specs of a node and of a cluster against limpet and against kubelet, and compare:
    /// docs/conformance.md, docs/conformance-cpus.md and docs/conformance-cluster.md. Takes hours.
    Conformance(conformance::Arguments),
    /// Build the BPF programs and install the object in agent-ebpf; sets up all requirements except the nightly compiler.
    BuildEbpf,
    /// Build the kube-apiserver with limpet's version of the Pod API, and download its etcd: into ~/.cache/limpet, once. Needs Go.
    Apiserver,
    /// Start a Kubernetes cluster on loopback, with an optional node, print its kubeconfig, and remove all of it at Ctrl-C.
    ///
    /// etcd, kube-apiserver, kube-controller-manager and kube-scheduler, with RBAC, the node authorizer, NodeRestriction, the
    /// aggregation layer, and certificates as kubeadm makes them. Missing programs are built once, into ~/.cache/limpet.
    Cluster(cluster::Arguments),
    /// Build the kubelet that `bench --kubelet` runs beside limpet: into ~/.cache/limpet, once. Needs Go.
    Kubelet,
    /// Build the kubectls that `nightly kubectl` uses, of 1.30 and of the newest release: into ~/.cache/limpet, once. Needs Go.
    Kubectl,
    /// Build the crictl that the tests of the CRI socket use: into ~/.cache/limpet, once. Needs Go.
    Crictl,
    /// Send every manifest of agent/model/tests/corpus to a real apiserver, and record its answers.
    Corpus,
    /// Run supervisor, workers and merge over a fake executor with a virtual clock: random events, reproducible by seed.
    Simulate(simulate::Arguments),
    /// Check format, lints, documentation, licences, unused dependencies and cycles between modules; any warning is an error.
    Lint(lint::Arguments),
    /// Measure reading and merging against a simple implementation, and starts and restarts of containers end to end.
    Bench(bench::Arguments),
}

fn main() -> ExitCode {
    let done = match Arguments::parse().task {
        Task::Setup(arguments) => setup::run(&arguments),
        Task::Demo(arguments) => demo::run(&arguments),
        Task::RecordUi => record_ui::run(),
        Task::RecordState => record_state::run(),
        Task::Dist(arguments) => dist::run(&arguments).map(print_path),
        Task::Release(arguments) => release::run(&arguments),
        Task::Site(arguments) => site::run(&arguments).map(print_path),
        Task::IdleText => idle_text::run(),
        Task::Test(arguments) => test::run(&arguments),
        Task::TestVm(arguments) => test_vm::run(&arguments),
        Task::TestKernels(arguments) => test_kernels::run(&arguments),
        Task::Nightly(arguments) => nightly::run(&arguments),
        Task::Conformance(arguments) => conformance::run(&arguments),
        Task::BuildEbpf => ebpf::build(),
        Task::Apiserver => kubernetes::apiserver().map(print_path),
        Task::Cluster(arguments) => cluster::run(&arguments),
        Task::Kubelet => kubernetes::kubelet().map(print_path),
        Task::Kubectl => kubernetes::kubectls().map(|programs| programs.into_iter().for_each(print_path)),
        Task::Crictl => go_program::CRICTL.ready().map(print_path),
        Task::Corpus => corpus::run(),
        Task::Simulate(arguments) => simulate::run(&arguments),
        Task::Lint(arguments) => lint::run(&arguments),
        Task::Bench(arguments) => bench::run(&arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn print_path(program: PathBuf) {
    println!("{}", program.display());
}
