//! Compiles the definitions below `proto`, which are Kubernetes' own and that of CSI.

use std::error::Error;
use std::{env, fs};

mod pod_schema;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=pod_schema.rs");
    println!("cargo:rerun-if-changed=proto");
    let services = || tonic_prost_build::configure().build_transport(false);
    // limpet is a server of CRI alone.
    services().build_client(false).compile_protos(&["proto/runtime/v1/api.proto"], &["proto/runtime/v1"])?;
    services().compile_protos(&["proto/podresources/v1/api.proto"], &["proto/podresources/v1"])?;
    services().compile_protos(&["proto/pods/v1alpha1/api.proto"], &["proto/pods/v1alpha1"])?;
    services().compile_protos(&["proto/deviceplugin/v1beta1/api.proto"], &["proto/deviceplugin/v1beta1"])?;
    services().compile_protos(&["proto/pluginregistration/v1/api.proto"], &["proto/pluginregistration/v1"])?;
    services().compile_protos(&["proto/csi/v1/csi.proto"], &["proto/csi/v1"])?;

    let pod = tonic_prost_build::Config::new().load_fds(&["proto/core/v1/pod.proto"], &["proto/core/v1"])?;
    fs::write(format!("{}/pod_schema.rs", env::var("OUT_DIR")?), pod_schema::table(&pod)?)?;
    Ok(())
}
