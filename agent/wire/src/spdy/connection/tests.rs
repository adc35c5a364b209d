//! Both sides over an in-memory pipe.

use tokio::io::{DuplexStream, duplex};

use super::*;

/// The idle timeout of the connections.
const IDLE_TIMEOUT: Duration = Duration::from_secs(4 * 60 * 60);

/// A server and a client, each with its driver in a task.
fn pair() -> (Handle, Handle) {
    let (near, far) = duplex(1 << 10);
    let start = |io: DuplexStream, role| {
        let (handle, driver) = connection(io, role, Some(IDLE_TIMEOUT));
        tokio::spawn(driver);
        handle
    };
    (start(near, Role::Server), start(far, Role::Client))
}

async fn all(input: &mut Input) -> Vec<u8> {
    let mut data = Vec::new();
    while let Some(piece) = input.read().await {
        data.extend_from_slice(&piece);
    }
    data
}

#[tokio::test]
async fn streams_carry_data_both_ways_and_end_each_by_itself() {
    let (mut server, client) = pair();
    let sent: Vec<u8> = (0..300_000_u32).map(|number| number as u8).collect();
    for round in 0..3_u32 {
        let headers = Headers::new(&[("round", &round.to_string())]);
        let mut near = client.open(headers.clone()).await.unwrap();
        let mut far = server.accept().await.unwrap();
        assert_eq!((far.id, &far.headers), (1 + 2 * round, &headers));
        let up = async {
            near.output.write(Bytes::from(sent.clone())).await.unwrap();
            near.output.finish().await;
        };
        let (_, received) = tokio::join!(up, all(&mut far.input));
        assert!(received == sent, "{} bytes", received.len());
        far.output.write(Bytes::from_static(b"answer")).await.unwrap();
        far.output.finish().await;
        assert_eq!(all(&mut near.input).await, b"answer");
    }
}

#[tokio::test]
async fn a_reset_ends_one_stream_and_a_close_all_of_them() {
    let (mut server, client) = pair();
    let (first, mut second) =
        (client.open(Headers::default()).await.unwrap(), client.open(Headers::default()).await.unwrap());
    let (mut received, mut two) = (server.accept().await.unwrap(), server.accept().await.unwrap());
    first.output.reset(Status::Cancel).await;
    received.reset.cancelled().await;
    assert_eq!(received.input.read().await, None);
    assert!(!two.reset.is_cancelled());

    two.output.write(Bytes::from_static(b"last")).await.unwrap();
    server.close().await;
    assert_eq!(all(&mut second.input).await, b"last");
    assert_eq!(two.input.read().await, None);
    assert!(client.open(Headers::default()).await.is_err());
}

#[tokio::test]
async fn a_stream_that_is_not_read_holds_its_peer_up_and_one_that_is_dropped_does_not() {
    let (mut server, client) = pair();
    let stream = client.open(Headers::default()).await.unwrap();
    let unread = server.accept().await.unwrap();
    let chunk = Bytes::from(vec![0; MAX_DATA]);
    let endless = async {
        let mut sent = 0;
        loop {
            let written = stream.output.write(chunk.clone());
            match tokio::time::timeout(Duration::from_secs(3_600), written).await {
                Ok(written) => written.unwrap(),
                Err(_) => return sent,
            }
            sent += chunk.len();
        }
    };
    tokio::time::pause();
    let sent = endless.await;
    assert!((MAX_UNREAD..2 * MAX_UNREAD).contains(&sent), "{sent} bytes were taken");

    drop(unread);
    for _ in 0..100 {
        stream.output.write(chunk.clone()).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_is_gone_is_noticed_while_its_data_is_unread() {
    let (near, far) = duplex(1 << 10);
    let (mut server, driver) = connection(near, Role::Server, Some(IDLE_TIMEOUT));
    let served = tokio::spawn(driver);
    let (client, driver) = connection(far, Role::Client, Some(IDLE_TIMEOUT));
    let peer = tokio::spawn(driver);
    let stream = client.open(Headers::default()).await.unwrap();
    let _unread = server.accept().await.unwrap();
    let chunk = Bytes::from(vec![0; MAX_DATA]);
    while tokio::time::timeout(Duration::from_secs(1), stream.output.write(chunk.clone())).await.is_ok() {}
    peer.abort();
    tokio::time::timeout(2 * PING_INTERVAL, served).await.unwrap().unwrap();
}

#[tokio::test]
async fn there_are_no_more_streams_than_allowed_and_those_that_ended_do_not_count() {
    let (mut server, client) = pair();
    let mut taken = Vec::new();
    for _ in 0..MAX_STREAMS {
        taken.push((client.open(Headers::default()).await.unwrap(), server.accept().await.unwrap()));
    }
    assert!(client.open(Headers::default()).await.is_err(), "a client does not even ask");
    taken.pop();
    assert!(client.open(Headers::default()).await.is_ok());
}

#[tokio::test]
async fn a_peer_that_counts_streams_wrongly_or_pings_is_answered() {
    let (io, mut peer) = duplex(1 << 16);
    let (_server, driver) = connection(io, Role::Server, Some(IDLE_TIMEOUT));
    tokio::spawn(driver);
    let (mut encoder, mut output) = (Encoder::default(), BytesMut::new());
    let open = |id| Frame::Open { id, headers: Headers::default(), fin: false };
    let data = Frame::Data { id: 99, data: Bytes::from_static(b"to nobody"), fin: true };
    for frame in [open(2), open(3), open(3), open(1), data, Frame::Ping(2), Frame::Ping(1)] {
        encoder.write(&frame, &mut output);
    }
    peer.write_all(&output).await.unwrap();
    let (mut decoder, mut input, mut answers) = (Decoder::default(), BytesMut::new(), Vec::new());
    while answers.last() != Some(&Frame::Ping(1)) {
        peer.read_buf(&mut input).await.unwrap();
        while let Some(frame) = decoder.next(&mut input).unwrap() {
            answers.push(frame);
        }
    }
    let reset = |id| Frame::Reset { id, status: Status::Protocol as u32 };
    let reply = Frame::Reply { id: 3, headers: Headers::default(), fin: false };
    assert_eq!(answers, [reset(2), reply, reset(3), reset(1), Frame::Ping(1)]);
}

#[tokio::test(start_paused = true)]
async fn a_silent_connection_ends_and_an_active_one_does_not() {
    let (io, mut peer) = duplex(1 << 16);
    let (mut server, driver) = connection(io, Role::Server, Some(IDLE_TIMEOUT));
    let driver = tokio::spawn(driver);
    let mut encoder = Encoder::default();
    for id in [1, 3, 5] {
        tokio::time::sleep(IDLE_TIMEOUT / 2).await;
        let mut output = BytesMut::new();
        encoder.write(&Frame::Open { id, headers: Headers::default(), fin: false }, &mut output);
        peer.write_all(&output).await.unwrap();
        server.accept().await.unwrap();
    }
    assert!(!driver.is_finished());
    // Pings do not count as use.
    assert!(server.accept().await.is_none());
    driver.await.unwrap();
}
