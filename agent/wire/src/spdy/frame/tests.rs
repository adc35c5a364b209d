//! Frames that are written and read back, and those of a hostile peer.

use super::*;

fn read(bytes: &[u8]) -> Result<Vec<Frame>, FrameError> {
    let (mut decoder, mut input) = (Decoder::default(), BytesMut::from(bytes));
    let mut frames = Vec::new();
    while let Some(frame) = decoder.next(&mut input)? {
        frames.push(frame);
    }
    Ok(frames)
}

fn frames() -> Vec<Frame> {
    let headers = Headers::new(&[("streamtype", "data"), ("port", "80"), ("requestid", "1")]);
    vec![
        Frame::Open { id: 1, headers: headers.clone(), fin: false },
        Frame::Open { id: 3, headers: Headers::default(), fin: true },
        Frame::Reply { id: 1, headers: Headers::default(), fin: false },
        Frame::Data { id: 1, data: Bytes::from_static(b"hello"), fin: false },
        Frame::Data { id: 1, data: Bytes::new(), fin: true },
        Frame::Headers { id: 1, headers, fin: true },
        Frame::Reset { id: 3, status: Status::Cancel as u32 },
        Frame::Ping(7),
        Frame::GoAway { last: 3 },
    ]
}

fn written(frames: &[Frame]) -> BytesMut {
    let (mut encoder, mut output) = (Encoder::default(), BytesMut::new());
    frames.iter().for_each(|frame| encoder.write(frame, &mut output));
    output
}

#[test]
fn what_is_written_is_read() {
    let bytes = written(&frames());
    assert_eq!(read(&bytes), Ok(frames()));
    check(&bytes);
    for end in 0..bytes.len() {
        assert!(read(&bytes[..end]).is_ok_and(|read| read.len() < frames().len()), "{end}");
    }
}

#[test]
fn data_is_handed_on_as_it_arrives() {
    let mut decoder = Decoder::default();
    let mut input = BytesMut::from(&[0, 0, 0, 5, 1, 0xff, 0xff, 0xff][..]);
    assert_eq!(decoder.next(&mut input), Ok(None), "16 MiB are announced, and none of them are waited for");
    input.extend_from_slice(b"ab");
    let piece = |data: &'static [u8]| Ok(Some(Frame::Data { id: 5, data: Bytes::from_static(data), fin: false }));
    assert_eq!(decoder.next(&mut input), piece(b"ab"));
    assert_eq!(decoder.next(&mut input), Ok(None));
    input.extend_from_slice(&vec![b'x'; 0xff_ffff - 3]);
    while let Some(frame) = decoder.next(&mut input).unwrap() {
        assert!(matches!(frame, Frame::Data { data, fin: false, .. } if data.len() <= MAX_DATA));
    }
    input.extend_from_slice(b"z");
    assert_eq!(decoder.next(&mut input), Ok(Some(Frame::Data { id: 5, data: Bytes::from_static(b"z"), fin: true })));
}

#[test]
fn frames_that_mean_nothing_here_are_skipped() {
    let settings = [0x80, 3, 0, 4, 0, 0, 0, 12, 0, 0, 0, 1, 0, 0, 0, 7, 0, 0, 0, 0];
    let window = [0x80, 3, 0, 9, 0, 0, 0, 8, 0, 0, 0, 1, 0, 1, 0, 0];
    let unknown = [0x80, 3, 0x7f, 0xff, 0xff, 0, 0, 1, 0];
    let bytes = [&settings[..], &window, &unknown, &[0x80, 3, 0, 6, 0, 0, 0, 4, 0, 0, 0, 1]].concat();
    assert_eq!(read(&bytes), Ok(vec![Frame::Other, Frame::Other, Frame::Other, Frame::Ping(1)]));
}

#[test]
fn hostile_frames_end_the_connection() {
    let control = |kind: u8, content: &[u8]| {
        [&[0x80, 3, 0, kind, 0, 0, 0, u8::try_from(content.len()).unwrap()], content].concat()
    };
    let table: [(&str, Vec<u8>, FrameError); 17] = [
        ("HTTP", b"\xc7ET / HTTP/1.1\r\n".to_vec(), FrameError::Version),
        ("SPDY/2", vec![0x80, 2, 0, 1, 0, 0, 0, 0], FrameError::Version),
        ("a long control frame", vec![0x80, 3, 0, 1, 0, 0xff, 0xff, 0xff], FrameError::TooLarge(0xff_ffff)),
        ("one just too long", vec![0x80, 3, 0, 4, 0, 0, 0x40, 1], FrameError::TooLarge(MAX_CONTROL + 1)),
        ("data of no stream", vec![0, 0, 0, 0, 0, 0, 0, 0], FrameError::Malformed(0)),
        ("an empty SYN_STREAM", control(1, &[]), FrameError::Malformed(1)),
        ("a SYN_STREAM of no stream", control(1, &[0; 12]), FrameError::Malformed(1)),
        ("a short SYN_STREAM", control(1, &[0, 0, 0, 1, 0, 0, 0, 0, 0]), FrameError::Malformed(1)),
        ("a SYN_STREAM without headers", control(1, &[0, 0, 0, 1, 0, 0, 0, 0, 0, 0]), HeaderError::Compression.into()),
        ("headers that cannot be inflated", control(8, &[0, 0, 0, 1, 9, 9, 9]), HeaderError::Compression.into()),
        ("a SYN_REPLY of no stream", control(2, &[0x80, 0, 0, 0, 0x78]), FrameError::Malformed(2)),
        ("a short RST_STREAM", control(3, &[0, 0, 0, 1, 0]), FrameError::Malformed(3)),
        ("a long RST_STREAM", control(3, &[0, 0, 0, 1, 0, 0, 0, 1, 0]), FrameError::Malformed(3)),
        ("an empty PING", control(6, &[]), FrameError::Malformed(6)),
        ("PING 0", control(6, &[0; 4]), FrameError::Malformed(6)),
        ("a short GOAWAY", control(7, &[0; 4]), FrameError::Malformed(7)),
        ("a long GOAWAY", control(7, &[0; 9]), FrameError::Malformed(7)),
    ];
    for (what, bytes, expected) in table {
        assert_eq!(read(&bytes), Err(expected), "{what}");
        check(&bytes);
    }
}
