//! Encrypted streams, switching encryption on and off, and connections that imitate encrypted streams.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::*;
use sos_tunnel::{PeerConfig, Timing};
use sos_wire::stream::handshake::WELCOME_LEN;
use sos_wire::{BootId, Capabilities, EndReason, Hello, Key, KeyId, SiteId, Welcome, WelcomeStatus};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const BULK: usize = 24 << 20;
const BOTH: (bool, bool) = (true, true);

fn encrypted() -> Setup {
    Setup { encrypted: BOTH, ..Setup::default() }
}

/// Short intervals, so that changes take effect quickly.
fn quick() -> Timing {
    let timing = Setup::default().timing;
    Timing { ping: Duration::from_millis(50), switch: Duration::from_millis(300), ..timing }
}

/// Sends [`BULK`] bytes in each direction, and calls `between` after each part; returns true if all bytes arrived.
async fn transfer(net: &Net, parts: usize, between: impl Fn(usize)) -> bool {
    let (client, server, session) = net.pair().await;
    let data = pattern(BULK);
    let (mut client_read, mut client_write) = client.into_split();
    let (mut server_read, mut server_write) = server.into_split();
    let up = async {
        for (i, part) in data.chunks(BULK / parts).enumerate() {
            client_write.write_all(part).await.unwrap();
            between(i);
        }
        client_write.shutdown().await.unwrap();
    };
    let down = async {
        server_write.write_all(&data).await.unwrap();
        server_write.shutdown().await.unwrap();
    };
    let (mut at_client, mut at_server) = (Vec::with_capacity(BULK), Vec::with_capacity(BULK));
    let reads = async {
        tokio::join!(client_read.read_to_end(&mut at_client), server_read.read_to_end(&mut at_server))
    };
    let (.., (a, b)) = soon(async { tokio::join!(up, down, reads) }).await;
    a.and(b).unwrap();
    drop((client_read, client_write, server_read, server_write));
    assert_eq!(soon(session).await.reason, EndReason::Finished);
    at_client == data && at_server == data
}

fn all_encrypted(net: &Net, n: u64) -> bool {
    [&net.near, &net.far].iter().all(|tunnel| {
        let stats = tunnel.stats();
        (stats.streams, stats.streams_encrypted) == (n, n)
    })
}

fn none_encrypted(net: &Net, n: u64) -> bool {
    [&net.near, &net.far].iter().all(|tunnel| {
        let stats = tunnel.stats();
        (stats.streams, stats.streams_encrypted) == (n, 0)
    })
}

/// Sets encryption in one end's configuration.
type Says = fn(&Net, bool);

fn near_says(net: &Net, encrypted: bool) {
    net.near.set_peers(vec![PeerConfig { encrypted, ..peer(FAR, net.stream_address.port(), 4) }]);
}

fn far_says(net: &Net, encrypted: bool) {
    net.far.set_peers(vec![PeerConfig { encrypted, ..peer(NEAR, 1, 4) }]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bulk_goes_both_ways_over_encrypted_streams() {
    let net = Net::new(encrypted()).await;
    assert!(all_encrypted(&net, 4));
    assert!(transfer(&net, 1, |_| ()).await);
    net.nothing_left().await;
    assert_eq!(net.near.stats().handshakes_failed_total, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transfer_survives_the_loss_of_encrypted_streams() {
    let net = Net::new(encrypted()).await;
    let cuttable = Arc::clone(&net.cuttable);
    assert!(transfer(&net, 4, |i| cuttable.cut(if i == 2 { 100 } else { 1 })).await);
    assert!(net.near.stats().streams_lost_total >= 4);
    net.nothing_left().await;
    until(|| all_encrypted(&net, 4)).await;
}

#[tokio::test]
async fn small_messages_are_sent_immediately() {
    let net = Net::new(encrypted()).await;
    let (mut client, mut server, _session) = net.pair().await;
    for _ in 0..50 {
        client.write_all(b"ping").await.unwrap();
        soon(server.read_exact(&mut [0; 4])).await.unwrap();
        server.write_all(b"pong").await.unwrap();
        soon(client.read_exact(&mut [0; 4])).await.unwrap();
    }
}

#[tokio::test]
async fn a_wrong_key_makes_no_encrypted_stream() {
    let timing = Timing { handshake: Duration::from_millis(300), ..Setup::default().timing };
    let net = Net::unconnected(Setup { near_key: [8; 32], timing, ..encrypted() }).await;
    until(|| net.near.stats().handshakes_failed_total >= 4 && net.far.stats().handshakes_failed_total >= 4)
        .await;
    assert_eq!((net.near.stats().streams_total, net.far.stats().streams_total), (0, 0));
    assert_eq!(net.far.stats().plain_refused_total, 0, "no plain stream is dialed");
}

#[tokio::test]
async fn the_dialer_names_the_key_it_uses() {
    let net = Net::new(Setup { key_id: 2, ..encrypted() }).await;
    assert!(all_encrypted(&net, 4));
    let net = Net::unconnected(Setup { key_id: 3, ..encrypted() }).await;
    until(|| net.far.stats().handshakes_failed_total >= 4).await;
    assert_eq!(net.far.stats().streams_total, 0, "a key that the acceptor does not have");
}

#[tokio::test]
async fn either_end_alone_makes_streams_encrypted() {
    for encrypted in [(true, false), (false, true)] {
        let net = Net::new(Setup { encrypted, ..Setup::default() }).await;
        assert!(all_encrypted(&net, 4), "{encrypted:?}");
        let refused = net.far.stats().plain_refused_total;
        assert_eq!(
            refused,
            if encrypted.1 { 4 } else { 0 },
            "an acceptor that requires encryption refuses plain streams first"
        );
    }
}

#[tokio::test]
async fn a_plain_stream_is_refused_where_encryption_is_required() {
    let net = Net::new(encrypted()).await;
    let hello = Hello {
        key_id: KeyId::new(1).unwrap(),
        site: SiteId(1),
        label: 0,
        stream_no: 77,
        agent: NEAR,
        boot: BootId(1),
        nonce: [5; 16],
        capabilities: Capabilities::default(),
    }
    .encode();
    let mut socket = TcpStream::connect(net.stream_address).await.unwrap();
    socket.write_all(&hello).await.unwrap();
    let mut answer = [0; WELCOME_LEN];
    soon(socket.read_exact(&mut answer)).await.unwrap();
    let welcome = Welcome::verify(&answer, &Key::new([7; 32]), &hello).unwrap();
    assert_eq!(welcome.status, WelcomeStatus::EncryptedOnly);
    assert_eq!(soon(socket.read(&mut [0])).await.unwrap_or(0), 0);
    assert_eq!((net.far.stats().plain_refused_total, net.far.stats().streams), (1, 4));
}

#[tokio::test]
async fn half_handshakes_are_bounded_in_time_and_number() {
    let timing = Timing { handshake: Duration::from_secs(1), ..Timing::default() };
    let net = Net::new(Setup { timing, ..encrypted() }).await;
    let (begun, mut half) = (Instant::now(), Vec::new());
    for _ in 0..70 {
        let mut socket = TcpStream::connect(net.stream_address).await.unwrap();
        // The header of a record that never arrives completely, and a part of the record.
        socket.write_all(&[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3]).await.unwrap();
        half.push(socket);
    }
    for socket in &mut half {
        assert_eq!(soon(socket.read(&mut [0])).await.unwrap_or(0), 0);
    }
    assert!(begun.elapsed() >= timing.handshake, "the last handshakes had their full time");
    until(|| net.far.stats().handshakes_failed_total >= 64).await;
    assert!(all_encrypted(&net, 4));
}

#[tokio::test]
async fn garbage_like_tls_is_closed() {
    let net = Net::new(encrypted()).await;
    let mut garbage = TcpStream::connect(net.stream_address).await.unwrap();
    garbage.write_all(&[0x16; 4096]).await.unwrap();
    let _ = soon(garbage.read_to_end(&mut Vec::new())).await;
    assert_eq!(net.far.stats().handshakes_failed_total, 1);
    assert!(all_encrypted(&net, 4));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn encryption_is_switched_on_and_off_under_a_running_session() {
    let net = Net::new(Setup { timing: quick(), ..Setup::default() }).await;
    let (mut client, mut server, session) = net.pair().await;
    let mut talk = async |net: &Net, what: &str| {
        let data = pattern(1 << 20);
        let (sent, mut received) = (data.clone(), vec![0; data.len()]);
        let both = async { tokio::join!(client.write_all(&sent), server.read_exact(&mut received)) };
        let (sent, got) = soon(both).await;
        sent.and(got.map(drop)).unwrap();
        assert!(received == data, "{what}");
        assert_eq!(net.near.stats().sessions, 1, "{what}");
    };
    talk(&net, "plain").await;
    for dialer_first in [true, false] {
        let (first, second): (Says, Says) =
            if dialer_first { (near_says, far_says) } else { (far_says, near_says) };
        first(&net, true);
        until(|| all_encrypted(&net, 4)).await;
        talk(&net, "one end requires encryption").await;
        second(&net, true);
        talk(&net, "both ends require encryption").await;
        first(&net, false);
        talk(&net, "one end still requires encryption").await;
        assert!(net.near.stats().streams_encrypted >= 4, "while one end requires encryption");
        second(&net, false);
        until(|| none_encrypted(&net, 4)).await;
        talk(&net, "plain again").await;
    }
    drop((client, server));
    let _ = soon(session).await;
}

#[tokio::test]
async fn a_single_stream_is_replaced_without_losing_the_peer() {
    let net = Net::new(Setup { streams: 1, timing: quick(), ..Setup::default() }).await;
    let mut live = [net.near.willing_peers(), net.far.willing_peers()];
    live.iter_mut().for_each(|live| _ = live.borrow_and_update());
    let there = peer(FAR, net.stream_address.port(), 1);
    net.near.set_peers(vec![PeerConfig { encrypted: true, ..there }]);
    until(|| all_encrypted(&net, 1)).await;
    assert!(live.iter().all(|live| !live.has_changed().unwrap()), "clients would be plain for a moment");
}

#[tokio::test]
async fn plain_streams_end_although_the_dialer_cannot_replace_them() {
    let net = Net::new(Setup { timing: quick(), near_key: [7; 32], ..Setup::default() }).await;
    net.cuttable.refuses.store(true, std::sync::atomic::Ordering::SeqCst);
    far_says(&net, true);
    until(|| net.far.stats().streams == 0).await;
    assert!(!net.far.peer_alive(NEAR));
}

#[tokio::test]
async fn plain_streams_are_closed_immediately_if_sessions_must_be_encrypted() {
    // The dialer cannot open new streams here: without streams, no session is accepted.
    let net = Net::new(Setup { near_key: [7; 32], ..Setup::default() }).await;
    net.cuttable.refuses.store(true, std::sync::atomic::Ordering::SeqCst);
    let (_client, mut server, session) = net.pair().await;
    let only = PeerConfig { encrypted: true, encrypted_only: true, ..peer(NEAR, 1, 4) };
    net.far.set_peers(vec![only]);
    assert!(!net.far.peer_alive(NEAR), "no session may start on a stream that is being closed");
    until(|| net.far.stats().streams == 0).await;
    drop(session);
    let mut byte = [0; 1];
    assert!(soon(server.read_exact(&mut byte)).await.is_err(), "the session has ended");
}

#[tokio::test]
async fn sessions_continue_over_encrypted_streams_established_immediately() {
    let net = Net::new(Setup { timing: quick(), ..Setup::default() }).await;
    let (mut client, mut server, session) = net.pair().await;
    let port = net.stream_address.port();
    let only = |peer: PeerConfig| PeerConfig { encrypted: true, encrypted_only: true, ..peer };
    net.near.set_peers(vec![only(peer(FAR, port, 4))]);
    net.far.set_peers(vec![only(peer(NEAR, 1, 4))]);
    until(|| all_encrypted(&net, 4)).await;
    client.write_all(b"ping").await.unwrap();
    soon(server.read_exact(&mut [0; 4])).await.unwrap();
    drop((client, server));
    let _ = soon(session).await;
}

/// Bytes kept in pipes for plain streams are copied into memory when encrypted streams replace the plain streams.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn encryption_may_begin_while_bytes_are_kept_in_pipes() {
    let net = Net::new(Setup { pacing: Some(20_000_000), ..Setup::default() }).await;
    let (mut client, mut server, session) = net.pair().await;
    let data = pattern(24 << 20);
    let port = net.stream_address.port();
    let changed = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let encrypted = |peer: PeerConfig| PeerConfig { encrypted: true, ..peer };
        net.far.set_peers(vec![encrypted(peer(NEAR, 1, 4))]);
        net.near.set_peers(vec![encrypted(peer(FAR, port, 4))]);
    };
    let say = async {
        client.write_all(&data).await.unwrap();
        client.shutdown().await.unwrap();
    };
    let mut heard = Vec::new();
    let (_, _, read) = soon(async { tokio::join!(say, changed, server.read_to_end(&mut heard)) }).await;
    read.unwrap();
    assert!(heard == data);
    until(|| net.near.stats().streams_encrypted == 4).await;
    drop((client, server));
    assert_eq!(soon(session).await.reason, EndReason::Finished);
}
