//! Kubernetes' channel protocols over a WebSocket. A message is one byte for the channel, then data; in the base64
//! form it is one digit for the channel, then the data in base64. `/exec` and `/portForward` give the channels their
//! meaning.

mod sender;

use axum::body::Bytes;
use axum::extract::ws::{Message, WebSocketUpgrade};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

pub(super) use sender::send_queued;

/// The read buffer of each WebSocket, in bytes.
pub(super) const READ_BUFFER: usize = 16 << 10;
/// The largest message, and the largest fragment, that a client may send, in bytes; kubectl's are 32 KiB.
pub(super) const MAX_MESSAGE: usize = 1 << 20;

/// Applies these bounds to a WebSocket.
pub(super) fn bounded(upgrade: WebSocketUpgrade) -> WebSocketUpgrade {
    let upgrade = upgrade.max_message_size(MAX_MESSAGE).max_frame_size(MAX_MESSAGE);
    upgrade.read_buffer_size(READ_BUFFER).write_buffer_size(0)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Encoding {
    Binary,
    /// Text frames, the data in base64.
    Base64,
}

impl Encoding {
    /// The most channels: the base64 form writes the channel as one ASCII character.
    pub(super) fn channels(self) -> usize {
        match self {
            Self::Binary => 256,
            Self::Base64 => 128 - usize::from(b'0'),
        }
    }

    /// The channel and the data of a client's message; `None` if it has no channel or is in the other encoding.
    pub(super) fn decode(self, message: Message) -> Option<(u8, Bytes)> {
        let content: Bytes = match message {
            Message::Binary(data) => data,
            Message::Text(text) => text.into(),
            Message::Ping(_) | Message::Pong(_) | Message::Close(_) => return None,
        };
        let (first, data) = content.split_first()?;
        match self {
            Self::Binary => Some((*first, content.slice(1..))),
            Self::Base64 => Some((first.wrapping_sub(b'0'), STANDARD.decode(data).ok()?.into())),
        }
    }

    /// The message that carries `data` on `channel`, one of [`Self::channels`].
    pub(super) fn encode(self, channel: u8, data: &[u8]) -> Message {
        match self {
            Self::Binary => Message::Binary([&[channel], data].concat().into()),
            Self::Base64 => {
                let mut text = String::from(char::from(b'0'.wrapping_add(channel)));
                STANDARD.encode_string(data, &mut text);
                Message::Text(text.into())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_as_they_are_written() {
        for encoding in [Encoding::Binary, Encoding::Base64] {
            let last = (encoding.channels() - 1) as u8;
            for (channel, data) in [(0, &b""[..]), (3, b"foo\n"), (4, &[0, 255, 128]), (last, b"last")] {
                let read = encoding.decode(encoding.encode(channel, data));
                assert_eq!(read, Some((channel, Bytes::copy_from_slice(data))), "{encoding:?}");
            }
        }
        // The example in Kubernetes' documentation.
        assert_eq!(Encoding::Base64.encode(0, b"foo\n"), Message::Text("0Zm9vCg==".into()));
        assert_eq!(Encoding::Binary.decode(Message::Text("a".into())), Some((b'a', Bytes::new())));
    }

    #[test]
    fn what_is_no_message_of_a_channel_is_none() {
        for none in [Message::Binary(Bytes::new()), Message::Ping(Bytes::from_static(b"0")), Message::Close(None)] {
            assert_eq!((Encoding::Binary.decode(none.clone()), Encoding::Base64.decode(none)), (None, None));
        }
        for none in ["0?", "0Zg", "0Zm9v\n"] {
            assert_eq!(Encoding::Base64.decode(Message::Text(none.into())), None, "{none}");
        }
    }
}
