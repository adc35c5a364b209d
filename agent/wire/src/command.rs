//! Encodes the messages of Kubernetes' remotecommand protocol, for server and client. No I/O.
//!
//! Over a WebSocket a message is one byte for the channel, then data. Version 5 adds a message that closes a channel;
//! version 4 has none.

use serde_json::{Value, json};

/// The current protocol.
pub const PROTOCOL_V5: &str = "v5.channel.k8s.io";
/// The previous version: over a WebSocket, stdin cannot be closed.
pub const PROTOCOL_V4: &str = "v4.channel.k8s.io";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Channel {
    Stdin = 0,
    Stdout = 1,
    Stderr = 2,
    /// How the process exited: a `Status` document, in the last message.
    Error = 3,
    /// The size of the client's terminal.
    Resize = 4,
    /// Version 5: closes the channel in the second byte.
    Close = 255,
}

impl Channel {
    /// Splits a message into channel and data; `None` for an empty message or an unknown channel.
    pub fn split(message: &[u8]) -> Option<(Self, &[u8])> {
        let (first, data) = message.split_first()?;
        Self::from_number(*first).map(|channel| (channel, data))
    }

    pub fn from_number(number: u8) -> Option<Self> {
        let all = [Self::Stdin, Self::Stdout, Self::Stderr, Self::Error, Self::Resize, Self::Close];
        all.into_iter().find(|channel| *channel as u8 == number)
    }

    /// The message that carries `data` on this channel.
    pub fn message(self, data: &[u8]) -> Vec<u8> {
        [&[self as u8], data].concat()
    }
}

/// The process's streams that the client attaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Streams {
    pub stdin: bool,
    pub stdout: bool,
    /// Stderr; never with a terminal.
    pub stderr: bool,
    /// Whether the process has a terminal, whose size the client sends.
    pub tty: bool,
}

impl Streams {
    /// Parses kubelet's query: `input`, `output`, `error` and `tty` as `1`. Also accepts the apiserver's names of the
    /// streams.
    ///
    /// # Errors
    ///
    /// kubelet's message if no stream is named.
    pub fn parse(query: &[(String, String)]) -> Result<Self, String> {
        let flag = |names: [&'static str; 2]| {
            let mut set = query.iter().filter(|(key, _)| names.contains(&key.as_str()));
            set.any(|(_, value)| matches!(value.as_str(), "1" | "true"))
        };
        let tty = flag(["tty", "tty"]);
        let streams = Self {
            stdin: flag(["input", "stdin"]),
            stdout: flag(["output", "stdout"]),
            stderr: flag(["error", "stderr"]) && !tty,
            tty,
        };
        match streams.stdin || streams.stdout || streams.stderr {
            true => Ok(streams),
            false => Err("you must specify at least 1 of stdin, stdout, stderr".to_owned()),
        }
    }
}

/// A request to run a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    /// The program and its arguments.
    pub arguments: Vec<String>,
    pub streams: Streams,
}

impl Command {
    /// Parses kubelet's query: `command` for each argument, and the streams.
    ///
    /// # Errors
    ///
    /// kubelet's message for what is missing.
    pub fn parse(query: &[(String, String)]) -> Result<Self, String> {
        let streams = Streams::parse(query)?;
        let arguments = query.iter().filter(|(key, _)| key == "command").map(|(_, value)| value.clone());
        let arguments: Vec<_> = arguments.collect();
        if arguments.is_empty() {
            return Err("you must specify a command".to_owned());
        }
        Ok(Self { arguments, streams })
    }
}

/// The message with a terminal's size in characters: `{"Width":80,"Height":24}`.
pub fn size(width: u16, height: u16) -> Vec<u8> {
    json!({ "Width": width, "Height": height }).to_string().into_bytes()
}

/// Width and height from the message of [`size`] or another client.
pub fn parse_size(data: &[u8]) -> Option<(u16, u16)> {
    let size: Value = serde_json::from_slice(data).ok()?;
    let field = |name: &str| u16::try_from(size.get(name)?.as_u64()?).ok();
    Some((field("Width")?, field("Height")?))
}

/// The `Status` of a command that has exited.
pub fn exit_status(code: i32) -> Vec<u8> {
    let status = match code {
        0 => json!({ "metadata": {}, "status": "Success" }),
        _ => json!({
            "metadata": {},
            "status": "Failure",
            "message": format!("command terminated with non-zero exit code: {code}"),
            "reason": "NonZeroExitCode",
            "details": { "causes": [{ "reason": "ExitCode", "message": code.to_string() }] },
        }),
    };
    status.to_string().into_bytes()
}

/// The `Status` of a command that did not run, or whose exit code is unknown.
pub fn failure_status(message: &str) -> Vec<u8> {
    let status = json!({
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": "InternalError",
        "details": { "causes": [{ "message": message }] },
        "code": 500,
    });
    status.to_string().into_bytes()
}

/// The exit code in a `Status`.
///
/// # Errors
///
/// The message to show for a `Status` without exit code.
pub fn parse_status(data: &[u8]) -> Result<i32, String> {
    let status: Value = serde_json::from_slice(data).map_err(|error| format!("unreadable status: {error}"))?;
    if status["status"] == "Success" {
        return Ok(0);
    }
    let causes = status["details"]["causes"].as_array().into_iter().flatten();
    let code = causes.filter(|cause| cause["reason"] == "ExitCode").find_map(|cause| cause["message"].as_str());
    match code.and_then(|code| code.parse().ok()) {
        Some(code) => Ok(code),
        None => Err(status["message"].as_str().unwrap_or("the command failed").to_owned()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn query(text: &str) -> Vec<(String, String)> {
        form_urlencoded::parse(text.as_bytes()).into_owned().collect()
    }

    #[test]
    fn queries_of_kubelet_and_apiserver_are_parsed() {
        let command = Command::parse(&query("command=sh&command=-c&command=a+b%26&input=1&output=1&error=1")).unwrap();
        assert_eq!(command.arguments, ["sh", "-c", "a b&"]);
        assert_eq!(command.streams, Streams { stdin: true, stdout: true, stderr: true, tty: false });
        let command = Command::parse(&query("command=sh&stdin=true&stdout=true&stderr=true&tty=true")).unwrap();
        assert_eq!(command.streams, Streams { stdin: true, stdout: true, stderr: false, tty: true });
        for (text, expected) in [
            ("command=ls", "you must specify at least 1 of stdin, stdout, stderr"),
            ("command=ls&output=0", "you must specify at least 1 of stdin, stdout, stderr"),
            ("output=1", "you must specify a command"),
        ] {
            assert_eq!(Command::parse(&query(text)).unwrap_err(), expected);
        }
    }

    #[test]
    fn messages_are_channel_and_data() {
        assert_eq!(Channel::Resize.message(b"x"), b"\x04x");
        assert_eq!(Channel::split(b"\x01abc"), Some((Channel::Stdout, &b"abc"[..])));
        assert_eq!(Channel::split(b"\xff\x00"), Some((Channel::Close, &b"\x00"[..])));
        assert_eq!(Channel::split(b""), None);
        assert_eq!(Channel::split(b"\x09x"), None);
    }

    #[test]
    fn sizes_are_written_and_parsed() {
        assert_eq!(parse_size(&size(80, 24)), Some((80, 24)));
        for bad in ["", "{}", r#"{"Width":1}"#, r#"{"Width":70000,"Height":1}"#, r#"{"Width":-1,"Height":1}"#] {
            assert_eq!(parse_size(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn statuses_are_written_and_parsed() {
        for code in [0, 1, 127, 137] {
            assert_eq!(parse_status(&exit_status(code)), Ok(code));
        }
        assert_eq!(parse_status(&failure_status("no")), Err("no".to_owned()));
        assert!(parse_status(b"{").is_err());
    }
}
