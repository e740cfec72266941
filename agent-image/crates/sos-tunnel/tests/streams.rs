//! Streams that fail, and connections to the stream port that are not streams.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use common::*;
use sos_tunnel::{Dial, Limits, PeerConfig, Timing, Tunnel};
use sos_wire::stream::handshake::{WELCOME_LEN, encode_confirm};
use sos_wire::{BootId, Capabilities, EndReason, Hello, Key, KeyId, SiteId};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

const BULK: usize = 24 << 20;
/// Number of bytes that an agent accepts for a host that reads nothing: less than the read-ahead limit.
const UNREAD: usize = 384 << 10;

over_both! {
    one_thread: [
        without_streams_sessions_end_with_a_reset_after_the_wait,
        a_restart_of_the_peer_ends_the_sessions_of_its_previous_run,
        sessions_of_a_new_run_are_not_confused_with_earlier_sessions,
        the_rest_of_an_old_session_does_not_end_a_new_session,
        sessions_of_a_relisted_peer_are_not_confused_with_earlier_sessions,
        a_slow_client_gets_all_data_after_the_egress_agent_has_left,
        an_unlisted_peer_finishes_running_sessions,
        an_acceptor_gives_no_streams_to_an_unlisted_peer,
        a_wrong_key_opens_no_stream,
        a_peer_behind_nat_connects_from_any_address,
        a_peer_that_cannot_be_reached_is_not_dialed,
        each_path_has_at_most_the_allowed_number_of_streams,
    ],
    two_threads: [
        a_transfer_survives_the_loss_of_a_stream,
        a_transfer_survives_the_loss_of_all_streams_if_new_ones_open,
    ]
}

/// Sends [`BULK`] bytes and cuts streams during the transfer. Returns true if all bytes arrived.
async fn transfer_with_cuts(net: &Net, streams_cut: usize, times: usize) -> bool {
    let (mut client, mut server, session) = net.pair().await;
    let data = pattern(BULK);
    let cuttable = Arc::clone(&net.cuttable);
    let send = async {
        for part in data.chunks(BULK / (times + 1)) {
            client.write_all(part).await.unwrap();
            cuttable.cut(streams_cut);
        }
        client.shutdown().await.unwrap();
    };
    let mut received = Vec::with_capacity(BULK);
    let (_, result) = soon(async { tokio::join!(send, server.read_to_end(&mut received)) }).await;
    result.unwrap();
    drop((client, server));
    assert_eq!(soon(session).await.reason, EndReason::Finished);
    received == data
}

async fn a_transfer_survives_the_loss_of_a_stream(setup: Setup) {
    let net = Net::new(setup).await;
    assert!(transfer_with_cuts(&net, 1, 3).await);
    assert!(net.near.stats().streams_lost_total >= 3);
    net.nothing_left().await;
    net.wait_for_streams(4).await;
}

async fn a_transfer_survives_the_loss_of_all_streams_if_new_ones_open(setup: Setup) {
    let net = Net::new(setup).await;
    assert!(transfer_with_cuts(&net, 100, 2).await);
    assert!(net.near.stats().streams_lost_total >= 4);
    net.nothing_left().await;
}

async fn each_path_has_at_most_the_allowed_number_of_streams(setup: Setup) {
    let limits = Limits { streams_per_path: 2, ..Limits::default() };
    let net = loop {
        let net = Net::unconnected(Setup { limits, streams: 2, ..setup }).await;
        if listen_at(&net.far, net.stream_address.port() + 1, 1).await.is_ok() {
            break net;
        }
    };
    let datagrams = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    net.near.open_datagrams(datagrams, 1).unwrap();
    let wanted = |streams| PeerConfig {
        streams: BTreeMap::from(streams),
        protocol: setup.protocol,
        ..peer(FAR, net.stream_address.port(), 0)
    };
    net.near.set_peers(vec![wanted([(0, 2), (1, 2)])]);
    net.wait_for_streams(4).await;
    net.near.set_peers(vec![wanted([(0, 3), (1, 2)])]);
    until(|| net.near.stats().handshakes_failed_total > 0).await;
    assert_eq!((net.near.stats().streams, net.far.stats().streams), (4, 4));
}

async fn without_streams_sessions_end_with_a_reset_after_the_wait(setup: Setup) {
    let timing = Timing { stream_wait: Duration::from_millis(400), ..Timing::default() };
    let net = Net::new(Setup { timing, ..setup }).await;
    let (mut client, mut server, session) = net.pair().await;
    net.cuttable.refuses.store(true, Ordering::SeqCst);
    let cut = Instant::now();
    net.cuttable.cut(100);
    let end = soon(session).await;
    assert_eq!(end.reason, EndReason::PeerLost);
    assert!(cut.elapsed() >= timing.stream_wait);
    assert!(!net.near.peer_alive(FAR));
    for host in [&mut client, &mut server] {
        let error = soon(host.read_to_end(&mut Vec::new())).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }
    net.nothing_left().await;
}

/// The egress agent after a restart, at another port.
async fn later_life(net: &Net, setup: &Setup) -> Tunnel {
    let far = tunnel(setup, FAR, 2, &net.cuttable, &net.servers);
    far.set_peers(vec![peer(NEAR, 1, 4)]);
    let port = listen(&far).await.port();
    net.near.set_peers(vec![PeerConfig { protocol: setup.protocol, ..peer(FAR, port, 4) }]);
    net.cuttable.cut(1);
    far
}

async fn a_restart_of_the_peer_ends_the_sessions_of_its_previous_run(setup: Setup) {
    let net = Net::new(setup).await;
    let (mut client, _server, session) = net.pair().await;
    let far = later_life(&net, &setup).await;
    assert_eq!(soon(session).await.reason, EndReason::PeerLost);
    let error = soon(client.read_to_end(&mut Vec::new())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    until(|| far.stats().streams == 4).await;
}

/// Runs a session in which the server sends first: the ingress agent sends only its Open.
async fn greets(net: &Net) {
    let (mut client, mut server, session) = net.pair().await;
    server.write_all(b"welcome").await.unwrap();
    drop(server);
    let mut received = Vec::new();
    soon(client.read_to_end(&mut received)).await.unwrap();
    assert_eq!(received, b"welcome");
    drop(client);
    assert_eq!(soon(session).await.reason, EndReason::Finished);
}

/// Replaces the ingress agent by a new run of the same agent.
async fn replace_near(net: &mut Net, setup: &Setup) {
    let near = tunnel(setup, NEAR, 2, &net.cuttable, &net.servers);
    near.open_datagrams(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap(), 0).unwrap();
    near.set_peers(vec![PeerConfig { protocol: setup.protocol, ..peer(FAR, net.stream_address.port(), 4) }]);
    net.near = near;
    net.wait_for_streams(4).await;
}

async fn sessions_of_a_new_run_are_not_confused_with_earlier_sessions(setup: Setup) {
    let mut net = Net::new(setup).await;
    let (_client, _server, _session) = net.pair().await;
    replace_near(&mut net, &setup).await;
    until(|| net.far.stats().sessions == 0).await;
    greets(&net).await;
}

async fn the_rest_of_an_old_session_does_not_end_a_new_session(setup: Setup) {
    let mut net = Net::new(setup).await;
    let listener = with_little_room().listen(1).unwrap();
    let (mut client, session) = net.connect(listener.local_addr().unwrap()).await;
    let (mut slow, _) = soon(listener.accept()).await.unwrap();
    slow.shutdown().await.unwrap();
    let data = pattern(UNREAD);
    soon(client.write_all(&data)).await.unwrap();
    drop(client);
    assert_eq!(soon(session.unwrap()).await.reason, EndReason::Finished);
    net.near.close().await;
    replace_near(&mut net, &setup).await;
    let (mut client, mut server, session) = net.pair().await;
    assert_eq!(net.far.stats().sessions, 2, "two sessions with the same number");
    let mut received = Vec::new();
    soon(slow.read_to_end(&mut received)).await.unwrap();
    assert!(received == data);
    until(|| net.far.stats().sessions == 1).await;
    client.write_all(b"hello").await.unwrap();
    soon(server.read_exact(&mut [0; 5])).await.unwrap();
    drop((client, server));
    assert_eq!(soon(session).await.reason, EndReason::Finished);
}

async fn sessions_of_a_relisted_peer_are_not_confused_with_earlier_sessions(setup: Setup) {
    let net = Net::new(setup).await;
    greets(&net).await;
    let far = PeerConfig { protocol: setup.protocol, ..peer(FAR, net.stream_address.port(), 4) };
    net.near.set_peers(vec![]);
    until(|| net.near.stats().streams == 0 && net.far.stats().streams == 0).await;
    net.near.set_peers(vec![far]);
    net.wait_for_streams(4).await;
    greets(&net).await;
}

async fn a_slow_client_gets_all_data_after_the_egress_agent_has_left(setup: Setup) {
    let net = Net::new(setup).await;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let (mut client, host) = client_with_little_room().await;
    let session = net.open(host, listener.local_addr().unwrap()).unwrap();
    let (mut server, _) = soon(listener.accept()).await.unwrap();
    client.write_all(b"request").await.unwrap();
    client.shutdown().await.unwrap();
    soon(server.read_to_end(&mut Vec::new())).await.unwrap();
    let data = pattern(UNREAD);
    soon(server.write_all(&data)).await.unwrap();
    drop(server);
    until(|| net.far.stats().sessions == 0).await;
    net.far.close().await;
    let far = later_life(&net, &setup).await;
    until(|| far.stats().streams == 4).await;
    assert_eq!(net.near.stats().sessions, 1, "the client has not read anything");
    let mut received = Vec::new();
    soon(client.read_to_end(&mut received)).await.unwrap();
    assert!(received == data);
    assert_eq!(soon(session).await.reason, EndReason::Finished);
}

/// A host's socket with a receive buffer of a few kilobytes.
fn with_little_room() -> TcpSocket {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    socket.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    socket
}

/// A client with a receive buffer of a few kilobytes, and the ingress agent's socket of the client's connection.
async fn client_with_little_room() -> (TcpStream, TcpStream) {
    let listener = TcpSocket::new_v4().unwrap();
    listener.set_send_buffer_size(65_536).unwrap();
    listener.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let listener = listener.listen(1).unwrap();
    let client = with_little_room().connect(listener.local_addr().unwrap()).await.unwrap();
    (client, listener.accept().await.unwrap().0)
}

async fn an_unlisted_peer_finishes_running_sessions(setup: Setup) {
    let net = Net::new(setup).await;
    let (mut client, mut server, session) = net.pair().await;
    net.near.set_peers(vec![]);
    assert!(!net.near.peer_alive(FAR));
    client.write_all(b"bye").await.unwrap();
    client.shutdown().await.unwrap();
    let mut received = Vec::new();
    soon(server.read_to_end(&mut received)).await.unwrap();
    assert_eq!(received, b"bye");
    drop(server);
    assert_eq!(soon(session).await.reason, EndReason::Finished);
    until(|| net.near.stats().streams == 0).await;
}

/// The dialer is not notified that the acceptor no longer lists it. So the acceptor refuses its streams: without streams, the dialer does
/// not count the acceptor as alive.
async fn an_acceptor_gives_no_streams_to_an_unlisted_peer(setup: Setup) {
    let net = Net::new(setup).await;
    let (mut client, mut server, session) = net.pair().await;
    net.far.set_peers(vec![]);
    assert!(net.near.peer_alive(FAR), "the running session keeps its streams");
    client.write_all(b"bye").await.unwrap();
    client.shutdown().await.unwrap();
    soon(server.read_to_end(&mut Vec::new())).await.unwrap();
    drop(server);
    assert_eq!(soon(session).await.reason, EndReason::Finished);
    let failed = net.far.stats().handshakes_failed_total;
    until(|| net.far.stats().handshakes_failed_total > failed).await;
    until(|| net.near.stats().streams == 0 && net.far.stats().streams == 0).await;
    assert!(!net.near.peer_alive(FAR));
}

async fn a_wrong_key_opens_no_stream(setup: Setup) {
    // The handle for cutting streams keeps the connection open, so the egress agent does not see it close, and fails only at its own handshake
    // timeout.
    let timing = Timing { handshake: Duration::from_millis(300), ..setup.timing };
    let net = Net::unconnected(Setup { near_key: [8; 32], timing, ..setup }).await;
    until(|| net.near.stats().handshakes_failed_total >= 4 && net.far.stats().handshakes_failed_total >= 4)
        .await;
    assert_eq!((net.near.stats().streams_total, net.far.stats().streams_total), (0, 0));
    assert!(!net.near.peer_alive(FAR));
}

async fn a_peer_behind_nat_connects_from_any_address(setup: Setup) {
    let net = Net::new(setup).await;
    let elsewhere =
        PeerConfig { addresses: vec![Ipv4Addr::new(192, 0, 2, 9)], ..peer(NEAR, 1, setup.streams) };
    net.far.set_peers(vec![elsewhere.clone()]);
    net.cuttable.cut(setup.streams);
    until(|| net.near.stats().handshakes_failed_total >= 1 && net.far.stats().streams == 0).await;
    net.far.set_peers(vec![PeerConfig { dial: Dial::Never, ..elsewhere }]);
    net.wait_for_streams(setup.streams as u64).await;
}

async fn a_peer_that_cannot_be_reached_is_not_dialed(setup: Setup) {
    let net = Net::new(setup).await;
    let there = peer(FAR, net.stream_address.port(), setup.streams);
    net.near.set_peers(vec![PeerConfig { dial: Dial::Never, ..there.clone() }]);
    let begun = net.near.stats().streams_total;
    net.cuttable.cut(setup.streams);
    until(|| net.near.stats().streams == 0).await;
    tokio::time::sleep(3 * setup.timing.backoff_max).await;
    assert_eq!((net.near.stats().streams_total, net.near.stats().handshakes_failed_total), (begun, 0));
    net.near.set_peers(vec![PeerConfig { dial: Dial::Always, ..there }]);
    net.wait_for_streams(setup.streams as u64).await;
}

fn hello(agent: sos_wire::AgentId) -> Hello {
    Hello {
        key_id: KeyId::new(1).unwrap(),
        site: SiteId(1),
        label: 0,
        stream_no: 77,
        agent,
        boot: BootId(1),
        nonce: [5; 16],
        capabilities: Capabilities::default(),
    }
}

async fn is_closed(socket: &mut TcpStream) -> Vec<u8> {
    let mut rest = Vec::new();
    // The agent may close or reset the connection, but must not accept it as a stream.
    let _ = soon(socket.read_to_end(&mut rest)).await;
    rest
}

#[tokio::test]
async fn a_recorded_handshake_is_rejected() {
    let net = Net::unconnected(Setup { near_key: [8; 32], ..Setup::default() }).await;
    let (hello, key) = (hello(NEAR).encode(), Key::new([7; 32]));
    let mut socket = TcpStream::connect(net.stream_address).await.unwrap();
    socket.write_all(&hello).await.unwrap();
    let mut welcome = [0; WELCOME_LEN];
    soon(socket.read_exact(&mut welcome)).await.unwrap();
    let confirm = encode_confirm(KeyId::new(1).unwrap(), &key, &hello, &welcome);
    socket.write_all(&confirm).await.unwrap();
    until(|| net.far.stats().streams == 1).await;

    let mut replay = TcpStream::connect(net.stream_address).await.unwrap();
    replay.write_all(&hello).await.unwrap();
    replay.write_all(&confirm).await.unwrap();
    assert_eq!(is_closed(&mut replay).await.len(), WELCOME_LEN, "only another Welcome");
    assert_eq!(net.far.stats().streams_total, 1);
}

#[tokio::test]
async fn strangers_and_garbage_get_no_answer() {
    let net = Net::new(Setup::default()).await;
    let mut stranger = TcpStream::connect(net.stream_address).await.unwrap();
    stranger.write_all(&hello(sos_wire::AgentId([9; 16])).encode()).await.unwrap();
    assert!(is_closed(&mut stranger).await.is_empty());
    let mut garbage = TcpStream::connect(net.stream_address).await.unwrap();
    garbage.write_all(&[0xa5; 4096]).await.unwrap();
    assert!(is_closed(&mut garbage).await.is_empty());
    assert_eq!(net.far.stats().handshakes_failed_total, 2);
    assert!(transfer_with_cuts(&net, 0, 1).await, "established streams are unaffected");
}

#[tokio::test]
async fn garbage_after_a_valid_handshake_ends_the_stream_only() {
    let net = Net::new(Setup::default()).await;
    let (hello, key) = (hello(NEAR).encode(), Key::new([7; 32]));
    let mut socket = TcpStream::connect(net.stream_address).await.unwrap();
    socket.write_all(&hello).await.unwrap();
    let mut welcome = [0; WELCOME_LEN];
    soon(socket.read_exact(&mut welcome)).await.unwrap();
    let mut bytes = encode_confirm(KeyId::new(1).unwrap(), &key, &hello, &welcome).to_vec();
    bytes.extend_from_slice(&[0xff; 64]);
    socket.write_all(&bytes).await.unwrap();
    is_closed(&mut socket).await;
    until(|| net.far.stats().streams == 4 && net.far.stats().streams_lost_total == 1).await;
    assert!(transfer_with_cuts(&net, 0, 1).await);
}
