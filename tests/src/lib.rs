//! The harness of limpet's end-to-end tests, its demo and its benches: a separate node beside whatever runs on the
//! machine, made of a real containerd, runc, CNI plugins, registry and images, and the agent as a process.
//!
//! [`TestNode`] sets up the parts and removes them again; each module below is one part. Nothing here knows the
//! agent's code: it is controlled by its command line and observed through containerd's own `ctr`.

pub mod agent;
pub mod apiserver;
pub mod broken_version;
pub mod cgroup;
pub mod claim;
pub mod cluster;
pub mod cni;
pub mod containerd;
pub mod contender;
pub mod corpus;
pub mod file_server;
pub mod footprint;
pub mod forwarded;
pub mod grpc_health;
pub mod hollow;
pub mod huge_page_pool;
pub mod hung_mount;
pub mod image;
pub mod inventory;
pub mod kubeadm;
pub mod kubelet;
pub mod life;
pub mod logind;
pub mod loop_device;
pub mod manifest;
pub mod measure;
pub mod message_bus;
pub mod need;
pub mod nfs_tools;
pub mod node;
pub mod own_network;
pub mod podman;
pub mod process;
pub mod recorded_state;
pub mod registry;
pub mod release_file;
pub mod release_key;
pub mod sets;
pub mod signature;
pub mod specs;
pub mod suite;
pub mod sweep;
pub mod systemd_unit;
pub mod terminal;
pub mod tools;
pub mod view;
pub mod vm;
pub mod wait;
pub mod web;
pub mod websocket;
pub mod wire;

pub use node::TestNode;
