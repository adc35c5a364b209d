//! Header blocks: names and values, compressed across the whole connection (SPDY/3, section 2.6.10).
//!
//! Received blocks are inflated into a window that begins with the dictionary. Sent blocks are stored uncompressed,
//! which every inflater can read: a node sends few headers, and a compressor would take a quarter of a MiB per
//! connection.

use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::inflate_flags::TINFL_FLAG_HAS_MORE_INPUT;
use miniz_oxide::inflate::core::{DecompressorOxide, decompress};

use super::dictionary::{CHECKSUM, dictionary};

/// The largest header block after inflation, in bytes; Kubernetes' have less than 200.
pub const MAX_BLOCK: usize = 1 << 10;
pub const MAX_HEADERS: usize = 16;
/// The distance to which a compressed block may refer back: zlib's largest window.
const WINDOW_SIZE: usize = 32 << 10;
/// zlib's header: deflate, a window of 32 KiB, a dictionary.
const ZLIB_HEAD: [u8; 2] = [0x78, 0xbb];
/// The bit in zlib's second byte that announces the checksum of a dictionary.
const ZLIB_DICTIONARY: u8 = 0x20;
/// zlib's sync flush, which ends each block so that it can be inflated immediately.
const SYNC_FLUSH: [u8; 5] = [0, 0, 0, 0xff, 0xff];

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// The block is not zlib data with SPDY's dictionary.
    #[error("a header block that cannot be inflated")]
    Compression,
    /// The block is larger than [`MAX_BLOCK`], or has more than [`MAX_HEADERS`].
    #[error("a header block of more than {MAX_BLOCK} bytes or {MAX_HEADERS} headers")]
    TooLarge,
    /// The lengths of names and values are inconsistent.
    #[error("a malformed header block")]
    Malformed,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Headers(Vec<(String, String)>);

impl Headers {
    /// Headers with these names, in lower case, and values.
    pub fn new(headers: &[(&str, &str)]) -> Self {
        Self(headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
    }

    /// The value of the header `name`, which is in lower case.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Parses an inflated block.
    fn parse(block: &[u8]) -> Result<Self, HeaderError> {
        let mut rest = block;
        let count = number(&mut rest)?;
        if count > MAX_HEADERS {
            return Err(HeaderError::TooLarge);
        }
        let mut headers = Vec::new();
        for _ in 0..count {
            let (name, value) = (text(&mut rest)?, text(&mut rest)?);
            if name.is_empty() || name.bytes().any(|byte| byte.is_ascii_uppercase()) {
                return Err(HeaderError::Malformed);
            }
            headers.push((name, value));
        }
        if rest.is_empty() { Ok(Self(headers)) } else { Err(HeaderError::Malformed) }
    }

    /// The block before compression.
    fn block(&self) -> Vec<u8> {
        // The headers are far shorter than the length fields allow.
        let length = |bytes: usize| (bytes as u32).to_be_bytes();
        let mut block = length(self.0.len()).to_vec();
        for part in self.0.iter().flat_map(|(name, value)| [name, value]) {
            block.extend_from_slice(&length(part.len()));
            block.extend_from_slice(part.as_bytes());
        }
        block
    }
}

fn number(rest: &mut &[u8]) -> Result<usize, HeaderError> {
    let (head, tail) = rest.split_first_chunk().ok_or(HeaderError::Malformed)?;
    *rest = tail;
    usize::try_from(u32::from_be_bytes(*head)).map_err(|_| HeaderError::Malformed)
}

fn text(rest: &mut &[u8]) -> Result<String, HeaderError> {
    let length = number(rest)?;
    let (head, tail) = rest.split_at_checked(length).ok_or(HeaderError::Malformed)?;
    *rest = tail;
    std::str::from_utf8(head).map(str::to_owned).map_err(|_| HeaderError::Malformed)
}

/// Reads the header blocks of one direction of a connection.
pub struct Inflater {
    state: Box<DecompressorOxide>,
    window: Box<[u8]>,
    /// The position of the next byte in the window.
    at: usize,
    /// Whether zlib's header has been read.
    begun: bool,
    /// Whether reading has failed, or the deflate stream has ended, which it never should.
    over: bool,
}

impl Default for Inflater {
    fn default() -> Self {
        let mut window: Vec<u8> = dictionary().collect();
        let at = window.len();
        window.resize(WINDOW_SIZE, 0);
        Self { state: Box::default(), window: window.into_boxed_slice(), at, begun: false, over: false }
    }
}

impl Inflater {
    /// The headers of the next block.
    ///
    /// # Errors
    ///
    /// After an error no later block of the connection can be read.
    pub fn read(&mut self, block: &[u8]) -> Result<Headers, HeaderError> {
        if self.over {
            return Err(HeaderError::Compression);
        }
        let headers = self.inflate(block).and_then(|block| Headers::parse(&block));
        self.over |= headers.is_err();
        headers
    }

    fn inflate(&mut self, mut input: &[u8]) -> Result<Vec<u8>, HeaderError> {
        if !self.begun {
            input = after_zlib_head(input)?;
            self.begun = true;
        }
        let mut output = Vec::new();
        loop {
            let (status, read, written) =
                decompress(&mut self.state, input, &mut self.window, self.at, TINFL_FLAG_HAS_MORE_INPUT);
            output.extend_from_slice(&self.window[self.at..self.at + written]);
            self.at = (self.at + written) % WINDOW_SIZE;
            input = &input[read..];
            if output.len() > MAX_BLOCK {
                return Err(HeaderError::TooLarge);
            }
            match status {
                TINFLStatus::NeedsMoreInput if input.is_empty() => return Ok(output),
                TINFLStatus::HasMoreOutput if written > 0 => {}
                _ => return Err(HeaderError::Compression),
            }
        }
    }
}

impl std::fmt::Debug for Inflater {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Inflater").field("begun", &self.begun).field("over", &self.over).finish()
    }
}

/// The deflated data after zlib's header, which must name the dictionary.
fn after_zlib_head(input: &[u8]) -> Result<&[u8], HeaderError> {
    let ([method, flags], rest) = input.split_first_chunk().ok_or(HeaderError::Compression)?;
    let is_deflate = method & 0x0f == 8 && u16::from_be_bytes([*method, *flags]) % 31 == 0;
    if !is_deflate {
        return Err(HeaderError::Compression);
    }
    if flags & ZLIB_DICTIONARY == 0 {
        return Ok(rest);
    }
    let (checksum, rest) = rest.split_first_chunk().ok_or(HeaderError::Compression)?;
    if u32::from_be_bytes(*checksum) == CHECKSUM { Ok(rest) } else { Err(HeaderError::Compression) }
}

/// Writes the header blocks of one direction of a connection.
#[derive(Debug, Default)]
pub struct Deflater {
    begun: bool,
}

impl Deflater {
    /// Encodes a block with these headers.
    pub fn write(&mut self, headers: &Headers) -> Vec<u8> {
        let mut output = Vec::new();
        if !std::mem::replace(&mut self.begun, true) {
            output.extend_from_slice(&ZLIB_HEAD);
            output.extend_from_slice(&CHECKSUM.to_be_bytes());
        }
        for part in headers.block().chunks(usize::from(u16::MAX)) {
            // Chunks are at most 65,535 bytes long.
            let length = part.len() as u16;
            output.push(0);
            output.extend_from_slice(&length.to_le_bytes());
            output.extend_from_slice(&(!length).to_le_bytes());
            output.extend_from_slice(part);
        }
        output.extend_from_slice(&SYNC_FLUSH);
        output
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io::Read as _;

    use super::*;

    fn deflate(blocks: &[&[u8]]) -> Vec<u8> {
        let mut stream = vec![0x78, 0x01];
        for block in blocks {
            let length = u16::try_from(block.len()).unwrap();
            stream.push(0);
            stream.extend(length.to_le_bytes());
            stream.extend((!length).to_le_bytes());
            stream.extend_from_slice(block);
        }
        [stream, SYNC_FLUSH.to_vec()].concat()
    }

    #[test]
    fn headers_are_written_and_read_block_after_block() {
        let (mut deflater, mut inflater) = (Deflater::default(), Inflater::default());
        for port in 1..3_000_u32 {
            let headers = Headers::new(&[("streamtype", "data"), ("port", &port.to_string()), ("empty", "")]);
            let read = inflater.read(&deflater.write(&headers)).unwrap();
            assert_eq!(read, headers);
            assert_eq!(read.get("port"), Some(&*port.to_string()));
            assert_eq!(read.get("Port"), None);
        }
        assert_eq!(Deflater::default().write(&Headers::default())[..6], [0x78, 0xbb, 0xe3, 0xc6, 0xa7, 0xc2]);
    }

    #[test]
    fn blocks_that_go_wrote_are_read() {
        // moby/spdystream 0.5.1: the headers of kubectl's first three streams, compressed with the dictionary.
        let blocks: [&[u8]; 3] = [
            include_bytes!("headers/go-1.bin"),
            include_bytes!("headers/go-2.bin"),
            include_bytes!("headers/go-3.bin"),
        ];
        let mut inflater = Inflater::default();
        let expected = [("error", "8080", "0"), ("data", "8080", "0"), ("error", "443", "1")];
        for (block, (kind, port, request)) in blocks.into_iter().zip(expected) {
            let headers = inflater.read(block).unwrap();
            let values = ["streamtype", "port", "requestid"].map(|name| headers.get(name));
            assert_eq!(values, [Some(kind), Some(port), Some(request)]);
        }
    }

    #[test]
    fn hostile_blocks_are_refused_and_end_the_connections_headers() {
        let huge = [&[0, 0, 0, 1, 0, 0, 0, 1, b'a', 0, 0, 0x80, 0][..], &[b'x'; 0x8000]].concat();
        let many = (u32::try_from(MAX_HEADERS).unwrap() + 1).to_be_bytes();
        let table: [(&str, Vec<u8>, HeaderError); 14] = [
            ("nothing", vec![], HeaderError::Compression),
            ("half a zlib head", vec![0x78], HeaderError::Compression),
            ("no zlib", b"GET / HTTP/1.1\r\n".to_vec(), HeaderError::Compression),
            ("another dictionary", vec![0x78, 0xbb, 0, 0, 0, 1, 0, 0, 0, 0xff, 0xff], HeaderError::Compression),
            ("a block of no type", vec![0x78, 0x01, 0x07], HeaderError::Compression),
            ("a stream that ends", vec![0x78, 0x01, 0x01, 0, 0, 0xff, 0xff], HeaderError::Compression),
            ("empty", deflate(&[]), HeaderError::Malformed),
            ("half a number", deflate(&[&[0, 0]]), HeaderError::Malformed),
            ("fewer than it says", deflate(&[&[0, 0, 0, 1]]), HeaderError::Malformed),
            ("more than it says", deflate(&[&[0, 0, 0, 0, 9]]), HeaderError::Malformed),
            ("a name as long as 4 GiB", deflate(&[&[0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff]]), HeaderError::Malformed),
            ("upper case", deflate(&[&[0, 0, 0, 1, 0, 0, 0, 1, b'A', 0, 0, 0, 0]]), HeaderError::Malformed),
            ("too many", deflate(&[&many]), HeaderError::TooLarge),
            ("too large", deflate(&[&huge]), HeaderError::TooLarge),
        ];
        for (what, block, expected) in table {
            let mut inflater = Inflater::default();
            assert_eq!(inflater.read(&block), Err(expected), "{what}");
            assert_eq!(inflater.read(&deflate(&[&[0; 4]])), Err(HeaderError::Compression), "after {what}");
        }
    }

    #[test]
    fn a_small_block_that_inflates_to_a_thousand_times_its_size_stops_at_the_limit() {
        let mut bomb = Vec::new();
        let zeros = vec![0; 512 << 10];
        flate2::bufread::ZlibEncoder::new(&*zeros, flate2::Compression::best()).read_to_end(&mut bomb).unwrap();
        assert!(bomb.len() < MAX_BLOCK);
        assert_eq!(Inflater::default().read(&bomb), Err(HeaderError::TooLarge));
    }
}
