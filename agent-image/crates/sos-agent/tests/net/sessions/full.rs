//! Agents that accept no further sessions, because they are full or draining.

use std::io::{Read as _, Write as _, copy};
use std::iter::repeat_with;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;

use nix::sys::signal::Signal;

use crate::lab::wire::connect;
use crate::lab::{FAR, Lab, NEAR, SERVICE_PORT, Side};

/// Limit of sessions: the agent is unwilling, and disarmed, from 240 sessions.
const LIMIT: u32 = 256;
/// Number of concurrent clients: below the 16 sessions left between disarming and the limit.
const AT_ONCE: usize = 4;
const EACH: usize = 100;

/// Starts an echo server.
fn echo(lab: &Lab) {
    let (ready, listening) = channel();
    lab.start("server", move || {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, SERVICE_PORT)).unwrap();
        ready.send(()).unwrap();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || copy(&mut stream.try_clone().unwrap(), &mut stream));
        }
    });
    listening.recv().unwrap();
}

/// Opens a connection and requires an answer.
fn visit() -> TcpStream {
    let mut stream = connect().unwrap();
    stream.write_all(b"?").unwrap();
    stream.read_exact(&mut [0]).unwrap();
    stream
}

/// Opens connections from several threads, each thread one after the other, and keeps them open.
fn crowd(lab: &Lab) -> Vec<TcpStream> {
    let clients: Vec<_> = (0..AT_ONCE)
        .map(|_| lab.start("client", || repeat_with(visit).take(EACH).collect::<Vec<_>>()))
        .collect();
    clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
}

fn who_finds_no_room_is_plain(small: Side) {
    let lab = Lab::new();
    lab.configure_small(small, LIMIT);
    lab.configure(small.peer(), 1);
    let [near, far] = [NEAR, FAR].map(|side| lab.agent_in(side, side.host, "none"));
    near.wait_metric("sos_agent_armed_regions", |armed| armed >= 1);
    echo(&lab);
    let held = crowd(&lab);
    let sessions = near.metric("sos_agent_sessions").unwrap();
    assert!((240..=256).contains(&sessions), "{sessions} sessions are accelerated");
    for agent in [&near, &far] {
        assert_eq!(agent.metric("sos_agent_sessions_refused_total"), Some(0));
    }
    assert_eq!(near.metric("sos_agent_armed_regions"), Some(0));
    drop(held);
    near.wait_metric("sos_agent_armed_regions", |armed| armed >= 1);
}

#[test]
fn full_ingress_agent_makes_connections_plain_without_a_reset() {
    who_finds_no_room_is_plain(NEAR);
}

#[test]
fn full_egress_agent_makes_connections_plain_without_a_reset() {
    who_finds_no_room_is_plain(FAR);
}

#[test]
fn draining_egress_agent_loses_no_connection() {
    let lab = Lab::new();
    let (near, mut far) = lab.agents();
    echo(&lab);
    let over = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..AT_ONCE)
        .map(|_| {
            let over = Arc::clone(&over);
            lab.start("client", move || {
                let visits = repeat_with(visit).take_while(|_| !over.load(Ordering::Relaxed));
                visits.for_each(drop);
            })
        })
        .collect();
    near.wait_metric("sos_agent_accepted_total", |accepted| accepted >= 100);
    far.signal(Signal::SIGTERM);
    assert_eq!(far.wait(), Some(0));
    near.wait_metric("sos_agent_syns_total{decision=\"plain\"}", |plain| plain >= 100);
    over.store(true, Ordering::Relaxed);
    for client in clients {
        client.join().unwrap();
    }
}
