//! Host resources besides containerd: networks, volumes, namespaces, cgroups, processes, file watches.
//!
//! Each module executes commands and reports state; none decides. Inputs and outputs are types of `limpet-model`.

pub mod apparmor;
pub mod blocking;
pub mod boot;
pub mod call_watch;
pub mod cgroup;
pub mod claim_directories;
pub mod clock;
pub mod confined;
pub mod directory;
pub mod disk_usage;
pub mod file_system;
pub mod fs_group;
pub mod huge_pages;
pub mod inotify;
pub mod keyed_lock;
pub mod machine;
pub mod memory;
pub mod mount_table;
pub mod network;
mod network_namespace;
pub mod node_name;
pub mod node_network;
pub mod orphan_processes;
pub mod path_watch;
pub mod peer;
pub mod pod_port;
pub mod private_file;
pub mod proc_files;
pub mod process;
pub mod process_cgroup;
pub mod program;
pub mod project_quota;
mod rtnetlink;
pub mod sandbox;
pub mod selinux;
pub mod tcp;
pub mod throttle;
mod tree;
pub mod user_namespace;
pub mod volume;
pub mod wall_clock;
pub mod watch_again;
