//! A client's identity towards its server: the source address of the egress agent's connection, and the header of the PROXY protocol.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};

use serde_json::json;

use crate::lab::agent::Agent;
use crate::lab::wire::{assert_works, connect, content, digest, drain, fetch, serve};
use crate::lab::{CLIENT, Lab, Network, PATIENCE, SERVER, SERVICE_PORT, sh};

/// The egress agent's address on the route to the server.
const AGENT: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 254);
const HEADER_LEN: usize = 28;

/// Position of the server relative to the egress agent.
#[derive(Clone, Copy)]
enum Position {
    /// A pod of the agent's node.
    Beside,
    /// A machine, or a pod of another node.
    Elsewhere,
}

/// Starts agents that connect to servers from the egress agent's own address.
fn agents(lab: &Lab, position: Position, accept: &str, proxy_protocol: &str) -> (Agent, Agent) {
    let proxied = proxy_protocol != "None";
    lab.agents_with(|side, document| {
        let service = &mut document["services"][0];
        service["accept"] = accept.into();
        if side.host == "near" && matches!(position, Position::Elsewhere) {
            document["peers"][0]["agents"][0]["prefixes"] = json!([]);
        } else if side.host == "far" {
            service["source"] = "Agent".into();
            if proxied {
                service["proxyProtocol"] = proxy_protocol.into();
            }
            if document.get("pods").is_some() && matches!(position, Position::Elsewhere) {
                document["pods"] = json!([]);
            }
        }
    })
}

/// A server's view of a connection that starts with a header.
struct Proxied {
    from: SocketAddr,
    header: [u8; HEADER_LEN],
    /// Digest of the bytes after the header, and the error at their end.
    payload: ([u8; 32], Option<ErrorKind>),
}

impl Proxied {
    /// Asserts that the agent's connection has named the client.
    fn assert_names(&self, client: SocketAddr, server: Ipv4Addr) {
        assert_eq!(self.from.ip(), AGENT, "the agent connects from its own address");
        let mut expected = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x0c".to_vec();
        expected.extend(CLIENT.octets());
        expected.extend(server.octets());
        expected.extend(client.port().to_be_bytes());
        expected.extend(SERVICE_PORT.to_be_bytes());
        assert_eq!(self.header.as_slice(), expected);
    }
}

/// Starts a server that reads the header of each connection, sends `greeting`, reads to the end, and then answers with `reply`.
fn serve_proxied(lab: &Lab, greeting: &'static [u8], reply: Vec<u8>) -> Receiver<Proxied> {
    let (tell, seen) = channel();
    let listener = lab.at("server", || TcpListener::bind((Ipv4Addr::UNSPECIFIED, SERVICE_PORT)).unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (tell, reply) = (tell.clone(), reply.clone());
            std::thread::spawn(move || {
                let _ = serve_one(stream.unwrap(), greeting, &reply).map(|one| tell.send(one));
            });
        }
    });
    seen
}

fn serve_one(mut stream: TcpStream, greeting: &[u8], reply: &[u8]) -> std::io::Result<Proxied> {
    let mut header = [0; HEADER_LEN];
    stream.read_exact(&mut header)?;
    stream.write_all(greeting)?;
    let payload = drain(&mut stream);
    stream.write_all(reply)?;
    Ok(Proxied { from: stream.peer_addr()?, header, payload })
}

/// Transfers bulk data, which the agents relay through pipes, in both directions.
fn a_header_precedes_the_payload(network: Network, position: Position) {
    let lab = Lab::on(network);
    let (near, far) = agents(&lab, position, "Learned", "V2");
    let (request, reply) = (content(1, 24 << 20), content(2, 24 << 20));
    let (length, sent, expected) = (request.len() as u64, digest(&request), digest(&reply));
    let seen = serve_proxied(&lab, b"", reply);
    let got = lab.at("client", move || fetch(&request)).unwrap();
    assert_eq!((got.error, got.digest), (None, expected));
    let seen = seen.recv_timeout(PATIENCE).unwrap();
    seen.assert_names(got.from, SERVER);
    assert_eq!(seen.payload, (sent, None), "each byte of the client arrives once, after the header");
    assert_eq!(near.metric("sos_agent_accepted_total"), Some(1));
    far.wait_metric("sos_agent_sessions", |sessions| sessions == 0);
    assert_eq!(
        far.metric("sos_agent_received_bytes_total"),
        Some(length),
        "the header is no byte of the session"
    );
}

#[test]
fn a_server_behind_a_router_reads_the_header_before_the_payload() {
    a_header_precedes_the_payload(Network::Routes, Position::Elsewhere);
}

#[test]
fn a_server_outside_the_nodes_pods_reads_the_header_before_the_payload() {
    a_header_precedes_the_payload(Network::Pods, Position::Elsewhere);
}

#[test]
fn a_server_in_a_pod_of_the_agents_node_reads_the_header_before_the_payload() {
    a_header_precedes_the_payload(Network::Pods, Position::Beside);
}

/// The server sees the agent's address, and the client's bytes alone.
fn no_header_without_the_option(network: Network, position: Position) {
    let lab = Lab::on(network);
    let (near, _far) = agents(&lab, position, "Learned", "None");
    let (request, reply) = (content(1, 100_000), content(2, 100_000));
    let (sent, expected) = (digest(&request), digest(&reply));
    let seen = serve(&lab, reply);
    let got = lab.at("client", move || fetch(&request)).unwrap();
    assert_eq!((got.error, got.digest), (None, expected));
    let seen = seen.recv_timeout(PATIENCE).unwrap();
    assert_eq!((seen.client.ip(), seen.digest, seen.error), (AGENT.into(), sent, None));
    assert_eq!(near.metric("sos_agent_accepted_total"), Some(1));
}

#[test]
fn a_server_behind_a_router_sees_the_agents_address_with_source_agent() {
    no_header_without_the_option(Network::Routes, Position::Elsewhere);
}

#[test]
fn a_server_outside_the_nodes_pods_sees_the_agents_address_with_source_agent() {
    no_header_without_the_option(Network::Pods, Position::Elsewhere);
}

#[test]
fn a_server_in_a_pod_of_the_agents_node_sees_the_agents_address_with_source_agent() {
    no_header_without_the_option(Network::Pods, Position::Beside);
}

#[test]
fn a_half_close_without_data_follows_the_header() {
    for accept in ["Early", "Confirmed"] {
        let lab = Lab::on(Network::Pods);
        let _agents = agents(&lab, Position::Elsewhere, accept, "V2");
        let seen = serve_proxied(&lab, b"", b"reply".to_vec());
        let got = lab.at("client", || fetch(b"")).unwrap();
        assert_eq!((got.error, got.digest), (None, digest(b"reply")), "{accept}");
        let seen = seen.recv_timeout(PATIENCE).unwrap();
        seen.assert_names(got.from, SERVER);
        assert_eq!(seen.payload, (digest(b""), None), "{accept}");
    }
}

/// With `Confirmed`, the egress agent has connected before the session begins.
#[test]
fn a_server_that_speaks_first_has_the_header_before_the_clients_first_byte() {
    for accept in ["Early", "Confirmed"] {
        let lab = Lab::on(Network::Pods);
        let (near, _far) = agents(&lab, Position::Elsewhere, accept, "V2");
        let seen = serve_proxied(&lab, b"hello", Vec::new());
        let mut client = lab.at("client", connect).unwrap();
        let mut greeting = [0; 5];
        client.read_exact(&mut greeting).unwrap();
        assert_eq!(&greeting, b"hello", "{accept}");
        client.write_all(b"request").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let seen = seen.recv_timeout(PATIENCE).unwrap();
        seen.assert_names(client.local_addr().unwrap(), SERVER);
        assert_eq!(seen.payload, (digest(b"request"), None), "{accept}");
        assert_eq!(near.metric("sos_agent_accepted_total"), Some(1), "{accept}");
    }
}

#[test]
fn connections_to_the_agents_own_machine_stay_plain_with_source_agent() {
    for network in [Network::Routes, Network::Pods] {
        let lab = Lab::on(network);
        let (near, _far) = agents(&lab, Position::Elsewhere, "Confirmed", "V2");
        let listener = lab.at("far", || TcpListener::bind((AGENT, SERVICE_PORT)).unwrap());
        let (tell, seen) = channel();
        std::thread::spawn(move || tell.send(listener.accept().unwrap().1));
        let client =
            lab.at("client", || TcpStream::connect_timeout(&(AGENT, SERVICE_PORT).into(), PATIENCE)).unwrap();
        assert_eq!(seen.recv_timeout(PATIENCE).unwrap(), client.local_addr().unwrap());
        assert_eq!(near.metric("sos_agent_accepted_total"), Some(0));
    }
}

#[test]
fn connections_to_a_server_that_refuses_the_nodes_address_are_plain() {
    for accept in ["Learned", "Confirmed"] {
        let lab = Lab::on(Network::Pods);
        let nft = format!("ip netns exec {} nft", lab.ns("server"));
        sh(&format!("{nft} add table ip guard"));
        sh(&format!("{nft} 'add chain ip guard arrived {{ type filter hook input priority 0; }}'"));
        sh(&format!(
            "{nft} add rule ip guard arrived ip saddr {AGENT} tcp dport {SERVICE_PORT} reject with tcp reset"
        ));
        let (near, _far) = agents(&lab, Position::Elsewhere, accept, "None");
        let seen = serve(&lab, b"reply".to_vec());
        for _ in 0..3 {
            assert_works(&lab, &seen, b"reply");
        }
        assert_eq!(near.metric("sos_agent_accepted_total"), Some(0), "{accept}");
    }
}

/// Replaces a Service's address by the server's, as kube-proxy does on each node, for packets of the node and for forwarded packets.
fn translate(lab: &Lab, service: Ipv4Addr) {
    let nft = format!("ip netns exec {} nft", lab.ns("far"));
    sh(&format!("{nft} add table ip services"));
    for (hook, priority) in [("prerouting", -100), ("output", -100)] {
        sh(&format!("{nft} 'add chain ip services {hook} {{ type nat hook {hook} priority {priority}; }}'"));
        sh(&format!(
            "{nft} add rule ip services {hook} ip daddr {service} tcp dport {SERVICE_PORT} dnat to {SERVER}"
        ));
    }
    sh(&format!("{nft} 'add chain ip services leave {{ type nat hook postrouting priority 100; }}'"));
    sh(&format!("{nft} add rule ip services leave ct status dnat masquerade"));
}

#[test]
fn a_services_address_is_reached_through_the_nodes_own_translation() {
    const SERVICE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 200);
    let lab = Lab::on(Network::Pods);
    translate(&lab, SERVICE);
    let (near, _far) = agents(&lab, Position::Elsewhere, "Learned", "V2");
    let seen = serve_proxied(&lab, b"", b"reply".to_vec());
    let (from, reply) = lab.at("client", || {
        let mut stream = TcpStream::connect_timeout(&(SERVICE, SERVICE_PORT).into(), PATIENCE).unwrap();
        stream.write_all(b"request").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        (stream.local_addr().unwrap(), drain(&mut stream))
    });
    assert_eq!(reply, (digest(b"reply"), None));
    let seen = seen.recv_timeout(PATIENCE).unwrap();
    seen.assert_names(from, SERVICE);
    assert_eq!(seen.payload, (digest(b"request"), None));
    assert_eq!(near.metric("sos_agent_accepted_total"), Some(1));
}
