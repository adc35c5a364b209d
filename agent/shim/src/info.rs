//! `-info`: what containerd 2 asks of a shim, including the features of its OCI runtime.

use std::io::{self, Read as _};
use std::process::{Command, Stdio};

use prost::Message as _;
use prost_types::Any;

use crate::messages::{Options, RuntimeInfo, RuntimeVersion};
use crate::runtime::Runtime;

/// The type of an OCI runtime's features.
const FEATURES: &str = "types.containerd.io/opencontainers/runtime-spec/1/features/Features";
/// The most bytes of options and of features that are read.
const MAX: u64 = 1 << 20;

/// Describes this shim, with the features of the runtime in the options on stdin.
pub(crate) fn info() -> RuntimeInfo {
    let mut input = Vec::new();
    // Without options there is nothing to read.
    let _ = io::stdin().take(MAX).read_to_end(&mut input);
    let given = Any::decode(&*input).ok().filter(|any| !any.value.is_empty());
    let options = given.as_ref().and_then(|any| Options::decode(&*any.value).ok()).unwrap_or_default();
    let features = features(&Runtime::new(options, "")).ok();
    RuntimeInfo {
        name: "io.containerd.limpet.v1".to_owned(),
        version: Some(RuntimeVersion { version: env!("CARGO_PKG_VERSION").to_owned() }),
        options: given,
        features: features.map(|value| Any { type_url: FEATURES.to_owned(), value }),
    }
}

fn features(runtime: &Runtime) -> io::Result<Vec<u8>> {
    let mut command = Command::new(runtime.binary());
    let output = command.arg("features").stdin(Stdio::null()).stderr(Stdio::null()).output()?;
    if !output.status.success() {
        return Err(io::Error::other("the OCI runtime does not know its features"));
    }
    Ok(output.stdout)
}
