use super::*;
use serde_json::{Value, json};
use sos_wire::MacAddress;

/// The agent-config of node edge1 in spec/node-config.md, with its services and peers filled in.
pub(crate) fn document() -> Value {
    json!({
        "version": "v1alpha1", "generation": 12, "hash": "",
        "node": "edge1", "pool": "default", "agentId": "39b04f05ee16a2b7d5a16e9e68355a2f",
        "site": {"name": "west", "id": 1, "prefixes": ["10.0.0.0/25"], "rewrite": "Transparent"},
        "interface": {"name": "net0", "address": "10.0.0.126/24", "mac": "02:53:00:5f:0c:12", "mtu": 1500,
                      "gateway": null, "hostName": "sosag0", "hostPort": 201},
        "discovery": {"address": "198.18.255.254", "mac": "02:53:4f:53:00:01", "beaconPort": 9875,
                      "orderPort": 9876, "redirectPort": 9877},
        "streamPorts": {"first": 10000, "count": 8},
        "peers": [{"site": "east", "siteID": 2, "prefixes": ["10.0.0.128/25"],
                   "agents": [{"id": "ad030578ad55bf67de8f32bef31dd55b", "node": "edge2",
                               "address": "10.0.0.254", "firstStreamPort": 10000}]}],
        "services": [{"id": "default/bulk", "role": "Ingress", "peer": "east", "setup": "Reactive",
                      "from": ["10.0.0.0/25"], "to": ["10.0.0.128/25"],
                      "ports": [{"first": 22, "last": 22}, {"first": 5000, "last": 5999}],
                      "transport": {"streams": 0, "blockBytes": 0, "queueBytes": 0,
                                    "congestionControl": "Auto"},
                      "labels": 1}],
        "limits": {"sessions": 4096, "memoryMiB": 1024, "sessionMemoryMiB": 32},
        "metricsAddress": "0.0.0.0:9465", "drainSeconds": 60
    })
}

/// Sets the correct hash in a document.
pub(crate) fn sealed(mut document: Value) -> Vec<u8> {
    let hash = document::document_hash(document.to_string().as_bytes()).unwrap();
    document["hash"] = json!(hash);
    document.to_string().into_bytes()
}

/// The parsed form of [`document`].
pub(crate) fn config() -> AgentConfig {
    AgentConfig::parse(&sealed(document())).unwrap()
}

fn error_of(change: impl FnOnce(&mut Value)) -> ConfigError {
    let mut value = document();
    change(&mut value);
    AgentConfig::parse(&sealed(value)).unwrap_err()
}

#[test]
fn reads_the_document_of_the_spec() {
    let config = config();
    assert_eq!(config.bridge().unwrap().interface.address.addr(), Ipv4Addr::new(10, 0, 0, 126));
    assert_eq!(config.bridge().unwrap().interface.mac, MacAddress([2, 0x53, 0, 0x5f, 0x0c, 0x12]));
    assert_eq!(config.services[0].ports[1], PortRange { first: 5000, last: 5999 });
    assert_eq!(config.peers[0].site_id, SiteId(2));
}

#[test]
fn encryption_is_off_by_default() {
    assert_eq!(config().services[0].transport.encryption, Encryption::None);
    for (said, meant) in [("None", Encryption::None), ("TLS", Encryption::Tls)] {
        let mut document = document();
        document["services"][0]["transport"]["encryption"] = json!(said);
        let config = AgentConfig::parse(&sealed(document)).unwrap();
        assert_eq!(config.services[0].transport.encryption, meant);
    }
}

#[test]
fn compression_is_off_by_default() {
    assert_eq!(config().services[0].transport.compression, Compression::None);
    for (said, meant) in [("None", Compression::None), ("Adaptive", Compression::Adaptive)] {
        let mut document = document();
        document["services"][0]["transport"]["compression"] = json!(said);
        let config = AgentConfig::parse(&sealed(document)).unwrap();
        assert_eq!(config.services[0].transport.compression, meant);
    }
}

#[test]
fn errors_name_the_path() {
    type Case = (&'static str, fn(&mut Value));
    let cases: [Case; 19] = [
        ("version", |d| d["version"] = json!("v2")),
        ("services[0].portz", |d| d["services"][0]["portz"] = json!([])),
        ("services[0].ports[1].last", |d| d["services"][0]["ports"][1]["last"] = json!(4999)),
        ("services[0].ports[0].first", |d| d["services"][0]["ports"][0]["first"] = json!(70000)),
        ("services[0].ports", |d| d["services"][0]["ports"] = json!([])),
        ("services[0].peer", |d| d["services"][0]["peer"] = json!("north")),
        ("services[0].to[0]", |d| d["services"][0]["to"] = json!(["10.0.0.300/25"])),
        ("peers[0].agents[0].id", |d| d["peers"][0]["agents"][0]["id"] = json!("zz")),
        ("peers[0].siteID", |d| d["peers"][0]["siteID"] = json!(1)),
        ("interface.mac", |d| d["interface"]["mac"] = json!("02:53")),
        ("interface.name", |d| d["interface"]["name"] = json!("net0 up")),
        ("interface.gateway", |d| d["interface"]["gateway"] = json!("10.9.0.1")),
        ("limits.sessionMemoryMiB", |d| d["limits"]["sessionMemoryMiB"] = json!(2048)),
        ("discovery.redirectPort", |d| d["discovery"]["redirectPort"] = json!(0)),
        ("discovery.redirectPort", |d| d["discovery"]["redirectPort"] = json!(10_007)),
        ("site.rewrite", |d| d["site"]["rewrite"] = json!("Sometimes")),
        ("services[0].transport.compression", |d| {
            d["services"][0]["transport"]["compression"] = json!("zstd");
        }),
        ("services[0].transport.encryption", |d| d["services"][0]["transport"]["encryption"] = json!("tls")),
        ("streamPorts.count", |d| d["streamPorts"]["count"] = json!(9)),
    ];
    for (path, change) in cases {
        assert_eq!(error_of(change).path, path);
    }
}

#[test]
fn a_missing_field_is_named() {
    let error = error_of(|d| {
        d["limits"].as_object_mut().unwrap().remove("sessions");
    });
    assert_eq!(error.path, "limits.sessions");
    let error = error_of(|d| {
        d.as_object_mut().unwrap().remove("node");
    });
    assert_eq!(error.path, "node");
}

#[test]
fn an_error_always_has_a_path() {
    assert_eq!(AgentConfig::parse(br#"{"":1}"#).unwrap_err().path, ".");
    assert_eq!(AgentConfig::parse(b"").unwrap_err().path, ".");
}

fn vectors(folder: &str) -> Vec<(String, Vec<u8>)> {
    let folder = format!("{}/../../../spec/vectors/config/{folder}", env!("CARGO_MANIFEST_DIR"));
    let files: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(!files.is_empty(), "{folder}");
    files.iter().map(|file| (file.display().to_string(), std::fs::read(file).unwrap())).collect()
}

#[test]
fn reads_the_golden_documents() {
    for (file, text) in vectors("agent") {
        assert!(AgentConfig::parse(&text).is_ok(), "{file}: {:?}", AgentConfig::parse(&text));
    }
}

#[test]
fn documents_with_parts_equal_those_without() {
    for (file, text) in vectors("parts/agent") {
        let vector: Value = serde_json::from_slice(&text).unwrap();
        let folder = tempfile::tempdir().unwrap();
        for (name, content) in vector["files"].as_object().unwrap() {
            std::fs::write(folder.path().join(name), content.to_string()).unwrap();
        }
        let node = vector["whole"]["node"].as_str().unwrap();
        let bundle = sos_daemon::files::read_with_parts(&folder.path().join(format!("{node}.json"))).unwrap();
        let found = AgentConfig::parse(&bundle).unwrap_or_else(|error| panic!("{file}: {error}"));
        let whole = AgentConfig::parse(vector["whole"].to_string().as_bytes()).unwrap();
        assert_ne!(found.hash, whole.hash);
        assert_eq!(AgentConfig { hash: whole.hash.clone(), ..found }, whole, "{file}");
    }
}

#[test]
fn refuses_the_bad_documents_by_their_path() {
    for (file, text) in vectors("bad/agent") {
        let case: Value = serde_json::from_slice(&text).unwrap();
        let error = AgentConfig::parse(case["document"].to_string().as_bytes()).unwrap_err();
        assert_eq!(error.path, case["path"].as_str().unwrap(), "{file}: {error}");
    }
}

#[test]
fn a_changed_document_with_the_old_hash_is_refused() {
    let mut value: Value = serde_json::from_slice(&sealed(document())).unwrap();
    value["drainSeconds"] = json!(61);
    assert_eq!(AgentConfig::parse(value.to_string().as_bytes()).unwrap_err().path, "hash");
}

#[test]
fn only_settings_made_at_start_need_a_restart() {
    let running = config();
    let mut next = running.clone();
    next.services.clear();
    next.limits.sessions = 1;
    assert_eq!(running.restart_reason(&next), None);
    next.interface.as_mut().unwrap().mtu = 1400;
    assert_eq!(running.restart_reason(&next), Some("interface"));
}
