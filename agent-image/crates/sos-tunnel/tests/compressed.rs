//! Compressed data over streams that are slower than the hosts, and data that stays uncompressed.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use common::*;
use sos_tunnel::{Cause, Stats};
use sos_wire::stream::handshake::{WELCOME_LEN, encode_confirm};
use sos_wire::{
    Backlog, Body, BootId, Capabilities, Decoder, EndReason, Frame, Hello, Key, KeyId, Open, SessionNumber,
    SessionUuid, SiteId,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const BULK: usize = 12 << 20;
/// Bytes per second of each of four streams: so slow that even a build without optimization compresses faster.
const SLOW: u64 = 1_250_000;

fn compressing() -> Setup {
    Setup { compress: (true, true), pacing: Some(SLOW), ..Setup::default() }
}

fn noise(len: usize) -> Vec<u8> {
    std::iter::repeat_with(rand::random::<u64>).flat_map(u64::to_be_bytes).take(len).collect()
}

/// Sends the bytes from client to server, and calls `midway` after the first half; returns true if all bytes arrived.
async fn upload(net: &Net, data: &[u8], midway: impl Fn()) -> bool {
    let (mut client, mut server, session) = net.pair().await;
    let (first, second) = data.split_at(data.len() / 2);
    let up = async {
        client.write_all(first).await.unwrap();
        midway();
        client.write_all(second).await.unwrap();
        client.shutdown().await.unwrap();
    };
    let mut received = Vec::with_capacity(data.len());
    let down = async {
        server.read_to_end(&mut received).await.unwrap();
        server.shutdown().await.unwrap();
    };
    soon(async { tokio::join!(up, down) }).await;
    assert_eq!(soon(session).await.reason, EndReason::Finished);
    received == data
}

/// Number of bytes sent compressed, their compressed size, and number of all bytes sent.
fn compressed(stats: &Stats) -> (usize, usize, usize) {
    let count = |n| usize::try_from(n).unwrap();
    (
        count(stats.compressed_bytes_total),
        count(stats.compressed_wire_bytes_total),
        count(stats.bytes_sent_total),
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compressible_data_takes_fewer_bytes_on_the_wire() {
    let net = Net::new(compressing()).await;
    assert!(upload(&net, &pattern(BULK), || ()).await);
    let stats = net.near.stats();
    let (bytes, wire, all) = compressed(&stats);
    assert_eq!(all, BULK);
    assert!(bytes > BULK / 2 && wire < bytes / 2, "{stats:?}");
    assert!(stats.compress_time_total > Duration::ZERO);
    let path = net.near.paths()[0];
    assert!(path.sent < BULK as u64 / 2, "bytes that the streams have carried: {path:?}");
    assert_eq!(compressed(&net.far.stats()), (0, 0, 0));
    net.nothing_left().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compressed_data_survives_the_loss_of_streams() {
    let net = Net::new(compressing()).await;
    let cuttable = Arc::clone(&net.cuttable);
    assert!(upload(&net, &pattern(BULK), || cuttable.cut(100)).await);
    let stats = net.near.stats();
    assert!(stats.bytes_resent_total[Cause::Died] > 0 && stats.compressed_bytes_total > 0, "{stats:?}");
    net.nothing_left().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compressed_data_may_be_encrypted_as_well() {
    let net = Net::new(Setup { encrypted: (true, true), ..compressing() }).await;
    assert!(upload(&net, &pattern(BULK / 2), || ()).await);
    let stats = net.near.stats();
    assert!(stats.streams_encrypted == 4 && stats.compressed_bytes_total > 0, "{stats:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_end_compresses_by_its_own_configuration() {
    let net = Net::new(Setup { compress: (true, false), ..compressing() }).await;
    assert!(upload(&net, &pattern(BULK / 2), || ()).await);
    assert!(net.near.stats().compressed_bytes_total > 0);
    let net = Net::new(Setup { compress: (false, true), ..compressing() }).await;
    assert!(upload(&net, &pattern(BULK / 2), || ()).await);
    assert_eq!(net.near.stats().compressed_bytes_total, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn incompressible_data_is_not_compressed() {
    let net = Net::new(compressing()).await;
    assert!(upload(&net, &noise(BULK / 2), || ()).await);
    let stats = net.near.stats();
    assert_eq!(stats.compressed_bytes_total, 0, "{stats:?}");
}

/// A stream of an older agent, with no capabilities.
async fn old_stream(net: &Net) -> TcpStream {
    let (key_id, key) = (KeyId::new(1).unwrap(), Key::new([7; 32]));
    let capabilities = Capabilities::default();
    let (site, boot, nonce) = (SiteId(1), BootId(1), [5; 16]);
    let hello =
        Hello { key_id, site, label: 0, stream_no: 77, agent: NEAR, boot, nonce, capabilities }.encode();
    let mut socket = TcpStream::connect(net.stream_address).await.unwrap();
    socket.write_all(&hello).await.unwrap();
    let mut welcome = [0; WELCOME_LEN];
    soon(socket.read_exact(&mut welcome)).await.unwrap();
    socket.write_all(&encode_confirm(key_id, &key, &hello, &welcome)).await.unwrap();
    socket
}

/// Opens a session to a server over a stream, as an agent does.
async fn open(stream: &mut TcpStream) -> TcpStream {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let std::net::SocketAddr::V4(address) = server.local_addr().unwrap() else { panic!("IPv4 only") };
    let (session, client) = (SessionUuid([3; 16]), "127.0.0.1:9".parse().unwrap());
    let open = Open {
        session,
        client,
        server: address,
        marks: sos_wire::Marks::default(),
        block_bytes: 0,
        queue_bytes: 0,
    };
    say(stream, Body::Open { credit: 1 << 30, open }).await;
    soon(server.accept()).await.unwrap().0
}

async fn say(stream: &mut TcpStream, body: Body) {
    let mut bytes = BytesMut::new();
    Frame { session: SessionNumber::new(1, NEAR, FAR), body }.encode(&mut bytes);
    stream.write_all(&bytes).await.unwrap();
}

/// Reads the next frame of a session.
async fn hear(stream: &mut TcpStream, buffer: &mut BytesMut, decoder: &mut Decoder) -> Body {
    loop {
        match decoder.decode(buffer).unwrap() {
            Some(Frame { session: SessionNumber::NONE, body }) => {
                assert!(!matches!(body, Body::Willing { .. }), "an older agent would close the stream");
            }
            Some(frame) => return frame.body,
            None => assert!(soon(stream.read_buf(buffer)).await.unwrap() > 0, "the stream stays open"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_agent_gets_only_frames_it_knows() {
    let net = Net::unconnected(Setup { near_key: [8; 32], ..compressing() }).await;
    net.far.set_willing(false);
    let mut stream = old_stream(&net).await;
    let mut server = open(&mut stream).await;
    net.far.set_willing(true);
    tokio::spawn(async move {
        server.write_all(&pattern(BULK / 4)).await.unwrap();
        server.shutdown().await.unwrap();
    });
    let (mut buffer, mut decoder, mut received) = (BytesMut::new(), Decoder::default(), BytesMut::new());
    // A retransmitted Fin may arrive before the last Data.
    let mut end = None;
    while end != Some(received.len() as u64) {
        match hear(&mut stream, &mut buffer, &mut decoder).await {
            Body::Data { offset, payload } => {
                // The end of a session that waits for its Ack is retransmitted (frame.md clause 8). There must be no gap, and repeated
                // bytes must be the same.
                let (at, bytes) = (usize::try_from(offset).unwrap(), payload.bytes().unwrap());
                let known = received.len().checked_sub(at).expect("no gap").min(bytes.len());
                assert!(received[at..at + known] == bytes[..known], "other bytes at {at}");
                received.extend_from_slice(&bytes[known..]);
                let (offset, backlog) = (received.len() as u64, Backlog::default());
                say(&mut stream, Body::Ack { offset, credit: 1 << 30, backlog }).await;
            }
            Body::Fin { offset } => end = Some(offset),
            Body::Opened { .. } | Body::Ack { .. } => {}
            other => panic!("not for an older agent: {other:?}"),
        }
    }
    assert!(received == pattern(BULK / 4));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_invalid_compressed_block_resets_the_session_and_not_the_stream() {
    let net = Net::unconnected(Setup { near_key: [8; 32], ..compressing() }).await;
    let mut stream = old_stream(&net).await;
    let _server = open(&mut stream).await;
    say(&mut stream, Body::Compressed { offset: 0, length: 1000, payload: Bytes::from_static(&[7; 20]) })
        .await;
    let (mut buffer, mut decoder) = (BytesMut::new(), Decoder::default());
    loop {
        match hear(&mut stream, &mut buffer, &mut decoder).await {
            Body::Reset { reason } => break assert_eq!(reason, EndReason::InternalLimit),
            Body::Opened { .. } | Body::Ack { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((net.far.stats().streams, net.far.stats().streams_lost_total), (1, 0));
}
