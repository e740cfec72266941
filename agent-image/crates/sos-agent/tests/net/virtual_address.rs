//! Two gateways of a site share the address that hosts use as gateway; a test moves the address.

mod pair;

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use crate::lab::agent::Agent;
use crate::lab::wire::{Seen, content, digest, drain, exchange, serve_at};
use crate::lab::{PATIENCE, SERVICE_PORT, eventually, sh};
use pair::{Opened, Pair};

/// Bound on the recovery after a move between running nodes. Measured: a tenth of a second.
const SOON: Duration = Duration::from_secs(10);
/// Bound on the reset of connections of a node that failed: streams are silent for 5 s, the far agent waits for 10 s, and the last segment
/// that detects half-open connections follows after 30 s.
const LOST: Duration = Duration::from_secs(60);
const BOTH: [Opened; 2] = [Opened::Here, Opened::There];

/// Servers of both directions.
struct Servers([Receiver<Seen>; 2]);

impl Servers {
    fn start(pair: &Pair) -> Self {
        Self(BOTH.map(|opened| serve_at(&pair.lab, opened.ends().1, content(2, 100_000))))
    }

    /// Transfers bytes in both directions over a new connection, and asserts all results.
    fn assert_works(&self, pair: &Pair, opened: Opened) {
        assert!(self.works(pair, opened), "{opened:?}");
    }

    /// True if a new connection has worked.
    fn works(&self, pair: &Pair, opened: Opened) -> bool {
        let (client, _, server) = opened.ends();
        let request = content(3, 100_000);
        let sent = digest(&request);
        let done =
            pair.lab.at(client, move || connect_to(server, SERVICE_PORT).and_then(|s| exchange(s, &request)));
        let seen = &self.0[usize::from(opened == Opened::There)];
        let Ok(got) = done else { return false };
        if got.error.is_some() {
            return false;
        }
        assert_eq!(got.digest, digest(&content(2, 100_000)));
        let seen =
            std::iter::from_fn(|| seen.recv_timeout(PATIENCE).ok()).find(|seen| seen.client == got.from);
        assert_eq!(seen, Some(Seen { client: got.from, digest: sent, error: None }));
        true
    }

    /// Opens connections until an agent has accelerated one; returns the time that this took.
    fn until_accelerated(&self, pair: &Pair, opened: Opened, by: &Agent) -> Duration {
        let (began, before) = (Instant::now(), begun(by));
        eventually("a new connection is accelerated", || self.works(pair, opened) && begun(by) > before);
        began.elapsed()
    }
}

fn begun(agent: &Agent) -> u64 {
    agent.metric("sos_agent_sessions_begun_total").unwrap()
}

fn connect_to(address: Ipv4Addr, port: u16) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&(address, port).into(), PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Time and error of the end of a connection, as one of its hosts sees it.
type End = Receiver<(Instant, Option<ErrorKind>)>;

/// A connection whose server sends all the time, or nothing after its first bytes. Its client only receives.
fn open(pair: &Pair, opened: Opened, port: u16, busy: bool) -> [End; 2] {
    let (client, host, server) = opened.ends();
    let (tell, ready) = channel();
    pair.lab.start(host, move || {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).unwrap();
        tell.send(None).unwrap();
        tell.send(Some(listener.accept().unwrap().0)).unwrap();
    });
    assert!(ready.recv().unwrap().is_none());
    let mut client = pair.lab.at(client, move || connect_to(server, port)).unwrap();
    let mut server = ready.recv_timeout(PATIENCE).unwrap().unwrap();
    server.write_all(b"hello").unwrap();
    client.read_exact(&mut [0; 5]).unwrap();
    [end_of(client, false), end_of(server, busy)]
}

/// Waits for the end of a connection in the background, perhaps sending meanwhile.
fn end_of(mut stream: TcpStream, sends: bool) -> End {
    let (tell, ended) = channel();
    stream.set_read_timeout(Some(LOST)).unwrap();
    stream.set_write_timeout(Some(LOST)).unwrap();
    std::thread::spawn(move || {
        let bytes = [7; 10_000];
        let error = loop {
            if !sends {
                break drain(&mut stream).1;
            }
            if let Err(error) = stream.write_all(&bytes) {
                break Some(error.kind());
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        let _ = tell.send((Instant::now(), error));
    });
    ended
}

/// Asserts that every host sees a reset within a bound after `moved`; returns the longest time.
fn assert_all_reset(ends: Vec<[End; 2]>, moved: Instant, within: Duration) -> Duration {
    let ends = ends.into_iter().enumerate();
    let each =
        ends.flat_map(|(number, [client, server])| [(number, "client", client), (number, "server", server)]);
    let reset = each.map(|(number, whose, end)| {
        let (at, error) = end
            .recv_timeout(within.saturating_sub(moved.elapsed()))
            .unwrap_or_else(|_| panic!("{whose} {number} hangs"));
        let is_reset = matches!(error, Some(ErrorKind::ConnectionReset | ErrorKind::BrokenPipe));
        assert!(is_reset, "{whose} {number}: {error:?}");
        at.saturating_duration_since(moved)
    });
    reset.max().unwrap()
}

/// Idle and busy connections in both directions.
fn open_all(pair: &Pair, first_port: u16) -> Vec<[End; 2]> {
    let kinds = BOTH.into_iter().flat_map(|opened| [(opened, false), (opened, true)]);
    kinds.zip(first_port..).map(|((opened, busy), port)| open(pair, opened, port, busy)).collect()
}

#[test]
fn connections_of_both_directions_use_the_node_with_the_address_and_follow_it() {
    let pair = Pair::start();
    let servers = Servers::start(&pair);
    for opened in BOTH {
        servers.assert_works(&pair, opened);
    }
    assert_eq!((begun(&pair.near), begun(&pair.twin)), (2, 0));
    let word = |agent: &Agent| {
        let status: serde_json::Value = serde_json::from_str(&agent.get("/status").unwrap()).unwrap();
        status["virtualAddress"].clone()
    };
    assert_eq!((word(&pair.near), word(&pair.twin)), ("Active".into(), "Backup".into()));
    assert!(word(&pair.far).is_null());
    for (from, to, port) in [("near", "twin", 5100), ("twin", "near", 5200)] {
        let (former, next) = if from == "near" { (&pair.near, &pair.twin) } else { (&pair.twin, &pair.near) };
        let ends = open_all(&pair, port);
        former.wait_metric("sos_agent_sessions", |sessions| sessions == 4);
        let moved = Instant::now();
        pair.move_shared(from, to);
        let reset = assert_all_reset(ends, moved, SOON);
        for opened in BOTH {
            let accelerated = servers.until_accelerated(&pair, opened, next);
            println!("to {to}: reset after {reset:?}; opened {opened:?}: accelerated after {accelerated:?}");
            assert!(accelerated < SOON, "{accelerated:?}");
        }
        pair.wait_served_by(next, former);
        let before = begun(former);
        for opened in BOTH {
            servers.assert_works(&pair, opened);
        }
        assert_eq!(begun(former), before, "a node without the virtual address accepts no sessions");
        former.wait_metric("sos_agent_sessions", |sessions| sessions == 0);
    }
}

#[test]
fn a_failed_node_leaves_no_connection_that_hangs() {
    fail(Pair::start());
}

#[test]
fn a_failed_node_leaves_no_connection_of_a_far_pod_that_hangs() {
    fail(Pair::start_with("Pods"));
}

fn fail(mut pair: Pair) {
    let servers = Servers::start(&pair);
    for opened in BOTH {
        servers.assert_works(&pair, opened);
    }
    let ends = open_all(&pair, 5100);
    pair.near.wait_metric("sos_agent_sessions", |sessions| sessions == 4);
    let failed = Instant::now();
    pair.fail_over();
    for opened in BOTH {
        let accelerated = servers.until_accelerated(&pair, opened, &pair.twin);
        println!("opened {opened:?}: accelerated after {accelerated:?}");
        assert!(accelerated < SOON, "{accelerated:?}");
    }
    let reset = assert_all_reset(ends, failed, LOST);
    println!("running connections: reset after {reset:?} at most");
    assert_eq!(pair.far.metric("sos_agent_half_open_probed_total"), Some(4));
}

#[test]
fn hosts_that_miss_the_reset_of_the_former_node_are_reset_by_the_far_host() {
    let pair = Pair::start();
    let ends = open_all(&pair, 5100);
    let nft = format!("ip netns exec {} nft", pair.lab.ns("near"));
    sh(&format!("{nft} add table ip lossy"));
    sh(&format!("{nft} 'add chain ip lossy out {{ type filter hook output priority 0; }}'"));
    sh(&format!("{nft} 'add rule ip lossy out oifname net0 tcp flags rst drop'"));
    let moved = Instant::now();
    pair.move_shared("near", "twin");
    println!("reset after {:?}", assert_all_reset(ends, moved, LOST));
}
