//! SYNs held until the server has accepted (docs/adr/0053): clients see the same results as over plain TCP.

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::Signal;
use socket2::{Domain, Protocol, Socket, Type};

use crate::lab::agent::Agent;
use crate::lab::wire::{assert_works, connect, serve};
use crate::lab::{Lab, Network, PATIENCE, SERVER, SERVICE_PORT, eventually, sh};

on_every_network!(
    icmp_errors_reach_the_client_unchanged,
    a_silent_server_has_the_timeout_of_plain_tcp,
    a_silent_egress_agent_makes_the_client_plain,
    clients_are_refused_by_a_closed_port_and_accelerated_to_an_open_port,
    an_accepting_server_is_known_until_it_refuses
);

/// Maximum duration of a set-up without a lost SYN: less than the second after which a client retransmits its SYN.
const AT_ONCE: Duration = Duration::from_millis(900);

fn plain(agent: &Agent, reason: &str, count: u64) {
    let name = format!("sos_agent_plain_total{{reason=\"{reason}\"}}");
    agent.wait_metric(&name, |seen| seen == count);
}

fn connect_at(lab: &Lab, port: u16) -> (io::Result<TcpStream>, Duration) {
    lab.at("client", move || {
        let began = Instant::now();
        let got = TcpStream::connect_timeout(&(SERVER, port).into(), PATIENCE);
        (got, began.elapsed())
    })
}

fn firewall(lab: &Lab, verdict: &str) {
    let table = "add table ip f; add chain ip f i { type filter hook input priority 0; }; flush chain ip f i";
    let rule = format!("add rule ip f i tcp dport {SERVICE_PORT} {verdict}");
    sh(&format!("ip netns exec {} nft '{table}; {rule}'", lab.ns("server")));
}

fn clients_are_refused_by_a_closed_port_and_accelerated_to_an_open_port(network: Network) {
    for accept in ["Learned", "Confirmed"] {
        let lab = Lab::on(network);
        let (near, far) = lab.agents_that_accept(accept);
        assert_eq!(connect_at(&lab, SERVICE_PORT).0.unwrap_err().kind(), ErrorKind::ConnectionRefused);
        plain(&near, "ServerRefused", 1);
        assert_eq!(near.metric("sos_agent_accepted_total"), Some(0));
        let seen = serve(&lab, b"reply".to_vec());
        for _ in 0..3 {
            assert_works(&lab, &seen, b"reply");
        }
        assert_eq!(near.metric("sos_agent_accepted_total"), Some(3));
        near.wait_metric("sos_agent_sessions_ended_total{role=\"ingress\",reason=\"finished\"}", |n| n == 3);
        assert_eq!(seen.try_iter().count(), 0, "the server has seen only the clients' own connections");
        near.wait_metric("sos_agent_held_connections", |held| held == 0);
        drop(far);
    }
}

fn an_accepting_server_is_known_until_it_refuses(network: Network) {
    let lab = Lab::on(network);
    let (near, _far) = lab.agents_that_accept("Learned");
    let server = lab.at("server", || TcpListener::bind((Ipv4Addr::UNSPECIFIED, SERVICE_PORT)).unwrap());
    let first = lab.at("client", connect).unwrap();
    drop((server.accept().unwrap(), first, server));
    // The server is known, so the client is accepted early and then reset, perhaps before `connect` has returned.
    let seen = match connect_at(&lab, SERVICE_PORT).0 {
        Ok(mut stream) => crate::lab::wire::drain(&mut stream).1,
        Err(error) => Some(error.kind()),
    };
    assert_eq!(seen, Some(ErrorKind::ConnectionReset));
    let refused =
        || connect_at(&lab, SERVICE_PORT).0.is_err_and(|e| e.kind() == ErrorKind::ConnectionRefused);
    eventually("the server is no longer known", refused);
    plain(&near, "ServerRefused", 1);
}

fn icmp_errors_reach_the_client_unchanged(network: Network) {
    let (unreachable, refused) = (Errno::EHOSTUNREACH, Errno::ECONNREFUSED);
    for (kind, code) in [("admin-prohibited", unreachable), ("port-unreachable", refused)] {
        let lab = Lab::on(network);
        let (near, _far) = lab.agents_that_accept("Confirmed");
        firewall(&lab, &format!("reject with icmp type {kind}"));
        let (got, took) = connect_at(&lab, SERVICE_PORT);
        assert_eq!(got.unwrap_err().raw_os_error(), Some(code as i32), "{kind}");
        assert!(took < AT_ONCE, "{took:?}");
        plain(&near, "ServerRefused", 1);
    }
}

fn a_silent_server_has_the_timeout_of_plain_tcp(network: Network) {
    let lab = Lab::on(network);
    let (near, _far) = lab.agents_that_accept("Learned");
    let seen = serve(&lab, b"reply".to_vec());
    firewall(&lab, "drop");
    let client = lab.start("client", connect);
    plain(&near, "ServerSilent", 1);
    assert!(!client.is_finished(), "the client still waits");
    firewall(&lab, "accept");
    drop(client.join().unwrap().unwrap());
    seen.recv_timeout(PATIENCE).unwrap();
    assert_works(&lab, &seen, b"reply");
}

fn a_silent_egress_agent_makes_the_client_plain(network: Network) {
    let lab = Lab::on(network);
    let (near, far) = lab.agents_that_accept("Confirmed");
    let seen = serve(&lab, b"reply".to_vec());
    far.stop();
    assert_works(&lab, &seen, b"reply");
    plain(&near, "NoAnswer", 1);
    far.signal(Signal::SIGCONT);
    assert_eq!(near.metric("sos_agent_accepted_total"), Some(0));
}

#[test]
fn clients_of_a_killed_ingress_agent_are_plain_immediately() {
    let lab = Lab::new();
    let (mut near, _far) = lab.agents_that_accept("Confirmed");
    let seen = serve(&lab, b"reply".to_vec());
    assert_works(&lab, &seen, b"reply");
    near.kill();
    let (got, took) = connect_at(&lab, SERVICE_PORT);
    got.unwrap();
    assert!(took < AT_ONCE, "{took:?}: the nft table of the killed agent still has its heartbeat");
}

#[test]
fn a_flood_of_syns_does_not_affect_other_connections() {
    const FLOOD: u16 = 4_000;
    let lab = Lab::new();
    let (near, _far) = lab.agents_that_accept("Confirmed");
    let seen = serve(&lab, b"reply".to_vec());
    firewall(&lab, "accept");
    sh(&format!("ip netns exec {} nft add rule ip f i tcp dport 5000-5999 drop", lab.ns("server")));
    let flood = lab.start("client", || {
        let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::TCP)).unwrap();
        for number in 0..FLOOD {
            let segment = syn(20_000 + number, 5_100 + number % 800);
            socket.send_to(&segment, &SocketAddr::from((SERVER, 0)).into()).unwrap();
        }
    });
    for _ in 0..5 {
        assert_works(&lab, &seen, b"reply");
    }
    flood.join().unwrap();
    near.wait_metric("sos_agent_syns_total{decision=\"held\"}", |held| held >= u64::from(FLOOD));
    near.wait_metric("sos_agent_held_connections", |held| held == 0);
}

/// A SYN with a correct checksum.
fn syn(port: u16, to: u16) -> Vec<u8> {
    let mut segment = [port.to_be_bytes(), to.to_be_bytes()].concat();
    segment.extend([0, 0, 0, 1, 0, 0, 0, 0, 5 << 4, 2, 0xff, 0xff, 0, 0, 0, 0]);
    let addresses = [crate::lab::CLIENT.octets(), SERVER.octets()].concat();
    let words = addresses.chunks(2).chain(segment.chunks(2)).map(|w| u32::from(w[0]) << 8 | u32::from(w[1]));
    let sum = words.sum::<u32>() + 6 + 20;
    let folded = (sum & 0xffff) + (sum >> 16);
    let checksum = !u16::try_from((folded & 0xffff) + (folded >> 16)).unwrap();
    segment[16..18].copy_from_slice(&checksum.to_be_bytes());
    segment
}
