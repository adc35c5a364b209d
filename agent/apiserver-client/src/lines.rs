//! The bounded lines of a body: a watch is one JSON document per line.

use http_body_util::BodyExt as _;
use hyper::body::{Body, Bytes};

/// The longest line in bytes; a longer one ends a watch. Kubernetes stores no object of more than a few MiB.
pub(crate) const MAX_LINE: usize = 16 << 20;

#[derive(Debug, thiserror::Error)]
pub(crate) enum LineError<E> {
    #[error("{0}")]
    Body(E),
    /// The line is longer than [`MAX_LINE`].
    #[error("a line of more than {} MiB", MAX_LINE >> 20)]
    TooLong,
}

/// The remaining lines of a body.
pub(crate) struct Lines<B> {
    body: B,
    /// Received bytes of an incomplete line, and how many of them were searched.
    begun: Vec<u8>,
    searched: usize,
    ended: bool,
}

impl<B: Body<Data = Bytes> + Unpin> Lines<B> {
    pub(crate) fn new(body: B) -> Self {
        Self { body, begun: Vec::new(), searched: 0, ended: false }
    }

    /// The next line without its end; `None` at the end of the body. Calls `arrived` for each piece of the body.
    /// Cancel safe.
    pub(crate) async fn next(&mut self, arrived: impl Fn()) -> Option<Result<Vec<u8>, LineError<B::Error>>> {
        loop {
            if let Some(end) = self.begun[self.searched..].iter().position(|byte| *byte == b'\n') {
                let rest = self.begun.split_off(self.searched + end + 1);
                let mut line = std::mem::replace(&mut self.begun, rest);
                self.searched = 0;
                line.pop();
                return Some(Ok(line));
            }
            self.searched = self.begun.len();
            if self.ended {
                self.searched = 0;
                return Some(std::mem::take(&mut self.begun)).filter(|last| !last.is_empty()).map(Ok);
            }
            match self.body.frame().await {
                None => self.ended = true,
                Some(Err(error)) => {
                    self.end();
                    return Some(Err(LineError::Body(error)));
                }
                Some(Ok(frame)) => {
                    arrived();
                    let data = frame.into_data().unwrap_or_else(|_| Bytes::new());
                    // Allows for the line break after the longest line.
                    if self.begun.len() + data.len() > MAX_LINE + 1 && !data.contains(&b'\n') {
                        self.end();
                        return Some(Err(LineError::TooLong));
                    }
                    self.begun.extend_from_slice(&data);
                }
            }
        }
    }

    fn end(&mut self) {
        (self.begun, self.searched, self.ended) = (Vec::new(), 0, true);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::cell::Cell;
    use std::convert::Infallible;

    use futures_util::stream;
    use http_body_util::StreamBody;
    use hyper::body::Frame;

    use super::*;

    /// The lines of a body in these pieces, the error at its end, and the number of pieces read.
    async fn read(pieces: Vec<Vec<u8>>) -> (Vec<String>, Option<String>, usize) {
        let frames = pieces.into_iter().map(|piece| Ok::<_, Infallible>(Frame::data(Bytes::from(piece))));
        let mut lines = Lines::new(StreamBody::new(stream::iter(frames)));
        let (mut whole, count) = (Vec::new(), Cell::new(0));
        loop {
            match lines.next(|| count.set(count.get() + 1)).await {
                None => return (whole, None, count.get()),
                Some(Ok(line)) => whole.push(String::from_utf8(line).unwrap()),
                Some(Err(error)) => {
                    assert!(lines.next(|| ()).await.is_none(), "nothing comes after an error");
                    return (whole, Some(error.to_string()), count.get());
                }
            }
        }
    }

    #[tokio::test]
    async fn lines_come_however_their_body_is_cut() {
        let pieces = |text: &str| text.split('|').map(|piece| piece.as_bytes().to_vec()).collect::<Vec<_>>();
        for (text, expected) in [
            ("a\nb\n", vec!["a", "b"]),
            ("a|b|\n|c\nd\n\n", vec!["ab", "c", "d", ""]),
            ("a\nb", vec!["a", "b"]),
            ("", vec![]),
        ] {
            let (lines, error, _) = read(pieces(text)).await;
            assert_eq!((lines.iter().map(String::as_str).collect::<Vec<_>>(), error), (expected, None), "{text:?}");
        }
    }

    #[tokio::test]
    async fn a_line_without_an_end_is_given_up() {
        const PIECE: usize = 64 << 10;
        let endless = |count: usize| vec![vec![b'x'; PIECE]; count];
        let mut fits = endless(MAX_LINE / PIECE);
        fits.push(b"\n".to_vec());
        let (lines, error, _) = read(fits).await;
        assert_eq!((lines.iter().map(String::len).collect::<Vec<_>>(), error), (vec![MAX_LINE], None));
        let (lines, error, read) = read(endless(4 * MAX_LINE / PIECE)).await;
        assert_eq!((lines.len(), error.as_deref()), (0, Some("a line of more than 16 MiB")));
        assert!(read * PIECE <= MAX_LINE + 2 * PIECE, "{read} pieces were read");
    }
}
