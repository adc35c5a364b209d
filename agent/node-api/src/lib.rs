//! The gRPC definitions of the interfaces for node tools and plugins, generated from their own files below `proto`.
//!
//! Types, service traits and the encoding of a Pod alone: what limpet answers is decided in the agent, `server/cri`,
//! `server/pod_resources`, `server/pods_api`, `device_plugins` and `csi`.
//! The files are those of Kubernetes 1.37.1: `k8s.io/cri-api/pkg/apis/runtime/v1/api.proto`, without the option `debug_redact`
//! of four fields, which protoc 3.21 does not support, and of `k8s.io/kubelet/pkg/apis`: `podresources/v1`, `pods/v1alpha1`,
//! `deviceplugin/v1beta1` and `pluginregistration/v1`; copyright The Kubernetes Authors, Apache-2.0.
//! `csi.proto` is the service `Node` of the Container Storage Interface which Kubernetes 1.37.1 is built with, 1.12 with later
//! additions, without the options of fields; copyright its authors, Apache-2.0.

/// The Container Runtime Interface, `runtime.v1`.
#[allow(missing_docs, clippy::all, rustdoc::all, reason = "generated")]
pub mod runtime {
    tonic::include_proto!("runtime.v1");
}

/// kubelet's PodResources API, `v1`.
#[allow(missing_docs, clippy::all, rustdoc::all, reason = "generated")]
pub mod pod_resources {
    tonic::include_proto!("v1");
}

/// kubelet's Pods API, `v1alpha1`.
#[allow(missing_docs, clippy::all, rustdoc::all, reason = "generated")]
pub mod pods {
    tonic::include_proto!("v1alpha1");
}

/// kubelet's device plugin API, `v1beta1`.
#[allow(missing_docs, clippy::all, rustdoc::all, reason = "generated")]
pub mod device_plugin {
    tonic::include_proto!("v1beta1");
}

/// kubelet's API for the registration of plugins, `v1`.
#[allow(missing_docs, clippy::all, rustdoc::all, reason = "generated")]
pub mod plugin_registration {
    tonic::include_proto!("pluginregistration");
}

/// The Container Storage Interface, `csi.v1`.
#[allow(missing_docs, clippy::all, rustdoc::all, reason = "generated")]
pub mod csi {
    tonic::include_proto!("csi.v1");
}

pub mod pod;
