//! QUIC streams that fail and recover later, and datagrams that imitate QUIC streams.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use common::*;
use sos_tunnel::{Limits, PeerConfig, Protocol, Timing};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UdpSocket;

/// Short intervals to notice lost datagrams, and to retry.
fn quick() -> Setup {
    let timing = Setup::default().timing;
    let (ping, quic, switch) =
        (Duration::from_millis(50), Duration::from_millis(300), Duration::from_millis(500));
    Setup { timing: Timing { ping, quic, switch, ..timing }, ..quic_setup() }
}

fn over_quic(net: &Net, streams: u64, quic: u64) -> bool {
    [&net.near, &net.far].iter().all(|tunnel| {
        let stats = tunnel.stats();
        (stats.streams, stats.streams_quic) == (streams, quic)
    })
}

/// Sends some bytes in each direction through a new session.
async fn talk(net: &Net) {
    let (mut client, mut server, _session) = net.pair().await;
    for _ in 0..20 {
        client.write_all(b"ping").await.unwrap();
        soon(server.read_exact(&mut [0; 4])).await.unwrap();
        server.write_all(b"pong").await.unwrap();
        soon(client.read_exact(&mut [0; 4])).await.unwrap();
    }
}

#[tokio::test]
async fn streams_fall_back_to_tcp_while_datagrams_are_lost() {
    let setup = quick();
    let net = Net::unconnected(setup).await;
    net.cuttable.deaf.store(true, Ordering::SeqCst);
    let begun = Instant::now();
    until(|| over_quic(&net, 4, 0)).await;
    assert!(begun.elapsed() >= setup.timing.quic);
    assert!(net.near.stats().quic_fallbacks_total >= 1);
    assert_eq!(net.near.stats().streams_encrypted, 0, "as configured for TCP");
    talk(&net).await;
    let (mut client, mut server, _session) = net.pair().await;
    net.cuttable.deaf.store(false, Ordering::SeqCst);
    until(|| over_quic(&net, 4, 4)).await;
    assert_eq!(net.near.stats().streams_encrypted, 4);
    client.write_all(b"still").await.unwrap();
    soon(server.read_exact(&mut [0; 5])).await.unwrap();
}

#[tokio::test]
async fn the_tcp_fallback_is_encrypted_where_configured() {
    let net = Net::unconnected(Setup { encrypted: (true, true), ..quick() }).await;
    net.cuttable.deaf.store(true, Ordering::SeqCst);
    until(|| over_quic(&net, 4, 0)).await;
    assert_eq!((net.near.stats().streams_encrypted, net.far.stats().plain_refused_total), (4, 0));
}

#[tokio::test]
async fn quic_is_switched_on_and_off_under_a_running_session() {
    let setup = Setup { protocol: Protocol::Tcp, ..quick() };
    let net = Net::new(setup).await;
    let (mut client, mut server, _session) = net.pair().await;
    let there = peer(FAR, net.stream_address.port(), 4);
    for (protocol, quic) in [(Protocol::Quic, 4), (Protocol::Tcp, 0)] {
        net.near.set_peers(vec![PeerConfig { protocol, ..there.clone() }]);
        until(|| over_quic(&net, 4, quic)).await;
        client.write_all(b"on").await.unwrap();
        soon(server.read_exact(&mut [0; 2])).await.unwrap();
        assert_eq!(net.near.stats().sessions, 1);
    }
}

#[tokio::test]
async fn quic_streams_satisfy_required_encryption() {
    let net = Net::new(Setup { encrypted: (false, true), ..quick() }).await;
    assert!(over_quic(&net, 4, 4));
    tokio::time::sleep(quick().timing.switch * 2).await;
    assert_eq!((net.far.stats().streams_total, net.far.stats().plain_refused_total), (4, 0));
}

#[tokio::test]
async fn windows_beyond_the_budget_are_not_granted() {
    let limits = Limits { memory: 40 << 20, ..Limits::default() };
    let net = Net::new(Setup { limits, ..quick() }).await;
    until(|| net.near.stats().quic_fallbacks_total > 0).await;
    assert!(net.near.stats().streams_quic <= 2, "half of the memory holds two windows of 8 MiB");
    talk(&net).await;
}

#[tokio::test]
async fn a_wrong_key_opens_no_stream_over_quic() {
    let net = Net::unconnected(Setup { near_key: [8; 32], ..quick() }).await;
    until(|| net.near.stats().quic_fallbacks_total > 0 && net.far.stats().handshakes_failed_total > 0).await;
    assert_eq!((net.near.stats().streams_total, net.far.stats().streams_total), (0, 0));
}

#[tokio::test]
async fn garbage_datagrams_are_ignored() {
    let net = Net::new(quick()).await;
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    for (first, len) in [(0xc0, 1200), (0xff, 1200), (0x40, 40), (0, 1), (0xc3, 21)] {
        let mut garbage = vec![0xa5; len];
        garbage[0] = first;
        socket.send_to(&garbage, net.stream_address).await.unwrap();
    }
    talk(&net).await;
    assert!(over_quic(&net, 4, 4));
    assert_eq!(net.far.stats().streams_lost_total, 0);
}
