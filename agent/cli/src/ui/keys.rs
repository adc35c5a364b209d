//! Decodes keys from the terminal's bytes. Pure.

/// A key that the screens handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
    /// The arrow keys, and vi's letters.
    Up,
    Down,
    Left,
    Right,
    PageUp,
    PageDown,
    Home,
    End,
    Enter,
    Escape,
    Backspace,
    /// Ctrl with this letter.
    Control(char),
    Char(char),
}

/// The longest escape sequence that is recognized.
const MAX_SEQUENCE: usize = 16;

/// The bytes of an incomplete key.
#[derive(Debug, Default)]
pub(super) struct Keys {
    pending: Vec<u8>,
}

impl Keys {
    /// The keys that these bytes complete.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> Vec<Key> {
        let mut keys = Vec::new();
        for byte in bytes {
            self.pending.push(*byte);
            match parse(&self.pending) {
                Parsed::Partial if self.pending.len() < MAX_SEQUENCE => continue,
                Parsed::Key(key) => keys.push(key),
                Parsed::Two(first, second) => keys.extend([first, second]),
                Parsed::Partial | Parsed::Unknown => {}
            }
            self.pending.clear();
        }
        keys
    }

    /// Whether the next byte decides the meaning of the pending ones.
    pub(super) fn is_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// The key that the pending bytes mean if no byte follows.
    pub(super) fn end(&mut self) -> Option<Key> {
        let alone = self.pending == [ESC];
        self.pending.clear();
        alone.then_some(Key::Escape)
    }
}

enum Parsed {
    Key(Key),
    /// Escape, and a key that does not belong to a sequence.
    Two(Key, Key),
    Partial,
    Unknown,
}

const ESC: u8 = 0x1b;

fn parse(bytes: &[u8]) -> Parsed {
    match *bytes {
        [ESC] | [ESC, b'[' | b'O'] => Parsed::Partial,
        [ESC, ESC] => Parsed::Two(Key::Escape, Key::Escape),
        [ESC, b'[' | b'O', ref rest @ ..] => sequence(rest),
        // This is not Alt: no screen uses it, and the user may type fast.
        [ESC, byte] => match single(byte) {
            Some(key) => Parsed::Two(Key::Escape, key),
            None => Parsed::Unknown,
        },
        [byte] if byte < 0x80 => single(byte).map_or(Parsed::Unknown, Parsed::Key),
        ref text => match std::str::from_utf8(text) {
            Ok(text) => match text.chars().next().filter(|c| !c.is_control()) {
                Some(c) => Parsed::Key(Key::Char(c)),
                None => Parsed::Unknown,
            },
            Err(error) if error.error_len().is_none() => Parsed::Partial,
            Err(_) => Parsed::Unknown,
        },
    }
}

fn sequence(rest: &[u8]) -> Parsed {
    let key = match rest {
        b"A" => Key::Up,
        b"B" => Key::Down,
        b"C" => Key::Right,
        b"D" => Key::Left,
        b"H" | b"1~" | b"7~" => Key::Home,
        b"F" | b"4~" | b"8~" => Key::End,
        b"5~" => Key::PageUp,
        b"6~" => Key::PageDown,
        // Enter on the keypad of a VT100.
        b"M" => Key::Enter,
        [.., last] if (0x40..0x7f).contains(last) => return Parsed::Unknown,
        _ => return Parsed::Partial,
    };
    Parsed::Key(key)
}

fn single(byte: u8) -> Option<Key> {
    Some(match byte {
        b'\r' | b'\n' => Key::Enter,
        0x08 | 0x7f => Key::Backspace,
        1..=26 => Key::Control(char::from(byte - 1 + b'a')),
        0x20..0x7f => Key::Char(char::from(byte)),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_become_keys() {
        for (bytes, expected) in [
            (&b"j\x1b[A\x1bOB"[..], vec![Key::Char('j'), Key::Up, Key::Down]),
            (b"\x1b[5~\x1b[6~\x1b[H\x1b[4~", vec![Key::PageUp, Key::PageDown, Key::Home, Key::End]),
            (b"\r\x7f\x03\x1a", vec![Key::Enter, Key::Backspace, Key::Control('c'), Key::Control('z')]),
            ("é→".as_bytes(), vec![Key::Char('é'), Key::Char('→')]),
            // Unknown sequences and bytes that are not text are ignored.
            (b"\x1b[15;2~q\xff\x00x", vec![Key::Char('q'), Key::Char('x')]),
            (b"\x1bq", vec![Key::Escape, Key::Char('q')]),
        ] {
            assert_eq!(Keys::default().feed(bytes), expected, "{bytes:?}");
            let mut one_by_one = Keys::default();
            let keys: Vec<Key> = bytes.iter().flat_map(|byte| one_by_one.feed(&[*byte])).collect();
            assert_eq!(keys, expected, "{bytes:?}, one by one");
            assert!(!one_by_one.is_pending());
        }
    }

    #[test]
    fn escape_alone_is_a_key_when_nothing_follows() {
        let mut keys = Keys::default();
        assert_eq!(keys.feed(b"\x1b"), []);
        assert!(keys.is_pending());
        assert_eq!(keys.end(), Some(Key::Escape));
        assert_eq!(keys.feed(b"\x1b["), []);
        assert_eq!((keys.end(), keys.is_pending()), (None, false), "half a sequence is no key");
        assert_eq!(keys.feed(&[b"\x1b[".as_slice(), &[b'1'; 100]].concat()).len(), 100 + 2 - MAX_SEQUENCE, "bounded");
    }
}
