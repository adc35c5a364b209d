//! The functions of the shim's fuzz targets in `agent/fuzz`, whose seeds the tests replay: they feed bytes to a decoder and
//! check properties that must hold for any input.

use std::path::Path;

use prost::Message as _;

use crate::bundle::Spec;
use crate::exit::Exit;
use crate::messages::{
    ContainerRequest, CreateTaskRequest, ExecProcessRequest, KillRequest, Options, ProcessRequest, ResizePtyRequest,
    UpdateTaskRequest,
};
use crate::runtime::{self, Runtime};
use crate::stdio::Output;
use crate::ttrpc::{Decoder, Frame, FrameError, encode_request, encode_response};

/// Reads any bytes as a bundle's OCI spec.
///
/// # Panics
///
/// The group is empty although the spec names none.
pub fn spec(bytes: &[u8]) {
    let Ok(spec) = Spec::from_reader(bytes) else { return };
    let group = spec.group("id");
    assert!(group == "id" || bytes.len() > "io.kubernetes.cri.sandbox-id".len(), "a group {group:?} from nothing");
    // They read different parts of the spec.
    let _ = (spec.shares_pids(), spec.has_poststart_hooks());
}

/// Reads any bytes as a recorded exit. What is read is written and read back as the same.
///
/// # Panics
///
/// That does not hold.
pub fn exit(bytes: &[u8]) {
    let Ok(exit) = Exit::from_slice(bytes) else { return };
    let timestamp = exit.timestamp();
    assert!(timestamp.nanos >= 0, "{timestamp:?}");
    let written = exit.to_vec().unwrap_or_default();
    assert_eq!(Exit::from_slice(&written).ok(), Some(exit), "{}", String::from_utf8_lossy(&written));
}

/// Reads any bytes as ttrpc; the first byte selects how they arrive. The frames are the same however that is, and the
/// messages in them are decoded or refused.
///
/// # Panics
///
/// That does not hold.
pub fn ttrpc(bytes: &[u8]) {
    let Some((step, bytes)) = bytes.split_first() else { return };
    let whole = frames(bytes, bytes.len().max(1));
    assert_eq!(frames(bytes, usize::from(*step).max(1)), whole, "frames depend on how they arrive");
    for frame in whole.unwrap_or_default() {
        match frame {
            Frame::Request(stream, request) => {
                payload(&request.payload);
                let mut encoded = Vec::new();
                encode_request(stream, &request, &mut encoded);
                assert_eq!(frames(&encoded, encoded.len()), Ok(vec![Frame::Request(stream, request)]));
            }
            Frame::Response(stream, response) => {
                let mut encoded = Vec::new();
                encode_response(stream, &response, &mut encoded);
                assert_eq!(frames(&encoded, encoded.len()), Ok(vec![Frame::Response(stream, response)]));
            }
            Frame::Other => {}
        }
    }
}

/// The frames of `bytes`, of which `step` arrive at a time.
fn frames(bytes: &[u8], step: usize) -> Result<Vec<Frame>, FrameError> {
    let (mut decoder, mut frames) = (Decoder::default(), Vec::new());
    for chunk in bytes.chunks(step) {
        decoder.push(chunk);
        while let Some(frame) = decoder.next()? {
            frames.push(frame);
        }
    }
    Ok(frames)
}

/// Decodes the payload of a request as each of the messages. Any of them may be refused.
fn payload(bytes: &[u8]) {
    let _ = ContainerRequest::decode(bytes);
    let _ = ProcessRequest::decode(bytes);
    let _ = ExecProcessRequest::decode(bytes);
    let _ = KillRequest::decode(bytes);
    let _ = ResizePtyRequest::decode(bytes);
    let _ = UpdateTaskRequest::decode(bytes);
    if let Ok(request) = CreateTaskRequest::decode(bytes) {
        let _ = Output::parse(&request.stdout);
        options(&request.options.unwrap_or_default().value);
    }
}

/// Reads any bytes as a runtime's options. They encode to the same options, and give a command line.
///
/// # Panics
///
/// That does not hold.
pub fn options(bytes: &[u8]) {
    let Ok(options) = Options::decode(bytes) else { return };
    assert_eq!(Options::decode(&*options.encode_to_vec()).as_ref(), Ok(&options));
    let runtime = Runtime::new(options, "k8s.io");
    let call = runtime::Call { id: "c1", bundle: Path::new("/b"), log: Path::new("/b/l") };
    let command = runtime.create(&call, Path::new("/b/init.pid"), None);
    let last = command.get_args().last().map(std::ffi::OsStr::to_owned);
    assert_eq!(last.as_deref(), Some("c1".as_ref()), "the container is not the last argument");
    assert!(runtime.exit_file(Path::new("/b")).is_absolute(), "an exit file beside no bundle");
}

/// Reads any text as the URI of an output.
pub fn output(bytes: &[u8]) {
    // A refused URI is one that nobody understands.
    let _ = Output::parse(&String::from_utf8_lossy(bytes));
}

#[cfg(test)]
mod tests {
    /// Replays every seed of a target; fails if there are none.
    #[allow(clippy::unwrap_used)]
    fn replay(target: &str, feed: fn(&[u8])) {
        let here = std::env::var_os("CARGO_MANIFEST_DIR").unwrap();
        let seeds = std::path::Path::new(&here).join("../fuzz/seeds").join(target);
        let seeds: Vec<_> = seeds.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(!seeds.is_empty(), "{target}");
        for seed in seeds {
            feed(&std::fs::read(&seed).unwrap());
        }
    }

    #[test]
    fn the_seeds_of_the_fuzz_targets_hold() {
        replay("shim-spec", super::spec);
        replay("shim-exit", super::exit);
        replay("shim-ttrpc", super::ttrpc);
        replay("shim-options", super::options);
        replay("shim-output", super::output);
    }
}
