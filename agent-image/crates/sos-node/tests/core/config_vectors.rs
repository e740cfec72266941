//! The golden vectors of node-config (spec/vectors/config), and further invalid documents.

use std::path::PathBuf;

use crate::support::{config, document, sealed};
use serde_json::{Value, json};
use sos_node::config::{NodeConfig, Refusal, supersedes};
use sos_node::edge::node::Target;

fn vectors(folder: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../spec/vectors/config").join(folder);
    let files = std::fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().path());
    let found: Vec<_> = files.map(|path| (path.clone(), std::fs::read(path).unwrap())).collect();
    assert!(!found.is_empty(), "no vectors in {}", root.display());
    found
}

#[test]
fn good_documents_are_accepted() {
    for (path, bytes) in vectors("node") {
        let config = NodeConfig::parse(&bytes).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let entries = config.base_flows.len();
        let target = Target::new(config).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert_eq!(target.flows.len(), entries, "Open vSwitch understands each base entry");
    }
}

/// A document of a folder with parts, as the node process reads it.
fn read_from_folder(vector: &Value) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    for (name, content) in vector["files"].as_object().unwrap() {
        std::fs::write(folder.path().join(name), content.to_string()).unwrap();
    }
    let node = vector["whole"]["node"].as_str().unwrap();
    sos_daemon::files::read_with_parts(&folder.path().join(format!("{node}.json"))).unwrap()
}

#[test]
fn documents_with_parts_equal_those_without() {
    for (path, bytes) in vectors("parts/node") {
        let vector: Value = serde_json::from_slice(&bytes).unwrap();
        let mut found = NodeConfig::parse(&read_from_folder(&vector))
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let mut whole = NodeConfig::parse(vector["whole"].to_string().as_bytes()).unwrap();
        found.tunnels.sort_by_key(|tunnel| tunnel.ofport);
        whole.tunnels.sort_by_key(|tunnel| tunnel.ofport);
        assert!(!found.tunnels.is_empty());
        // The parts are those of all nodes, so that they have guards of ports that this node does not have: no packet matches these.
        for flow in &whole.base_flows {
            assert!(found.base_flows.contains(flow), "{}: {flow:?}", path.display());
        }
        for flow in found.base_flows.iter().filter(|flow| !whole.base_flows.contains(flow)) {
            assert!(flow.r#match.as_str().starts_with("in_port="), "{}: {flow:?}", path.display());
        }
        let entries = found.base_flows.len();
        assert_eq!(
            Target::new(found.clone()).unwrap().flows.len(),
            entries,
            "Open vSwitch understands each base entry"
        );
        found.hash.clone_from(&whole.hash);
        found.number = None;
        found.base_flows.clone_from(&whole.base_flows);
        assert_eq!(found, whole, "{}", path.display());
    }
}

#[test]
fn meshes_out_of_bounds_are_refused() {
    let many: Vec<_> = (0..=16_384).map(|i| format!("in_port={i}")).collect();
    let group = json!({"table": 0, "priority": 1, "actions": "drop", "matches": many});
    let nodes: serde_json::Map<_, _> = (1..=1_026).map(|i| (i.to_string(), json!("192.0.2.1"))).collect();
    let cases = [
        (json!({"udpPort": 14789, "nodes": {"1": "192.0.2.1"}}), json!(null), json!([]), "number"),
        (json!({"udpPort": 14789, "nodes": {"1": "192.0.2.1"}}), json!(0), json!([]), "number"),
        (json!({"udpPort": 14789, "nodes": {"4096": "192.0.2.1"}}), json!(1), json!([]), "mesh.nodes.4096"),
        (
            json!({"udpPort": 0, "nodes": {"1": "192.0.2.1", "2": "192.0.2.2"}}),
            json!(1),
            json!([]),
            "tunnels[0].udpPort",
        ),
        (json!({"udpPort": 14789, "nodes": nodes}), json!(1), json!([]), "mesh.nodes"),
        (json!(null), json!(1), json!([group]), "flowGroups"),
    ];
    for (mesh, number, groups, path) in cases {
        let mut changed = document(|_| ());
        for (name, value) in [("mesh", mesh), ("number", number), ("flowGroups", groups)] {
            if !value.is_null() {
                changed[name] = value;
            }
        }
        changed["tunnels"] = json!([]);
        assert_eq!(NodeConfig::parse(&sealed(changed)).unwrap_err().path, path);
    }
}

#[test]
fn bad_documents_name_the_path() {
    for (path, bytes) in vectors("bad/node") {
        let vector: Value = serde_json::from_slice(&bytes).unwrap();
        let expected = vector["path"].as_str().unwrap();
        let error = NodeConfig::parse(vector["document"].to_string().as_bytes())
            .expect_err(&path.display().to_string());
        // For a missing or unknown field, serde names the parent.
        let parent = expected.rsplit_once('.').map_or(".", |(parent, _)| parent);
        let found = error.path == expected || (error.path == parent && error.message.contains("field"));
        assert!(found, "{}: {error} instead of {expected}", path.display());
    }
}

#[test]
fn text_unsafe_for_a_command_line_is_refused() {
    let cases: [(&str, Value, &str); 9] = [
        ("/uplinks", json!([{"name": "-x", "ofport": 1, "base": true}]), "uplinks[0].name"),
        ("/uplinks", json!([{"name": "wan0 up", "ofport": 1, "base": true}]), "uplinks[0].name"),
        ("/uplinks", json!([{"name": "wan0", "ofport": 0, "base": true}]), "uplinks[0].ofport"),
        ("/bridge/name", json!("a/../../b"), "bridge.name"),
        ("/bridge/mtu", json!(99_999), "bridge.mtu"),
        ("/controllers", json!(["tcp:192.0.2.1:6653 bad"]), "controllers[0]"),
        (
            "/baseFlows",
            json!([{"table": 0, "priority": 1, "match": "ip\nip", "actions": "drop"}]),
            "baseFlows[0].match",
        ),
        (
            "/baseFlows",
            json!([{"table": 0, "priority": 1, "match": "", "actions": "drop#"}]),
            "baseFlows[0].actions",
        ),
        (
            "/tunnels",
            json!([{"name": "a", "ofport": 1, "remote": "192.0.2.1", "vni": 5, "udpPort": 1, "base": true},
                   {"name": "b", "ofport": 2, "remote": "192.0.2.2", "vni": 5, "udpPort": 1, "base": true}]),
            "tunnels[1].vni",
        ),
    ];
    for (pointer, value, path) in cases {
        let bytes = sealed(document(|d| *d.pointer_mut(pointer).unwrap() = value));
        assert_eq!(NodeConfig::parse(&bytes).unwrap_err().path, path, "{pointer}");
    }
}

#[test]
fn an_error_always_has_a_path() {
    assert_eq!(NodeConfig::parse(br#"{"":1}"#).unwrap_err().path, ".");
    assert_eq!(NodeConfig::parse(b"").unwrap_err().path, ".");
}

#[test]
fn only_a_newer_document_takes_over() {
    let of = |generation: u64, mtu: u32| {
        config(document(|d| {
            d["generation"] = json!(generation);
            d["bridge"]["mtu"] = json!(mtu);
        }))
    };
    let in_force = of(5, 1400);
    assert_eq!(supersedes(&of(1, 1400), None), Ok(true));
    assert_eq!(supersedes(&of(5, 1400), Some(&in_force)), Ok(false));
    assert_eq!(supersedes(&of(6, 1400), Some(&in_force)), Ok(true));
    assert_eq!(supersedes(&of(4, 1400), Some(&in_force)), Err(Refusal::Older { offered: 4, in_force: 5 }));
    assert_eq!(supersedes(&of(5, 1500), Some(&in_force)), Err(Refusal::Changed { generation: 5 }));
}
