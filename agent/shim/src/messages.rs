//! Messages of containerd's task service (versions 2 and 3 are alike), its events, and a runtime's options: the
//! fields that a shim reads or writes.
//!
//! Written by hand, because crates with generated types depend on a ttrpc server, gRPC or an async runtime.

use prost::Message;
use prost_types::{Any, Timestamp};

/// A request over ttrpc.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Request {
    #[prost(string, tag = "1")]
    pub(crate) service: String,
    #[prost(string, tag = "2")]
    pub(crate) method: String,
    #[prost(bytes = "vec", tag = "3")]
    pub(crate) payload: Vec<u8>,
    #[prost(int64, tag = "4")]
    pub(crate) timeout_nano: i64,
}

/// Its response.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Response {
    #[prost(message, optional, tag = "1")]
    pub(crate) status: Option<Status>,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) payload: Vec<u8>,
}

/// `google.rpc.Status`, without details.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Status {
    #[prost(int32, tag = "1")]
    pub(crate) code: i32,
    #[prost(string, tag = "2")]
    pub(crate) message: String,
}

/// A message without fields.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct Empty {}

/// `containerd.types.Mount`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Mount {
    #[prost(string, tag = "1")]
    pub(crate) kind: String,
    #[prost(string, tag = "2")]
    pub(crate) source: String,
    #[prost(string, tag = "3")]
    pub(crate) target: String,
    #[prost(string, repeated, tag = "4")]
    pub(crate) options: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct CreateTaskRequest {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
    #[prost(string, tag = "2")]
    pub(crate) bundle: String,
    #[prost(message, repeated, tag = "3")]
    pub(crate) rootfs: Vec<Mount>,
    #[prost(bool, tag = "4")]
    pub(crate) terminal: bool,
    #[prost(string, tag = "5")]
    pub(crate) stdin: String,
    #[prost(string, tag = "6")]
    pub(crate) stdout: String,
    #[prost(string, tag = "7")]
    pub(crate) stderr: String,
    #[prost(string, tag = "8")]
    pub(crate) checkpoint: String,
    #[prost(message, optional, tag = "10")]
    pub(crate) options: Option<Any>,
}

/// The response to a request that has started something.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct PidResponse {
    #[prost(uint32, tag = "1")]
    pub(crate) pid: u32,
}

/// Any request that only names a container and optionally one of its processes.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ProcessRequest {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
    #[prost(string, tag = "2")]
    pub(crate) exec_id: String,
}

/// Any request that names a container; its other fields are not read.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ContainerRequest {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct DeleteResponse {
    #[prost(uint32, tag = "1")]
    pub(crate) pid: u32,
    #[prost(uint32, tag = "2")]
    pub(crate) exit_status: u32,
    #[prost(message, optional, tag = "3")]
    pub(crate) exited_at: Option<Timestamp>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ExecProcessRequest {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
    #[prost(string, tag = "2")]
    pub(crate) exec_id: String,
    #[prost(bool, tag = "3")]
    pub(crate) terminal: bool,
    #[prost(string, tag = "4")]
    pub(crate) stdin: String,
    #[prost(string, tag = "5")]
    pub(crate) stdout: String,
    #[prost(string, tag = "6")]
    pub(crate) stderr: String,
    #[prost(message, optional, tag = "7")]
    pub(crate) spec: Option<Any>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ResizePtyRequest {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
    #[prost(string, tag = "2")]
    pub(crate) exec_id: String,
    #[prost(uint32, tag = "3")]
    pub(crate) width: u32,
    #[prost(uint32, tag = "4")]
    pub(crate) height: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct StateResponse {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
    #[prost(string, tag = "2")]
    pub(crate) bundle: String,
    #[prost(uint32, tag = "3")]
    pub(crate) pid: u32,
    #[prost(int32, tag = "4")]
    pub(crate) status: i32,
    #[prost(string, tag = "5")]
    pub(crate) stdin: String,
    #[prost(string, tag = "6")]
    pub(crate) stdout: String,
    #[prost(string, tag = "7")]
    pub(crate) stderr: String,
    #[prost(bool, tag = "8")]
    pub(crate) terminal: bool,
    #[prost(uint32, tag = "9")]
    pub(crate) exit_status: u32,
    #[prost(message, optional, tag = "10")]
    pub(crate) exited_at: Option<Timestamp>,
    #[prost(string, tag = "11")]
    pub(crate) exec_id: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct KillRequest {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
    #[prost(string, tag = "2")]
    pub(crate) exec_id: String,
    #[prost(uint32, tag = "3")]
    pub(crate) signal: u32,
    #[prost(bool, tag = "4")]
    pub(crate) all: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ProcessInfo {
    #[prost(uint32, tag = "1")]
    pub(crate) pid: u32,
    #[prost(message, optional, tag = "2")]
    pub(crate) info: Option<Any>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PidsResponse {
    #[prost(message, repeated, tag = "1")]
    pub(crate) processes: Vec<ProcessInfo>,
}

/// `containerd.runc.v1.ProcessDetails`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ProcessDetails {
    #[prost(string, tag = "1")]
    pub(crate) exec_id: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct UpdateTaskRequest {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) resources: Option<Any>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct WaitResponse {
    #[prost(uint32, tag = "1")]
    pub(crate) exit_status: u32,
    #[prost(message, optional, tag = "2")]
    pub(crate) exited_at: Option<Timestamp>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct StatsResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) stats: Option<Any>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ConnectResponse {
    #[prost(uint32, tag = "1")]
    pub(crate) shim_pid: u32,
    #[prost(uint32, tag = "2")]
    pub(crate) task_pid: u32,
    #[prost(string, tag = "3")]
    pub(crate) version: String,
}

/// `containerd.runc.v1.Options`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Options {
    #[prost(bool, tag = "1")]
    pub(crate) no_pivot_root: bool,
    #[prost(bool, tag = "2")]
    pub(crate) no_new_keyring: bool,
    #[prost(string, tag = "3")]
    pub(crate) shim_cgroup: String,
    #[prost(uint32, tag = "4")]
    pub(crate) io_uid: u32,
    #[prost(uint32, tag = "5")]
    pub(crate) io_gid: u32,
    #[prost(string, tag = "6")]
    pub(crate) binary_name: String,
    #[prost(string, tag = "7")]
    pub(crate) root: String,
    #[prost(bool, tag = "9")]
    pub(crate) systemd_cgroup: bool,
    /// limpet's own field: where to record the container's exit; by default in the bundle.
    #[prost(string, tag = "1000")]
    pub(crate) exit_file: String,
}

/// `containerd.types.RuntimeInfo`: what `-info` prints.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RuntimeInfo {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) version: Option<RuntimeVersion>,
    #[prost(message, optional, tag = "3")]
    pub(crate) options: Option<Any>,
    #[prost(message, optional, tag = "4")]
    pub(crate) features: Option<Any>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RuntimeVersion {
    #[prost(string, tag = "1")]
    pub(crate) version: String,
}

/// `containerd.services.events.ttrpc.v1.ForwardRequest`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ForwardRequest {
    #[prost(message, optional, tag = "1")]
    pub(crate) envelope: Option<Envelope>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Envelope {
    #[prost(message, optional, tag = "1")]
    pub(crate) timestamp: Option<Timestamp>,
    #[prost(string, tag = "2")]
    pub(crate) namespace: String,
    #[prost(string, tag = "3")]
    pub(crate) topic: String,
    #[prost(message, optional, tag = "4")]
    pub(crate) event: Option<Any>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TaskIo {
    #[prost(string, tag = "1")]
    pub(crate) stdin: String,
    #[prost(string, tag = "2")]
    pub(crate) stdout: String,
    #[prost(string, tag = "3")]
    pub(crate) stderr: String,
    #[prost(bool, tag = "4")]
    pub(crate) terminal: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TaskCreate {
    #[prost(string, tag = "1")]
    pub(crate) container_id: String,
    #[prost(string, tag = "2")]
    pub(crate) bundle: String,
    #[prost(message, repeated, tag = "3")]
    pub(crate) rootfs: Vec<Mount>,
    #[prost(message, optional, tag = "4")]
    pub(crate) io: Option<TaskIo>,
    #[prost(uint32, tag = "6")]
    pub(crate) pid: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TaskStart {
    #[prost(string, tag = "1")]
    pub(crate) container_id: String,
    #[prost(uint32, tag = "2")]
    pub(crate) pid: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TaskDelete {
    #[prost(string, tag = "1")]
    pub(crate) container_id: String,
    #[prost(uint32, tag = "2")]
    pub(crate) pid: u32,
    #[prost(uint32, tag = "3")]
    pub(crate) exit_status: u32,
    #[prost(message, optional, tag = "4")]
    pub(crate) exited_at: Option<Timestamp>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TaskExit {
    #[prost(string, tag = "1")]
    pub(crate) container_id: String,
    #[prost(string, tag = "2")]
    pub(crate) id: String,
    #[prost(uint32, tag = "3")]
    pub(crate) pid: u32,
    #[prost(uint32, tag = "4")]
    pub(crate) exit_status: u32,
    #[prost(message, optional, tag = "5")]
    pub(crate) exited_at: Option<Timestamp>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TaskExecAdded {
    #[prost(string, tag = "1")]
    pub(crate) container_id: String,
    #[prost(string, tag = "2")]
    pub(crate) exec_id: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TaskExecStarted {
    #[prost(string, tag = "1")]
    pub(crate) container_id: String,
    #[prost(string, tag = "2")]
    pub(crate) exec_id: String,
    #[prost(uint32, tag = "3")]
    pub(crate) pid: u32,
}

/// An event with only a container's id: it ran out of memory, was paused, or was resumed.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct TaskEvent {
    #[prost(string, tag = "1")]
    pub(crate) container_id: String,
}
