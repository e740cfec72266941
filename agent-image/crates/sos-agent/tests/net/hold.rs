//! SYNs held until the server has accepted (docs/adr/0053): clients see the same results as over plain TCP.

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::Signal;
use socket2::{Domain, Protocol, Socket, Type};

use crate::lab::agent::Agent;
use crate::lab::wire::{assert_works, connect, digest, fetch, serve};
use crate::lab::{Lab, Network, PATIENCE, SERVER, SERVICE_PORT, eventually, sh};

on_every_network!(
    icmp_errors_reach_the_client_unchanged,
    a_silent_server_has_the_timeout_of_plain_tcp,
    a_silent_egress_agent_makes_the_client_plain,
    clients_are_refused_by_a_closed_port_and_accelerated_to_an_open_port,
    a_client_that_receives_no_syn_ack_becomes_plain,
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

/// Drops the SYN-ACKs of the ingress agent at the client, but no SYN-ACKs of the server.
fn drop_syn_acks(lab: &Lab, network: Network) {
    let of_agent = match network {
        Network::Bridge => format!("ether saddr {}", crate::lab::mac("near")),
        // The agent's machine is a router: it lowers the TTL of the server's SYN-ACK, but not of its own.
        Network::Routes => "ip ttl > 62".to_owned(),
        Network::Pods => "iif lo".to_owned(),
    };
    let chain = "add table ip d; add chain ip d p { type filter hook prerouting priority 0; }";
    let rule = format!(
        "add rule ip d p {of_agent} tcp sport {SERVICE_PORT} tcp flags & (syn | ack) == syn | ack drop"
    );
    sh(&format!("ip netns exec {} nft '{chain}; {rule}'", lab.ns("client")));
}

fn a_client_that_receives_no_syn_ack_becomes_plain(network: Network) {
    for accept in ["Early", "Confirmed"] {
        let lab = Lab::on(network);
        let (near, _far) = lab.agents_that_accept(accept);
        let seen = serve(&lab, b"reply".to_vec());
        drop_syn_acks(&lab, network);
        // The client's retransmissions from the 8th second on are plain; a later connection is plain at once.
        let got = lab.at("client", || fetch(b"request")).unwrap();
        assert_eq!((got.error, got.digest), (None, digest(b"reply")));
        plain(&near, "ClientSilent", 1);
        let (second, took) = connect_at(&lab, SERVICE_PORT);
        second.unwrap();
        assert!(took < AT_ONCE, "{took:?}");
        plain(&near, "ClientSilent", 2);
        assert_eq!(near.metric("sos_agent_accepted_total"), Some(0));
        near.wait_metric("sos_agent_held_connections", |held| held == 0);
        let ahead = usize::from(accept == "Confirmed");
        let resets = seen.try_iter().filter(|seen| seen.error == Some(ErrorKind::ConnectionReset)).count();
        assert_eq!(resets, ahead, "the connection that the egress agent has opened ahead is released");
    }
}

#[test]
fn a_silent_client_is_tried_again_after_its_back_off() {
    let lab = Lab::new();
    let (near, _far) = lab.agents_that_accept("Early");
    let seen = serve(&lab, b"reply".to_vec());
    drop_syn_acks(&lab, Network::Bridge);
    assert_works(&lab, &seen, b"reply");
    sh(&format!("ip netns exec {} nft delete table ip d", lab.ns("client")));
    eventually("the client is accelerated", || {
        connect_at(&lab, SERVICE_PORT).0.unwrap();
        near.metric("sos_agent_accepted_total") != Some(0)
    });
}

#[test]
fn a_flood_with_forged_addresses_makes_no_other_client_plain() {
    const FLOOD: u16 = 3_000;
    let lab = Lab::new();
    let (near, _far) = lab.agents_that_accept("Early");
    let seen = serve(&lab, b"reply".to_vec());
    // An attacker with a MAC address of its own, which uses the client's address and addresses of no host.
    lab.ip("ctl", "route add 10.0.0.139/32 dev eth0");
    lab.ip("ctl", &format!("neigh add {SERVER} lladdr {} dev eth0 nud permanent", crate::lab::mac("near")));
    lab.at("ctl", || {
        let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::from(255))).unwrap();
        for number in 0..FLOOD {
            let [high, low] = (number % 64).to_be_bytes();
            let from =
                if number % 8 == 0 { crate::lab::CLIENT } else { Ipv4Addr::new(10, 0, high, 20 + low) };
            let packet = forged_syn(from, 20_000 + number);
            socket.send_to(&packet, &SocketAddr::from((SERVER, 0)).into()).unwrap();
        }
    });
    near.wait_metric("sos_agent_syns_total{decision=\"held\"}", |held| held >= u64::from(FLOOD));
    let began = Instant::now();
    // The handshakes of the flood are over within this time.
    while began.elapsed() < Duration::from_secs(10) {
        assert_works(&lab, &seen, b"reply");
        std::thread::sleep(Duration::from_millis(500));
    }
    assert_eq!(near.metric("sos_agent_plain_total{reason=\"ClientSilent\"}").unwrap_or_default(), 0);
    assert!(near.metric("sos_agent_accepted_total") >= Some(10));
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

/// A SYN to the service as an IPv4 packet from this address. The kernel fills in the checksum of the IP header (raw(7)).
fn forged_syn(from: Ipv4Addr, port: u16) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0];
    packet.extend(from.octets());
    packet.extend(SERVER.octets());
    packet.extend(syn_from(from, port, SERVICE_PORT));
    packet
}

/// A SYN of the client with a correct checksum.
fn syn(port: u16, to: u16) -> Vec<u8> {
    syn_from(crate::lab::CLIENT, port, to)
}

fn syn_from(from: Ipv4Addr, port: u16, to: u16) -> Vec<u8> {
    let mut segment = [port.to_be_bytes(), to.to_be_bytes()].concat();
    segment.extend([0, 0, 0, 1, 0, 0, 0, 0, 5 << 4, 2, 0xff, 0xff, 0, 0, 0, 0]);
    let addresses = [from.octets(), SERVER.octets()].concat();
    let words = addresses.chunks(2).chain(segment.chunks(2)).map(|w| u32::from(w[0]) << 8 | u32::from(w[1]));
    let sum = words.sum::<u32>() + 6 + 20;
    let folded = (sum & 0xffff) + (sum >> 16);
    let checksum = !u16::try_from((folded & 0xffff) + (folded >> 16)).unwrap();
    segment[16..18].copy_from_slice(&checksum.to_be_bytes());
    segment
}
