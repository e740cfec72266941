//! Shares of namespaces at sites without bridges: sessions above the share of a service's namespace are plain.

use std::net::{Ipv4Addr, TcpListener, TcpStream};

use serde_json::json;

use crate::lab::agent::Agent;
use crate::lab::wire::connect;
use crate::lab::{Lab, Network, SERVICE_PORT, eventually};

const SESSIONS: u64 = 3;

/// Starts agents of which one limits the namespace to [`SESSIONS`] sessions.
fn agents(lab: &Lab, limited: &str, accept: &str) -> (Agent, Agent) {
    lab.agents_with(|side, document| {
        document["services"][0]["accept"] = accept.into();
        if side.host == limited {
            document["limits"]["sessions"] = json!(100);
            document["shares"] = json!([{ "namespace": "default", "percent": SESSIONS }]);
        }
    })
}

fn accepted(near: &Agent) -> u64 {
    near.metric("sos_agent_accepted_total").unwrap()
}

/// Opens connections that stay open. Each is accepted by the server, so none has failed.
fn open(lab: &Lab, listener: &TcpListener, count: u64) -> Vec<(TcpStream, TcpStream)> {
    (0..count).map(|_| (lab.at("client", connect).unwrap(), listener.accept().unwrap().0)).collect()
}

fn keeps_the_share(network: Network, limited: &str, accept: &str) {
    let lab = Lab::on(network);
    let (near, far) = agents(&lab, limited, accept);
    let listener = lab.at("server", || TcpListener::bind((Ipv4Addr::UNSPECIFIED, SERVICE_PORT)).unwrap());
    let mut first = open(&lab, &listener, SESSIONS);
    assert_eq!(accepted(&near), SESSIONS, "{limited} {accept}");
    let _plain = open(&lab, &listener, 2);
    assert_eq!(accepted(&near), SESSIONS, "sessions above the share are plain");
    drop(first.pop());
    let ended = |agent: &Agent| agent.metric("sos_agent_sessions").is_some_and(|open| open == SESSIONS - 1);
    eventually("the end of a session", || ended(&near) && ended(&far));
    let _next = open(&lab, &listener, 2);
    assert_eq!(accepted(&near), SESSIONS + 1, "one session was free");
}

#[test]
fn an_ingress_agent_keeps_to_the_share_of_a_namespace() {
    for accept in ["Early", "Learned"] {
        keeps_the_share(Network::Pods, "near", accept);
        keeps_the_share(Network::Routes, "near", accept);
    }
}

#[test]
fn an_egress_agent_keeps_to_the_share_of_a_namespace() {
    keeps_the_share(Network::Pods, "far", "Confirmed");
    keeps_the_share(Network::Routes, "far", "Confirmed");
}
