//! Ends of sessions: refusals, killed agents, draining.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::mpsc::channel;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::lab::wire::{assert_works, connect, content, drain, serve};
use crate::lab::{Lab, NEAR, Network, PATIENCE, SERVICE_PORT, eventually, sh};

on_every_network!(
    killing_the_ingress_agent_resets_both_ends_and_new_connections_are_plain,
    killing_the_egress_agent_resets_both_ends,
    a_client_that_resets_resets_the_server,
    draining_lets_sessions_finish_and_new_ones_go_plain,
    a_server_that_refuses_resets_the_client
);

fn a_server_that_refuses_resets_the_client(network: Network) {
    let lab = Lab::on(network);
    let (near, _far) = lab.agents();
    if network == Network::Pods {
        // If the site respected network policies, the server would also refuse the check of the plain path, and the client would go plain.
        lab.configure_with(NEAR, 2, |document| document["intake"] = serde_json::json!({"type": "Pods"}));
        near.wait_metric("sos_agent_config_generation", |generation| generation == 2);
    }
    // The ingress agent accepts before the server has answered; the refusal follows as a reset.
    let error = lab.at("client", || connect().and_then(|mut stream| stream.read(&mut [0])).unwrap_err());
    assert!(matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::ConnectionRefused), "{error}");
    near.wait_metric("sos_agent_sessions_ended_total{role=\"ingress\",reason=\"server_refused\"}", |n| {
        n == 1
    });
    // A refusal is an answer, so the server does not count as unreachable, and its next connection is accelerated.
    let reply = content(2, 1_000);
    let seen = serve(&lab, reply.clone());
    assert_works(&lab, &seen, &reply);
    assert_eq!(near.metric("sos_agent_accepted_total"), Some(2));
}

#[test]
fn an_unreachable_server_resets_the_client_and_is_temporarily_plain() {
    let lab = Lab::new();
    let (near, _far) = lab.agents();
    // The egress agent uses its kernel's timeout; this setting shortens it from 127 s to 3 s.
    sh(&format!("ip netns exec {} sysctl -qw net.ipv4.tcp_syn_retries=1", lab.ns("far")));
    lab.ip("server", "link set eth0 down");
    let error = lab.at("client", || connect().and_then(|mut stream| stream.read(&mut [0])).unwrap_err());
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    near.wait_metric("sos_agent_sessions_ended_total{role=\"ingress\",reason=\"server_unreachable\"}", |n| {
        n == 1
    });
    near.wait_metric("sos_agent_unreachable_servers", |servers| servers == 1);
    lab.ip("server", "link set eth0 up");
    lab.redirect();
    let reply = content(2, 1_000);
    let seen = serve(&lab, reply.clone());
    assert_works(&lab, &seen, &reply);
    assert_eq!(near.metric("sos_agent_accepted_total"), Some(1), "the second connection went plain");
}

#[test]
fn a_syn_lost_before_the_server_delays_the_connection_by_a_second() {
    let lab = Lab::new();
    let (near, _far) = lab.agents();
    let nft = format!("ip netns exec {} nft", lab.ns("server"));
    sh(&format!("{nft} add table ip lossy"));
    sh(&format!("{nft} 'add chain ip lossy in {{ type filter hook input priority 0; }}'"));
    sh(&format!("{nft} 'add rule ip lossy in tcp flags & (syn | ack) == syn drop'"));
    let reply = content(2, 1_000);
    let seen = serve(&lab, reply.clone());
    // Remove the loss before the kernel retransmits the SYN.
    let healed = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(700));
        sh(&format!("{nft} delete table ip lossy"));
    });
    assert_works(&lab, &seen, &reply);
    healed.join().unwrap();
    assert_eq!(near.metric("sos_agent_accepted_total"), Some(1), "the connection was accelerated");
}

/// Opens a connection that carries bytes in both directions; returns both ends.
fn busy_connection(lab: &Lab) -> (TcpStream, TcpStream) {
    let (tell, accepted) = channel();
    lab.start("server", move || {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, SERVICE_PORT)).unwrap();
        tell.send(None).unwrap();
        tell.send(Some(listener.accept().unwrap().0)).unwrap();
    });
    assert!(accepted.recv().unwrap().is_none());
    let mut client = lab.at("client", connect).unwrap();
    client.write_all(b"hello").unwrap();
    let mut server = accepted.recv().unwrap().unwrap();
    server.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut hello = [0; 5];
    server.read_exact(&mut hello).unwrap();
    server.write_all(b"world").unwrap();
    client.read_exact(&mut hello).unwrap();
    assert_eq!(&hello, b"world");
    (client, server)
}

fn assert_reset(mut end: TcpStream, whose: &str) {
    let (_, error) = drain(&mut end);
    assert_eq!(error, Some(ErrorKind::ConnectionReset), "{whose} must see a reset, not a clean end");
}

fn killing_the_ingress_agent_resets_both_ends_and_new_connections_are_plain(network: Network) {
    let lab = Lab::on(network);
    let (mut near, far) = lab.agents();
    let (client, server) = busy_connection(&lab);
    near.kill();
    assert_reset(client, "the client");
    // The egress agent waits for a new stream before it aborts the session.
    assert_reset(server, "the server");
    far.wait_metric("sos_agent_sessions", |sessions| sessions == 0);
    let reply = content(2, 1_000);
    let seen = serve(&lab, reply.clone());
    assert_works(&lab, &seen, &reply);
}

#[test]
fn killing_the_ingress_agent_makes_new_connections_plain_immediately() {
    let lab = Lab::new();
    let (mut near, far) = lab.agents();
    let reply = content(2, 1_000);
    let seen = serve(&lab, reply.clone());
    assert_works(&lab, &seen, &reply);
    far.wait_metric("sos_agent_sessions_begun_total", |begun| begun == 1);
    near.kill();
    // Connect without waiting: the armed set is still in force, but its listener is closed.
    assert_works(&lab, &seen, &reply);
    assert_eq!(far.metric("sos_agent_sessions_begun_total"), Some(1));
}

fn killing_the_egress_agent_resets_both_ends(network: Network) {
    let lab = Lab::on(network);
    let (near, mut far) = lab.agents();
    let (client, server) = busy_connection(&lab);
    far.kill();
    assert_reset(server, "the server");
    assert_reset(client, "the client");
    near.wait_metric("sos_agent_sessions", |sessions| sessions == 0);
}

fn a_client_that_resets_resets_the_server(network: Network) {
    let lab = Lab::on(network);
    let (near, _far) = lab.agents();
    let (client, server) = busy_connection(&lab);
    socket2::SockRef::from(&client).set_linger(Some(std::time::Duration::ZERO)).unwrap();
    drop(client);
    assert_reset(server, "the server");
    near.wait_metric("sos_agent_sessions_ended_total{role=\"ingress\",reason=\"client_reset\"}", |n| n == 1);
}

fn draining_lets_sessions_finish_and_new_ones_go_plain(network: Network) {
    let lab = Lab::on(network);
    let (mut near, far) = lab.agents();
    let (mut client, mut server) = busy_connection(&lab);
    near.signal(Signal::SIGTERM);
    near.wait_metric("sos_agent_draining", |draining| draining == 1);
    eventually("the agent is disarmed", || near.metric("sos_agent_willing") == Some(0));
    client.write_all(b"still").unwrap();
    let mut still = [0; 5];
    server.read_exact(&mut still).unwrap();
    assert_eq!(&still, b"still");
    let reply = content(2, 1_000);
    let seen = serve(&lab, reply.clone());
    assert_works(&lab, &seen, &reply);
    assert_eq!(far.metric("sos_agent_sessions_begun_total"), Some(1), "the new connection went plain");
    client.shutdown(std::net::Shutdown::Write).unwrap();
    server.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(drain(&mut client).1, None);
    assert_eq!(drain(&mut server).1, None);
    assert_eq!(near.wait(), Some(0));
    assert!(!sh(&format!("ip netns exec {} nft list tables", lab.ns("near"))).contains("sos"));
}
