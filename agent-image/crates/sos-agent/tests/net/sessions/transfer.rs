//! Transfers that succeed.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::{Arc, Barrier};

use crate::lab::wire::{Seen, assert_works, connect, content, digest, fetch, serve};
use crate::lab::{CLIENT, FAR, Lab, NEAR, Network, SERVER, SERVICE_PORT};

on_every_network!(
    both_directions_arrive_unchanged_and_each_end_sees_the_other,
    a_hundred_simultaneous_connections_succeed,
    connections_go_plain_while_the_ingress_agent_has_no_peer
);

const BULK: usize = 24 << 20;

fn both_directions_arrive_unchanged_and_each_end_sees_the_other(network: Network) {
    let lab = Lab::on(network);
    let (near, far) = lab.agents();
    let (request, reply) = (content(1, BULK), content(2, BULK));
    let (sent, expected) = (digest(&request), digest(&reply));
    let seen = serve(&lab, reply);
    let got = lab.at("client", move || fetch(&request)).unwrap();
    // The reply follows the client's FIN: the half-close is forwarded, and the other direction stays open.
    assert_eq!((got.error, got.digest), (None, expected));
    assert_eq!(got.peer, (SERVER, SERVICE_PORT).into());
    let seen = seen.recv().unwrap();
    assert_eq!(seen, Seen { client: got.from, digest: sent, error: None });
    assert_eq!(seen.client.ip(), CLIENT);
    for agent in [&near, &far] {
        assert!(
            agent.metric("sos_agent_sent_bytes_total").unwrap() >= BULK as u64,
            "the transfer went through the agents"
        );
        agent.wait_metric("sos_agent_sessions", |sessions| sessions == 0);
    }
    assert_eq!(near.metric("sos_agent_sessions_ended_total{role=\"ingress\",reason=\"finished\"}"), Some(1));
    assert_eq!(far.metric("sos_agent_sessions_ended_total{role=\"egress\",reason=\"finished\"}"), Some(1));
}

fn a_hundred_simultaneous_connections_succeed(network: Network) {
    const COUNT: usize = 100;
    let lab = Lab::on(network);
    let (near, _far) = lab.agents();
    let reply = content(2, 50_000);
    let expected = digest(&reply);
    let seen = serve(&lab, reply);
    let start = Arc::new(Barrier::new(COUNT));
    let clients: Vec<_> = (0..COUNT)
        .map(|number| {
            let start = Arc::clone(&start);
            lab.start("client", move || {
                let request = content(u8::try_from(number).unwrap(), 20_000);
                start.wait();
                (digest(&request), fetch(&request).unwrap())
            })
        })
        .collect();
    let mut sent: Vec<_> = clients
        .into_iter()
        .map(|client| {
            let (sent, got) = client.join().unwrap();
            assert_eq!((got.error, got.digest), (None, expected));
            (got.from, sent)
        })
        .collect();
    let mut received: Vec<_> =
        (0..COUNT).map(|_| seen.recv().unwrap()).map(|s| (s.client, s.digest)).collect();
    sent.sort_unstable();
    received.sort_unstable();
    assert_eq!(sent, received);
    assert_eq!(near.metric("sos_agent_accepted_total"), Some(COUNT as u64));
    near.wait_metric("sos_agent_sessions", |sessions| sessions == 0);
}

fn connections_go_plain_while_the_ingress_agent_has_no_peer(network: Network) {
    let lab = Lab::on(network);
    let (near, mut far) = lab.agents();
    far.kill();
    near.wait_metric("sos_agent_armed_regions", |armed| armed == 0);
    let reply = content(2, 100_000);
    let seen = serve(&lab, reply.clone());
    assert_works(&lab, &seen, &reply);
    assert_eq!(near.metric("sos_agent_accepted_total"), Some(0));
    if network != Network::Pods {
        // Pods' tables are not read for metrics.
        near.wait_metric("sos_agent_syns_total{decision=\"plain\"}", |syns| syns == 1);
    }
}

#[test]
fn an_established_plain_connection_survives_arming() {
    let lab = Lab::new();
    let near = lab.agent(NEAR);
    // The egress namespace also forwards without an agent, if an agent has run there before.
    near.wait_armed_and_not(lab.agent(FAR));
    let (ready, listening) = std::sync::mpsc::channel();
    let server = lab.start("server", move || {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, SERVICE_PORT)).unwrap();
        ready.send(()).unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        let mut buffer = [0; 4];
        while stream.read_exact(&mut buffer).is_ok() {
            stream.write_all(&buffer).unwrap();
        }
    });
    listening.recv().unwrap();
    let mut stream = lab.at("client", connect).unwrap();
    let mut echo = |word: &[u8; 4]| {
        let mut back = [0; 4];
        stream.write_all(word).unwrap();
        stream.read_exact(&mut back).unwrap();
        assert_eq!(&back, word);
    };
    echo(b"one.");
    let far = lab.agent(FAR);
    near.wait_metric("sos_agent_armed_regions", |armed| armed >= 1);
    for _ in 0..20 {
        echo(b"two.");
    }
    assert_eq!(far.metric("sos_agent_sessions_begun_total"), Some(0));
    drop(stream);
    server.join().unwrap();
}
