//! The versions of the remotecommand protocol that kubelet accepts, over a WebSocket or SPDY. Pure.

use serde_json::Value;

use super::super::channels::Encoding;
use limpet_wire::command::{PROTOCOL_V4, PROTOCOL_V5};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Version {
    /// SPDY's first version: input cannot be closed and no error is sent.
    V1,
    /// SPDY's second version.
    V2,
    /// SPDY's third version, with sizes of a terminal.
    V3,
    /// The version with a `Status` document, which has the exit code.
    V4,
    /// The version with a WebSocket message that closes input.
    V5,
}

/// The versions over SPDY, by name.
pub(super) const SPDY: [(&str, Version); 4] = [
    (PROTOCOL_V4, Version::V4),
    ("v3.channel.k8s.io", Version::V3),
    ("v2.channel.k8s.io", Version::V2),
    ("channel.k8s.io", Version::V1),
];

/// The versions over a WebSocket, by name. A client that names none gets the first.
pub(super) const WEBSOCKET: [(&str, Version, Encoding); 5] = [
    (PROTOCOL_V5, Version::V5, Encoding::Binary),
    (PROTOCOL_V4, Version::V4, Encoding::Binary),
    ("v4.base64.channel.k8s.io", Version::V4, Encoding::Base64),
    ("channel.k8s.io", Version::V1, Encoding::Binary),
    ("base64.channel.k8s.io", Version::V1, Encoding::Base64),
];

impl Version {
    /// The bytes to send for a `Status` document; empty if nothing is sent. Before version 4 the status is a text,
    /// and success sends nothing.
    pub(super) fn status(self, document: Vec<u8>) -> Vec<u8> {
        if self >= Self::V4 {
            return document;
        }
        let status: Value = serde_json::from_slice(&document).unwrap_or_default();
        if status["status"] == "Success" {
            return Vec::new();
        }
        status["message"].as_str().unwrap_or("the command failed").to_owned().into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use limpet_wire::command::{exit_status, failure_status};

    #[test]
    fn old_versions_have_a_text_for_failures_alone() {
        for version in [Version::V1, Version::V2, Version::V3] {
            assert_eq!(version.status(exit_status(0)), b"");
            assert_eq!(version.status(exit_status(7)), b"command terminated with non-zero exit code: 7");
            assert_eq!(version.status(failure_status("no")), b"no");
        }
        for version in [Version::V4, Version::V5] {
            assert_eq!(version.status(exit_status(0)), exit_status(0));
        }
    }
}
