//! Connections through a pair of agents over real sockets: both ends see the same as over plain TCP.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::io::ErrorKind;
use std::net::Ipv4Addr;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use common::*;
use socket2::SockRef;
use sos_tunnel::{Limits, PathStreams, Tunnel};
use sos_wire::{EndReason, RefuseReason};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

const BULK: usize = if cfg!(debug_assertions) { 64 << 20 } else { 1 << 30 };

over_both! {
    one_thread: [
        each_direction_ends_by_itself,
        a_client_that_ends_immediately_ends_at_the_server,
        a_session_lasts_until_a_slow_host_has_everything,
        resets_are_forwarded_as_resets,
        a_reset_is_noticed_while_the_other_side_reads_nothing,
        a_server_that_refuses_resets_the_client,
        limits_refuse_and_reset_and_hold,
        draining_lets_sessions_finish_and_takes_no_new_ones,
        an_unwilling_peer_is_known_as_such_and_still_accepts_sessions,
        closing_resets_running_sessions,
    ],
    two_threads: [
        bulk_arrives_completely_in_both_directions_simultaneously,
        a_hundred_simultaneous_connections_succeed,
        a_slow_reader_stops_only_itself,
        paths_report_relayed_bytes_and_round_trips,
        bulk_uses_one_stream_if_the_parallelism_is_one,
        a_session_uses_the_number_of_streams_of_its_service,
    ]
}

async fn read_all(socket: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    soon(socket.read_to_end(&mut bytes)).await.unwrap();
    bytes
}

async fn sees_reset(socket: &mut TcpStream) {
    let error = soon(socket.read_to_end(&mut Vec::new())).await.expect_err("a reset, not an end");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

fn reset(socket: TcpStream) {
    SockRef::from(&socket).set_linger(Some(Duration::ZERO)).unwrap();
    drop(socket);
}

async fn bulk_arrives_completely_in_both_directions_simultaneously(setup: Setup) {
    let net = Net::new(setup).await;
    let begun = Instant::now();
    let (client, server, session) = net.pair().await;
    let data = pattern(BULK);
    let (mut client_read, mut client_write) = client.into_split();
    let (mut server_read, mut server_write) = server.into_split();
    let up = async {
        client_write.write_all(&data).await.unwrap();
        client_write.shutdown().await.unwrap();
    };
    let down = async {
        server_write.write_all(&data).await.unwrap();
        server_write.shutdown().await.unwrap();
    };
    let (mut at_client, mut at_server) = (Vec::with_capacity(BULK), Vec::with_capacity(BULK));
    let (_, _, a, b) = tokio::time::timeout(PATIENCE * 4, async {
        tokio::join!(
            up,
            down,
            client_read.read_to_end(&mut at_client),
            server_read.read_to_end(&mut at_server)
        )
    })
    .await
    .unwrap();
    assert_eq!((a.unwrap(), b.unwrap()), (BULK, BULK));
    assert!(at_client == data && at_server == data);
    let end = soon(session).await;
    assert_eq!((end.reason, end.bytes_up, end.bytes_down), (EndReason::Finished, BULK as u64, BULK as u64));
    net.nothing_left().await;
    let stats = net.near.stats();
    assert_eq!((stats.bytes_sent_total, stats.bytes_received_total), (BULK as u64, BULK as u64));
    let (near, far) = (stats.first_byte, net.far.stats().first_byte);
    assert_eq!((near.count(), far.count()), (1, 0), "the agent of the client measures a session, once");
    assert!(Duration::ZERO < near.sum && near.sum <= begun.elapsed());
    let ended = net.servers.ended.lock().unwrap();
    assert_eq!((ended.len(), ended[0].1.reason, ended[0].1.bytes_up), (1, EndReason::Finished, BULK as u64));
}

async fn bulk_uses_one_stream_if_the_parallelism_is_one(setup: Setup) {
    for (parallelism, most_of_it) in [(usize::MAX, false), (1, true)] {
        let net = Net::new(Setup { parallelism, pacing: Some(2_000_000), ..setup }).await;
        let (mut client, mut server, _session) = net.pair().await;
        let data = pattern(6 << 20);
        let write = async {
            client.write_all(&data).await.unwrap();
            client.shutdown().await.unwrap();
        };
        assert!(tokio::join!(write, read_all(&mut server)).1 == data);
        let parts = net.cuttable.parts();
        // Without the limit, two streams carry half each. Bytes sent before the session is busy may use any stream, and a stream that seems
        // to stall is replaced.
        assert_eq!(parts[0] > 0.75, most_of_it, "{parts:?}");
    }
}

/// Number of streams, of eight established streams, that carried a sixteenth of all bytes or more.
async fn streams_used(setup: Setup, most: (Option<usize>, Option<usize>), from_client: bool) -> usize {
    let net = Net::new(Setup { streams: 8, most, pacing: Some(2_000_000), ..setup }).await;
    let (mut from, mut to, _session) = net.pair().await;
    if !from_client {
        (from, to) = (to, from);
    }
    let data = pattern(6 << 20);
    let write = async {
        from.write_all(&data).await.unwrap();
        from.shutdown().await.unwrap();
    };
    assert!(tokio::join!(write, read_all(&mut to)).1 == data);
    // Acknowledgements and credit of the other direction are few, and use any stream.
    let parts = if from_client { net.cuttable.parts() } else { net.cuttable.parts_received() };
    parts.iter().filter(|part| **part >= 1.0 / 16.0).count()
}

/// Each end is limited by its own service. If more streams are allowed, two streams carry all bytes here.
async fn a_session_uses_the_number_of_streams_of_its_service(setup: Setup) {
    assert_eq!(streams_used(setup, (Some(1), None), true).await, 1);
    assert_eq!(streams_used(setup, (None, Some(1)), false).await, 1);
    assert!(streams_used(setup, (Some(7), Some(1)), true).await > 1);
}

async fn a_hundred_simultaneous_connections_succeed(setup: Setup) {
    let net = Net::new(setup).await;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut read, mut write) = socket.split();
                let _ = tokio::io::copy(&mut read, &mut write).await;
                let _ = write.shutdown().await;
            });
        }
    });
    let mut clients = Vec::new();
    for i in 0..100usize {
        let (mut client, session) = net.connect(address).await;
        clients.push(tokio::spawn(async move {
            let data = pattern(1000 + i * 977);
            client.write_all(&data).await.unwrap();
            client.shutdown().await.unwrap();
            assert!(read_all(&mut client).await == data);
            assert_eq!(soon(session.unwrap()).await.reason, EndReason::Finished);
        }));
    }
    for client in clients {
        client.await.unwrap();
    }
    net.nothing_left().await;
}

async fn a_client_that_ends_immediately_ends_at_the_server(setup: Setup) {
    let net = Net::new(setup).await;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let (mut client, host) = client().await;
    client.shutdown().await.unwrap();
    let session = net.open(host, listener.local_addr().unwrap()).unwrap();
    let (mut server, _) = soon(listener.accept()).await.unwrap();
    assert_eq!(read_all(&mut server).await, b"");
    server.write_all(b"an answer").await.unwrap();
    server.shutdown().await.unwrap();
    assert_eq!(read_all(&mut client).await, b"an answer");
    assert_eq!(soon(session).await.reason, EndReason::Finished);
    net.nothing_left().await;
}

async fn each_direction_ends_by_itself(setup: Setup) {
    let net = Net::new(setup).await;
    let (mut client, mut server, session) = net.pair().await;
    client.write_all(b"request").await.unwrap();
    client.shutdown().await.unwrap();
    assert_eq!(read_all(&mut server).await, b"request", "the server sees the end");
    server.write_all(b"late reply").await.unwrap();
    drop(server);
    assert_eq!(read_all(&mut client).await, b"late reply");
    assert_eq!(soon(session).await.reason, EndReason::Finished);

    let (mut client, mut server, session) = net.pair().await;
    server.write_all(b"greeting").await.unwrap();
    server.shutdown().await.unwrap();
    assert_eq!(read_all(&mut client).await, b"greeting", "the server may end first, and send first");
    client.write_all(b"thanks").await.unwrap();
    drop(client);
    assert_eq!(read_all(&mut server).await, b"thanks");
    assert_eq!(soon(session).await.reason, EndReason::Finished);
    net.nothing_left().await;
}

async fn a_session_lasts_until_a_slow_host_has_everything(setup: Setup) {
    let net = Net::new(setup).await;
    let listener = listener_with_little_room();
    let (mut client, session) = net.connect(listener.local_addr().unwrap()).await;
    let mut server = soon(listener.accept()).await.unwrap().0;
    // The egress agent's kernel accepts all of this data, and the server's kernel hardly any.
    let data = pattern(300_000);
    server.shutdown().await.unwrap();
    client.write_all(&data).await.unwrap();
    client.shutdown().await.unwrap();
    assert_eq!(
        soon(session.unwrap()).await.reason,
        EndReason::Finished,
        "the client has received everything"
    );
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!((net.far.stats().sessions, net.servers.ended.lock().unwrap().len()), (1, 0));
    assert_eq!(net.far.stats().memory_reserved, 0, "the bytes are in the kernel");
    assert!(read_all(&mut server).await == data);
    net.nothing_left().await;
    assert_eq!(net.servers.ended.lock().unwrap()[0].1.reason, EndReason::Finished);
}

/// A listener whose connections have receive buffers of a few kilobytes.
fn listener_with_little_room() -> TcpListener {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    socket.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    socket.listen(1).unwrap()
}

async fn resets_are_forwarded_as_resets(setup: Setup) {
    let net = Net::new(setup).await;
    let (client, mut server, session) = net.pair().await;
    reset(client);
    sees_reset(&mut server).await;
    assert_eq!(soon(session).await.reason, EndReason::ClientReset);

    let (mut client, mut server, session) = net.pair().await;
    // Without this byte, the egress agent might still be connecting, and would take the server's reset for a refusal.
    client.write_all(b"x").await.unwrap();
    soon(server.read_exact(&mut [0])).await.unwrap();
    reset(server);
    sees_reset(&mut client).await;
    assert_eq!(soon(session).await.reason, EndReason::ServerReset);

    let (mut client, mut server, session) = net.pair().await;
    session.abort(EndReason::InternalLimit);
    sees_reset(&mut client).await;
    sees_reset(&mut server).await;
    assert_eq!(soon(session).await.reason, EndReason::InternalLimit);
    net.nothing_left().await;
}

async fn a_reset_is_noticed_while_the_other_side_reads_nothing(setup: Setup) {
    let net = Net::new(setup).await;
    let (client, mut server, session) = net.pair().await;
    let block = vec![1; 1 << 20];
    // Fill all buffers on the path.
    while let Ok(written) = tokio::time::timeout(Duration::from_millis(500), client.writable()).await {
        written.unwrap();
        let _ = client.try_write(&block);
    }
    reset(client);
    assert_eq!(soon(session).await.reason, EndReason::ClientReset);
    sees_reset(&mut server).await;
    net.nothing_left().await;
}

async fn a_server_that_refuses_resets_the_client(setup: Setup) {
    let net = Net::new(setup).await;
    let closed = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap().local_addr().unwrap();
    let (mut client, session) = net.connect(closed).await;
    sees_reset(&mut client).await;
    assert_eq!(soon(session.unwrap()).await.reason, EndReason::ServerRefused);
    net.nothing_left().await;
}

/// Waits until a counter is positive and no longer changes.
async fn stands_still(count: impl Fn() -> u64) {
    soon(async {
        let mut before = 0;
        while before == 0 || count() != before {
            before = count();
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    })
    .await;
}

async fn a_slow_reader_stops_only_itself(setup: Setup) {
    let net = Net::new(setup).await;
    let (mut slow_client, slow_server, _slow) = net.pair().await;
    let writer = tokio::spawn(async move {
        let block = vec![1; 1 << 20];
        while slow_client.write_all(&block).await.is_ok() {}
    });
    // The read-ahead limit stops the slow session, however much the kernel's buffers accept.
    stands_still(|| net.near.stats().bytes_sent_total).await;
    let (mut client, mut server, session) = net.pair().await;
    let data = pattern(8 << 20);
    let (sent, received) = tokio::join!(
        async {
            client.write_all(&data).await.unwrap();
            client.shutdown().await.unwrap();
            true
        },
        read_all(&mut server)
    );
    assert!(sent && received == data);
    drop((server, client));
    assert_eq!(soon(session).await.reason, EndReason::Finished);
    reset(slow_server);
    soon(writer).await.unwrap();
    net.nothing_left().await;
}

async fn limits_refuse_and_reset_and_hold(setup: Setup) {
    let limits = Limits { sessions: 2, ..Limits::default() };
    let net = Net::new(Setup { limits, ..setup }).await;
    let (_c1, _s1, _h1) = net.pair().await;
    let (_c2, _s2, _h2) = net.pair().await;
    let (mut client, refused) = net.connect("127.0.0.1:9".parse().unwrap()).await;
    assert_eq!(refused.unwrap_err(), RefuseReason::SessionLimit);
    sees_reset(&mut client).await;
    assert_eq!(net.near.stats().sessions_refused_total, 1);

    let limits = Limits { memory: 300 << 10, ..Limits::default() };
    let net = Net::new(Setup { limits, ..setup }).await;
    let (mut client, mut server, _handle) = net.pair().await;
    let (mut other, refused) = net.connect("127.0.0.1:9".parse().unwrap()).await;
    assert_eq!(refused.unwrap_err(), RefuseReason::MemoryLimit);
    sees_reset(&mut other).await;
    let data = pattern(4 << 20);
    let (_, received) = tokio::join!(
        async {
            client.write_all(&data).await.unwrap();
            client.shutdown().await.unwrap();
        },
        read_all(&mut server)
    );
    assert!(received == data, "without memory for growth, the session is slower but correct");
    assert!(net.far.stats().memory_reserved <= 300 << 10);
}

async fn draining_lets_sessions_finish_and_takes_no_new_ones(setup: Setup) {
    let net = Net::new(setup).await;
    let (mut client, mut server, session) = net.pair().await;
    assert!(net.near.peer_alive(FAR));
    net.far.drain();
    until(|| !net.near.peer_alive(FAR)).await;
    let (mut refused, error) = net.connect("127.0.0.1:9".parse().unwrap()).await;
    assert_eq!(error.unwrap_err(), RefuseReason::UnknownPeer);
    sees_reset(&mut refused).await;
    client.write_all(b"still here").await.unwrap();
    client.shutdown().await.unwrap();
    assert_eq!(read_all(&mut server).await, b"still here");
    drop(server);
    assert_eq!(soon(session).await.reason, EndReason::Finished);
}

async fn an_unwilling_peer_is_known_as_such_and_still_accepts_sessions(setup: Setup) {
    let net = Net::new(setup).await;
    let listed = || net.near.willing_peers().borrow().contains(&FAR);
    assert!(listed());
    net.far.set_willing(false);
    until(|| !listed()).await;
    assert!(net.near.peer_alive(FAR) && !net.near.peer_willing(FAR));
    let (_client, _server, _session) = net.pair().await;
    // Without a stream, the peer is not notified of the change; the next streams carry it.
    net.cuttable.refuses.store(true, Ordering::SeqCst);
    net.cuttable.cut(setup.streams);
    until(|| net.near.stats().streams == 0 && net.far.stats().streams == 0).await;
    net.far.set_willing(true);
    net.cuttable.refuses.store(false, Ordering::SeqCst);
    until(listed).await;
}

async fn closing_resets_running_sessions(setup: Setup) {
    let net = Net::new(setup).await;
    let (mut client, mut server, session) = net.pair().await;
    let near: Tunnel = net.near.clone();
    soon(near.close()).await;
    sees_reset(&mut client).await;
    sees_reset(&mut server).await;
    assert_eq!(soon(session).await.reason, EndReason::PeerLost);
    until(|| net.far.stats().streams == 0 && net.far.stats().sessions == 0).await;
}

/// Paths count only hosts' bytes, each direction at both ends, and keep the counts when their streams close.
async fn paths_report_relayed_bytes_and_round_trips(setup: Setup) {
    const UP: usize = 3 << 20;
    let net = Net::new(setup).await;
    let idle = net.near.paths();
    assert_eq!(idle.len(), 1);
    assert_eq!((idle[0].peer, idle[0].label, idle[0].streams, idle[0].sent), (FAR, 0, 4, 0));
    let (mut client, mut server, session) = net.pair().await;
    let relayed = session.relayed();
    client.write_all(&pattern(UP)).await.unwrap();
    soon(server.read_exact(&mut vec![0; UP])).await.unwrap();
    server.write_all(&[7; 999]).await.unwrap();
    soon(client.read_exact(&mut [0; 999])).await.unwrap();
    until(|| relayed.bytes() == (UP as u64, 999)).await;
    // Another thread counts the bytes after they have been sent.
    until(|| net.far.paths()[0].sent >= 999).await;
    let (near, far) = (net.near.paths()[0], net.far.paths()[0]);
    // Bytes sent twice, because a stream was slow, count twice.
    assert!(near.sent >= UP as u64 && far.received >= UP as u64, "{near:?} {far:?}");
    assert!([near.received, far.sent].iter().all(|n| (999..UP as u64).contains(n)), "{near:?} {far:?}");
    for rtt in [near.rtt, near.min_rtt, far.rtt, far.min_rtt] {
        assert!(rtt > Duration::ZERO && rtt < Duration::from_secs(1), "{near:?} {far:?}");
    }
    net.cuttable.cut(4);
    until(|| net.near.stats().streams_total >= 8).await;
    until(|| net.near.paths().first().is_some_and(|path| path.streams == 4)).await;
    assert!(net.near.paths()[0].sent >= near.sent);
    let all = PathStreams { label: 0, established: 4, configured: 4 };
    assert_eq!(net.near.path_streams(FAR), [all]);
    assert_eq!(net.near.path_streams(NEAR), [], "an agent is not its own peer");
    drop((client, server));
    soon(session).await;
}
