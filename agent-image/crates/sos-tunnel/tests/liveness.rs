//! Keepalives and user timeouts of a host measure the far host, not the host's own agent. A host sends only slightly further ahead of the
//! far host than over plain TCP.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use common::*;
use socket2::{SockFilter, SockRef, TcpKeepalive};
use sos_tunnel::OpenRequest;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const SECOND: Duration = Duration::from_secs(1);
/// KEEPIDLE, KEEPINTVL and KEEPCNT of the hosts here. Over plain TCP, they detect a dead host `NOTICED` after the last probe that was
/// answered.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(2), SECOND, 3);
const NOTICED: Duration = Duration::from_secs(2 + 3);

/// Drops all packets that arrive at a host, as if its machine had failed.
fn kill(host: &TcpStream) {
    const BPF_RET: u16 = 6;
    SockRef::from(host).attach_filter(&[SockFilter::new(BPF_RET, 0, 0, 0)]).unwrap();
}

fn revive(host: &TcpStream) {
    SockRef::from(host).detach_filter().unwrap();
}

fn keep_alive(host: &TcpStream) {
    let (idle, interval, probes) = KEEPALIVE;
    let keepalive = TcpKeepalive::new().with_time(idle).with_interval(interval).with_retries(probes);
    SockRef::from(host).set_tcp_keepalive(&keepalive).unwrap();
}

/// Time until a host detects the silence.
async fn notices(host: &mut TcpStream) -> Duration {
    let since = Instant::now();
    let error = soon(host.read(&mut [0])).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    since.elapsed()
}

/// In turn, each host has keepalives while the other host fails.
#[tokio::test]
async fn keepalives_detect_a_dead_far_host_and_no_other() {
    let net = Net::new(Setup::default()).await;
    for client_dies in [false, true] {
        let (client, server, _session) = net.pair().await;
        let (mut keeps, dies) = if client_dies { (server, client) } else { (client, server) };
        keep_alive(&keeps);
        let early = tokio::time::timeout(3 * NOTICED, keeps.read(&mut [0])).await;
        assert!(early.is_err(), "{early:?} although the far host is alive");
        kill(&dies);
        let after = notices(&mut keeps).await;
        assert!(after <= NOTICED + 3 * SECOND, "noticed after {after:?}");
    }
}

/// The dead host's agent queries the other host shortly before common idle times, two of which fall into the time of the probes. The filter
/// must let the answers to these queries pass, but the probes of the other host must stay unanswered.
#[tokio::test]
async fn a_probing_host_stays_unanswered_while_the_far_agent_queries_it() {
    let (idle, interval, probes) = (3 * SECOND, SECOND, 3);
    let net = Net::new(Setup::default()).await;
    let (mut client, mut server, _session) = net.pair().await;
    let keepalive = TcpKeepalive::new().with_time(idle).with_interval(interval).with_retries(probes);
    SockRef::from(&client).set_tcp_keepalive(&keepalive).unwrap();
    // The agents learn the interval from a live server.
    let early = tokio::time::timeout(2 * idle + SECOND, client.read(&mut [0])).await;
    assert!(early.is_err(), "{early:?} although the far host is alive");
    client.write_all(b"x").await.unwrap();
    soon(server.read_exact(&mut [0])).await.unwrap();
    kill(&server);
    let after = notices(&mut client).await;
    assert!(
        after < 2 * idle + probes * interval,
        "a probe was answered for a dead host: noticed after {after:?}"
    );
}

#[tokio::test]
async fn a_host_that_recovers_in_time_keeps_its_connection() {
    let net = Net::new(Setup::default()).await;
    let (mut client, mut server, _session) = net.pair().await;
    keep_alive(&client);
    kill(&server);
    // Long enough for some probes to stay unanswered, too short for all of them.
    tokio::time::sleep(Duration::from_millis(3_200)).await;
    revive(&server);
    let early = tokio::time::timeout(2 * NOTICED, client.read(&mut [0])).await;
    assert!(early.is_err(), "{early:?} although the far host has recovered");
    server.write_all(b"still").await.unwrap();
    client.write_all(b"there").await.unwrap();
    let (mut heard, mut answer) = ([0; 5], [0; 5]);
    soon(client.read_exact(&mut heard)).await.unwrap();
    soon(server.read_exact(&mut answer)).await.unwrap();
    assert_eq!((&heard, &answer), (b"still", b"there"));
}

#[tokio::test]
async fn a_user_timeout_measures_the_far_host() {
    let net = Net::new(Setup::default()).await;
    let (mut client, server, _session) = net.pair().await;
    let patience = 4 * SECOND;
    SockRef::from(&client).set_tcp_user_timeout(Some(patience)).unwrap();
    client.write_all(b"tick").await.unwrap();
    kill(&server);
    let since = Instant::now();
    let error = loop {
        assert!(since.elapsed() < PATIENCE, "a dead host is not noticed");
        if let Err(error) = client.write_all(b"tick").await {
            break error;
        }
        tokio::time::sleep(SECOND / 2).await;
    };
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(since.elapsed() >= patience, "noticed after {:?}", since.elapsed());
}

#[tokio::test]
async fn a_host_with_a_closed_window_is_alive() {
    let net = Net::new(Setup::default()).await;
    let (mut client, mut server, _session) = net.pair().await;
    SockRef::from(&client).set_tcp_user_timeout(Some(Duration::from_secs(600))).unwrap();
    keep_alive(&client);
    let full = fill(&mut client).await;
    tokio::time::sleep(2 * NOTICED).await;
    let mut all = vec![0; full];
    soon(server.read_exact(&mut all)).await.unwrap();
}

/// Sends bytes until no more are accepted; returns their number.
async fn fill(host: &mut TcpStream) -> usize {
    let (piece, mut all) = (vec![7; 64 << 10], 0);
    while let Ok(said) = tokio::time::timeout(SECOND, host.write(&piece)).await {
        all += said.unwrap();
    }
    all
}

#[tokio::test]
async fn a_host_that_does_not_read_stops_the_sender_almost_as_early_as_plain_tcp() {
    let net = Net::new(Setup::default()).await;
    let (mut client, _server, _session) = net.pair().await;
    let through_agents = fill(&mut client).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut plain = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let _server = listener.accept().await.unwrap();
    let over_plain = fill(&mut plain).await;
    assert!(through_agents <= 2 * over_plain + (8 << 20), "{through_agents} bytes, plain {over_plain}");
}

#[tokio::test]
async fn a_requested_queue_size_bounds_the_bytes_held() {
    let net = Net::new(Setup::default()).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (mut client, host) = client().await;
    let request = OpenRequest { queue_bytes: 1 << 20, ..net.request(&host, listener.local_addr().unwrap()) };
    let _session = net.near.open(request, host).unwrap();
    let _server = soon(listener.accept()).await.unwrap();
    let before = net.far.stats().memory_reserved;
    assert!(before <= 1 << 20, "{before} bytes reserved");
    fill(&mut client).await;
    let held = net.near.stats().memory_reserved + net.far.stats().memory_reserved;
    // The bound covers both directions at both agents.
    assert!(held <= 4 << 20, "{held} bytes reserved");
}
