//! Compiles the definitions below `proto`, which are Kubernetes' own.

use std::io;

fn main() -> io::Result<()> {
    println!("cargo:rerun-if-changed=build.rs");
    let services = || tonic_prost_build::configure().build_transport(false);
    // limpet is a server of CRI alone.
    services().build_client(false).compile_protos(&["proto/runtime/v1/api.proto"], &["proto/runtime/v1"])?;
    services().compile_protos(&["proto/podresources/v1/api.proto"], &["proto/podresources/v1"])
}
