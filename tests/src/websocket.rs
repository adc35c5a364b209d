//! A client of kubelet's WebSockets that controls every byte: it may read nothing, and be cut off anywhere.

use std::io::{self, BufRead as _, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

/// How long a client waits for the next message.
const READ_TIMEOUT: Duration = Duration::from_secs(180);

/// The protocol of commands, in its newest version.
pub const COMMANDS: &str = "v5.channel.k8s.io";

/// A connection that carries a WebSocket. Reads end with an error after some time.
pub trait Connection: Read + Write + Send {}

impl<C: Read + Write + Send> Connection for C {}

/// A connection that has become a WebSocket. Dropping it cuts it off.
pub struct WebSocket(BufReader<Box<dyn Connection>>);

impl WebSocket {
    /// Asks the local socket for `path` in the protocol of commands.
    pub fn open(socket: &Path, path: &str) -> Result<Self> {
        let stream = UnixStream::connect(socket).with_context(|| format!("{}", socket.display()))?;
        stream.set_read_timeout(Some(READ_TIMEOUT))?;
        Self::over(stream, path, COMMANDS)
    }

    /// Asks for `path` over `stream` in that protocol.
    pub fn over(mut stream: impl Connection + 'static, path: &str, protocol: &str) -> Result<Self> {
        let head = format!(
            "GET {path} HTTP/1.1\r\nHost: limpet\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: bGltcGV0LWxpbXBldC1saQ==\r\nSec-WebSocket-Protocol: {protocol}\r\n\r\n"
        );
        stream.write_all(head.as_bytes())?;
        let mut reader = BufReader::new(Box::new(stream) as Box<dyn Connection>);
        let mut answer = String::new();
        while reader.read_line(&mut answer)? > 2 {}
        ensure!(answer.starts_with("HTTP/1.1 101 "), "{path}: {answer}");
        Ok(Self(reader))
    }

    /// Sends a message on a channel.
    pub fn send(&mut self, channel: u8, data: &[u8]) -> Result<()> {
        // The frame is binary, the last of its message, and masked with zeros.
        let mut frame = vec![0x82];
        match data.len() + 1 {
            length @ ..126 => frame.push(0x80 | length as u8),
            length => {
                frame.push(0x80 | 126);
                frame.extend_from_slice(&u16::try_from(length).context("too long a message")?.to_be_bytes());
            }
        }
        frame.extend_from_slice(&[0; 4]);
        frame.push(channel);
        frame.extend_from_slice(data);
        self.0.get_mut().write_all(&frame).context("send")
    }

    /// The next message of a channel; `None` if the WebSocket is closed. If only pings come, this is an error after
    /// some time.
    pub fn receive(&mut self) -> Result<Option<(u8, Vec<u8>)>> {
        let start = Instant::now();
        loop {
            ensure!(start.elapsed() < READ_TIMEOUT, "nothing but pings came");
            let mut head = [0; 2];
            match self.0.read_exact(&mut head) {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
                read => read.context("read")?,
            }
            let length = match head[1] {
                126 => usize::from(u16::from_be_bytes(self.bytes()?)),
                127 => usize::try_from(u64::from_be_bytes(self.bytes()?))?,
                length => usize::from(length),
            };
            let mut content = vec![0; length];
            self.0.read_exact(&mut content)?;
            match (head[0] & 0x0f, content.split_first()) {
                (0x1 | 0x2, Some((channel, data))) => return Ok(Some((*channel, data.to_vec()))),
                (0x8, _) => return Ok(None),
                _ => {}
            }
        }
    }

    /// Everything that comes on each of the channels 0 to 3 until the end.
    pub fn finish(mut self) -> Result<[Vec<u8>; 4]> {
        let mut all: [Vec<u8>; 4] = Default::default();
        while let Some((channel, data)) = self.receive()? {
            all.get_mut(usize::from(channel)).context("an unknown channel")?.extend_from_slice(&data);
        }
        Ok(all)
    }

    fn bytes<const LENGTH: usize>(&mut self) -> Result<[u8; LENGTH]> {
        let mut bytes = [0; LENGTH];
        self.0.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}
