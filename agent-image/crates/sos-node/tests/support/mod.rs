//! Helpers of all tests: documents with a correct hash, a node in memory, and a lab.
#![allow(dead_code, reason = "each test binary uses a part")]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails, in its helpers too")]

pub(crate) mod fake;
pub(crate) mod hosts;
pub(crate) mod lab;

use serde_json::{Value, json};
use sos_daemon::document::document_hash;
use sos_node::config::NodeConfig;
use sos_node::observation::flow::{Flow, FlowKey, base_cookie};

/// A document with the hash of its content.
pub(crate) fn sealed(mut document: Value) -> Vec<u8> {
    let hash = document_hash(document.to_string().as_bytes()).unwrap();
    document["hash"] = json!(hash);
    document.to_string().into_bytes()
}

/// Adds the hash to a document, and parses the document.
pub(crate) fn config(document: Value) -> NodeConfig {
    NodeConfig::parse(&sealed(document)).unwrap()
}

/// A document of a node with an empty bridge; `change` adds to it.
pub(crate) fn document(change: impl FnOnce(&mut Value)) -> Value {
    let mut value = json!({
        "version": "v1alpha1", "generation": 1, "hash": "",
        "node": "n1", "site": "west", "siteID": 1, "state": "Present",
        "bridge": {"name": "br-sos", "datapathId": "00013c2a51b7d0e4", "datapathType": "Auto", "mtu": 1450, "userspaceTso": true},
        "uplinks": [], "tunnels": [], "agentPorts": [], "controllers": [], "baseFlows": [],
    });
    change(&mut value);
    value
}

/// The base entries of a config whose texts are already as Open vSwitch prints them.
pub(crate) fn base_flows(config: &NodeConfig) -> Vec<Flow> {
    let cookie = base_cookie(config);
    let key = |f: &sos_node::config::BaseFlow| FlowKey {
        table: f.table,
        priority: f.priority,
        matches: f.r#match.as_str().into(),
    };
    config
        .base_flows
        .iter()
        .map(|f| Flow { key: key(f), cookie, actions: f.actions.as_str().into() })
        .collect()
}
