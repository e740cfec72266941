//! Decisions of nft about a client's first packet.

use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, SocketAddr};

use socket2::{Domain, Protocol, Socket, Type};

use sos_agent::netns::nft::UNARMED_MAC;

use crate::lab::wire::{digest, fetch, fetch_from, serve};
use crate::lab::{CLIENT, FAR, Lab, NEAR, Network, PATIENCE, SERVER, SERVICE_PORT, eventually, sh};

on_every_network!(a_client_may_use_the_same_port_again);

#[test]
fn a_retransmitted_syn_stays_plain() {
    let lab = Lab::new();
    let near = lab.agent_until_ready(NEAR);
    // The far namespace also forwards without an agent, if an agent has run there before.
    near.wait_armed_and_not(lab.agent(FAR));
    let seen = serve(&lab, b"reply".to_vec());
    // Without this neighbour entry, the near namespace would send the client an ICMP error: the server is unreachable.
    lab.ip("near", &format!("neigh replace {SERVER} lladdr 02:53:00:00:00:22 dev net0 nud permanent"));
    // The server does not receive the first SYN; the client retransmits it after at least one second.
    lab.ip("sw", "link set p-server down");
    let client = lab.start("client", || fetch(b"request"));
    near.wait_metric("sos_agent_syns_total{decision=\"plain\"}", |syns| syns >= 1);
    let far = lab.agent(FAR);
    near.wait_metric("sos_agent_armed_regions", |armed| armed >= 1);
    near.wait_metric("sos_agent_syns_total{decision=\"plain_again\"}", |syns| syns >= 1);
    lab.ip("sw", "link set p-server up");
    let got = client.join().unwrap().unwrap();
    assert_eq!((got.error, got.digest), (None, digest(b"reply")));
    assert_eq!(seen.recv_timeout(PATIENCE).unwrap().client, got.from);
    assert_eq!(near.metric("sos_agent_accepted_total"), Some(0));
    assert_eq!(far.metric("sos_agent_sessions_begun_total"), Some(0));
}

const SYN: u8 = 0x02;
const RST_ACK: u8 = 0x14;
const ACK: u8 = 0x10;

/// Sends a bare SYN with options and without a checksum: nft decides before any check of the checksum.
fn send_syn(port: u16, options: &[u8]) {
    send_segment(port, SYN, options);
}

fn send_segment(port: u16, flags: u8, options: &[u8]) {
    let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::TCP)).unwrap();
    let mut segment = Vec::new();
    segment.extend_from_slice(&port.to_be_bytes());
    segment.extend_from_slice(&SERVICE_PORT.to_be_bytes());
    segment.extend_from_slice(&[0, 0, 0, 1, 0, 0, 0, 0]);
    let words = u8::try_from(5 + options.len() / 4).unwrap();
    segment.extend_from_slice(&[words << 4, flags, 0xff, 0xff, 0, 0, 0, 0]);
    segment.extend_from_slice(options);
    socket.send_to(&segment, &SocketAddr::from((SERVER, 0)).into()).unwrap();
}

#[test]
fn syns_with_options_that_a_relay_would_break_go_plain() {
    let md5 = [&[19, 18][..], &[0; 16], &[1, 1]].concat();
    let ao = [&[29, 16][..], &[0; 14]].concat();
    let mptcp = [30, 4, 0, 1];
    let timestamps = [8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 1];
    let lab = Lab::new();
    let (near, _far) = lab.agents();
    lab.at("client", move || {
        send_syn(40_001, &md5);
        send_syn(40_002, &ao);
        send_syn(40_003, &mptcp);
        send_syn(40_004, &timestamps);
        send_syn(40_005, &[]);
    });
    near.wait_metric("sos_agent_syns_total{decision=\"plain_options\"}", |syns| syns == 3);
    near.wait_metric("sos_agent_syns_total{decision=\"held\"}", |syns| syns == 2);
}

#[test]
fn a_syn_marked_as_not_armed_goes_plain_and_stays_plain() {
    let lab = Lab::new();
    let (near, _far) = lab.agents();
    let syns = |decision: &str, count: u64| {
        near.wait_metric(&format!("sos_agent_syns_total{{decision=\"{decision}\"}}"), |syns| syns == count);
    };
    // The switch of this lab does not set the marking source MAC address, so the client itself uses that address. The kernel drops a
    // device's neighbour entries when the device's address changes.
    let wear = |mac: &str| {
        lab.ip("client", &format!("link set dev eth0 address {mac}"));
        lab.ip("client", &format!("neigh replace {SERVER} lladdr 02:53:00:00:01:01 dev eth0 nud permanent"));
    };
    wear(UNARMED_MAC);
    lab.at("client", || send_syn(40_001, &[]));
    syns("plain", 1);
    wear("02:53:00:00:00:11");
    lab.at("client", || {
        send_syn(40_001, &[]);
        send_syn(40_002, &[]);
    });
    syns("plain_again", 1);
    syns("held", 1);
    syns("plain", 1);
}

#[test]
fn the_retransmitted_syn_of_an_established_plain_connection_stays_plain() {
    let lab = Lab::new();
    let (near, _far) = lab.agents();
    lab.at("client", || {
        send_segment(40_001, ACK, &[]);
        send_segment(40_002, RST_ACK, &[]);
        send_syn(40_001, &[]);
        send_syn(40_002, &[]);
    });
    near.wait_metric("sos_agent_syns_total{decision=\"plain_again\"}", |syns| syns == 1);
    near.wait_metric("sos_agent_syns_total{decision=\"held\"}", |syns| syns == 1);
}

#[test]
fn clients_outside_the_service_go_plain() {
    const OTHER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 200);
    let lab = Lab::new();
    let (near, _far) = lab.agents();
    lab.ip("client", &format!("address add {OTHER}/24 dev eth0"));
    lab.ip("server", &format!("neigh replace {OTHER} lladdr 02:53:00:00:00:11 dev eth0 nud permanent"));
    let seen = serve(&lab, b"reply".to_vec());
    lab.at("client", || {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from((OTHER, 0)).into()).unwrap();
        socket.connect(&SocketAddr::from((SERVER, SERVICE_PORT)).into()).unwrap();
        socket.shutdown(std::net::Shutdown::Write).unwrap();
        let mut reply = [MaybeUninit::uninit(); 16];
        assert_eq!(socket.recv(&mut reply).unwrap(), 5);
    });
    assert_eq!(seen.recv_timeout(PATIENCE).unwrap().client.ip(), OTHER);
    assert_eq!(near.metric("sos_agent_accepted_total"), Some(0));
}

fn a_client_may_use_the_same_port_again(network: Network) {
    let lab = Lab::on(network);
    let (near, _far) = lab.agents();
    let _seen = serve(&lab, b"reply".to_vec());
    // The client closes first, so its kernel keeps the port in TIME-WAIT; this setting allows reuse as early as RFC 6191 permits.
    sh(&format!("ip netns exec {} sysctl -qw net.ipv4.tcp_tw_reuse=1", lab.ns("client")));
    for round in 1..=3 {
        let mut got = None;
        eventually("the client's port is free again", || {
            got = lab.at("client", || fetch_from(41_000, b"request")).ok();
            got.is_some()
        });
        let got = got.unwrap();
        assert_eq!((got.error, got.digest, got.from), (None, digest(b"reply"), (CLIENT, 41_000).into()));
        assert_eq!(near.metric("sos_agent_accepted_total"), Some(round));
    }
}
