//! limpet's decision logic: the desired pods, the next actions for each pod, and the status to report.
//!
//! Pure functions of values and time; time is always an argument: no I/O, no clock, no runtime. [`source`] holds each
//! source's snapshot, and [`merge`] combines them into one desired state. [`plan`] decides a pod's next actions from
//! its [`state`] and the node's [`node_state`], [`outcome`] applies their results, [`probe`] judges the results of a
//! container's probes, and [`adopt`] applies what containerd already runs. [`status`] generates the reported status,
//! [`forecast`] predicts what other manifests would change, and [`node_shutdown`] orders the pods' ends at a
//! shutdown. For an apiserver, [`mirror`] decides about mirror pods, [`node_object`] about the Node and its lease,
//! [`csi_node`] about its CSI drivers, and [`connectivity`] about the connection.

pub mod admission;
pub mod adopt;
pub mod allocation;
pub mod api_pod;
pub mod backoff;
pub mod byte_size;
pub mod certificate;
pub mod cluster_history;
pub mod connectivity;
pub mod cpu_allocation;
pub mod cpu_rate;
pub mod csi_node;
pub mod debug_order;
pub mod device_plugins;
pub mod eviction;
pub mod exit_cause;
#[cfg(any(test, feature = "fixtures"))]
pub mod fixtures;
pub mod forecast;
pub mod image_access;
pub mod image_gc;
pub mod jitter;
pub mod known_pods;
pub mod last_good;
pub mod merge;
pub mod mirror;
pub mod node_images;
pub mod node_lease;
pub mod node_object;
pub mod node_place;
pub mod node_shutdown;
pub mod node_state;
#[cfg(test)]
mod node_state_tests;
#[cfg(test)]
mod objects_tests;
pub mod outcome;
pub mod plan;
pub mod pod_order;
pub mod priority;
pub mod probe;
pub mod provisional;
pub mod pull_rate;
pub mod removal;
pub mod reported_pod;
pub mod source;
pub mod state;
pub mod status;
pub mod storage;
pub mod stored_status;
pub mod taint;
pub mod volume_expansion;
