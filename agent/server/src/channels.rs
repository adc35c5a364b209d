//! Kubernetes' channel protocols over a WebSocket: a message is one byte for the channel, then data; in their base64 form one
//! digit for the channel, then the data in base64. What the channels are for is up to `/exec` and `/portForward`.

mod sender;

use axum::body::Bytes;
use axum::extract::ws::{Message, WebSocketUpgrade};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

pub(super) use sender::send_queued;

/// What a WebSocket reads at once, in bytes: memory that each one holds.
pub(super) const READ_BUFFER: usize = 16 << 10;
/// The largest message accepted from a client, and the largest part of one; kubectl's are 32 KiB.
pub(super) const MAX_MESSAGE: usize = 1 << 20;

/// The WebSocket with these bounds.
pub(super) fn bounded(upgrade: WebSocketUpgrade) -> WebSocketUpgrade {
    let upgrade = upgrade.max_message_size(MAX_MESSAGE).max_frame_size(MAX_MESSAGE);
    upgrade.read_buffer_size(READ_BUFFER).write_buffer_size(0)
}

/// How messages are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Encoding {
    /// As bytes.
    Binary,
    /// In base64, as text.
    Base64,
}

impl Encoding {
    /// How many channels there can be: in base64 the character of each is one of ASCII's.
    pub(super) fn channels(self) -> usize {
        match self {
            Self::Binary => 256,
            Self::Base64 => 128 - usize::from(b'0'),
        }
    }

    /// The channel and the data of a client's message; `None`: it has none, or they are not written this way.
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
        // As Kubernetes documents it.
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
