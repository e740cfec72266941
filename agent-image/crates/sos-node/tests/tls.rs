//! Certificates for TLS with controllers: the row in Open vSwitch's database, and messages for missing files.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails, in its helpers too")]

mod support;

use std::fs;
use std::path::Path;

use serde_json::json;
use sos_node::config::NodeConfig;
use sos_node::observation::observed::{Observed, Row, TlsFolder};
use sos_node::planning::change::Change;
use sos_node::planning::desired::TLS_FILES;
use sos_node::planning::plan::{Plan, plan};
use sos_node::planning::problem::Problem;
use support::lab::{Lab, wait_until};
use support::{base_flows, config, document};

fn reached_by(target: &str) -> NodeConfig {
    config(document(|d| d["controllers"] = json!([target])))
}

fn planned(config: &NodeConfig, ssl: Option<Row>, tls: Option<TlsFolder>) -> Plan {
    plan(config, &base_flows(config), &Observed { ssl, tls, ..Observed::default() })
}

fn row(plan: &Plan) -> Option<Row> {
    plan.changes.iter().find_map(|change| match change {
        Change::SetTls { row } => Some(row.clone()),
        _ => None,
    })
}

fn removed(plan: &Plan) -> bool {
    plan.changes.contains(&Change::RemoveTls)
}

fn folder(unreadable: Option<&str>) -> Option<TlsFolder> {
    Some(TlsFolder { path: "/etc/tls".into(), unreadable: unreadable.map(str::to_owned) })
}

#[test]
fn files_of_the_folder_are_set_once_for_a_controller_with_tls() {
    let secured = reached_by("ssl:192.0.2.1:6653");
    let first = planned(&secured, None, folder(None));
    let set = row(&first).unwrap();
    assert_eq!(set["private_key"], "/etc/tls/tls.key");
    assert_eq!(set["certificate"], "/etc/tls/tls.crt");
    assert_eq!(set["ca_cert"], "/etc/tls/ca.crt");
    let place = |kind: fn(&Change) -> bool| first.changes.iter().position(kind).unwrap();
    let before = place(|change| matches!(change, Change::SetTls { .. }));
    assert!(before < place(|change| matches!(change, Change::SetControllers { .. })));
    assert_eq!(row(&planned(&secured, Some(set), folder(None))), None);
}

#[test]
fn plain_controllers_get_no_certificates_and_remove_only_our_own() {
    let ours = row(&planned(&reached_by("ssl:192.0.2.1:6653"), None, folder(None))).unwrap();
    let plain = reached_by("tcp:192.0.2.1:6653");
    assert!(row(&planned(&plain, None, folder(None))).is_none());
    assert!(removed(&planned(&plain, Some(ours.clone()), folder(None))));
    assert!(removed(&planned(&reached_by("ssl:192.0.2.1:6653").absent(), Some(ours.clone()), folder(None))));
    let foreign = ours.into_iter().filter(|(column, _)| !column.contains(':')).collect();
    assert!(!removed(&planned(&plain, Some(foreign), folder(None))));
}

#[test]
fn missing_certificates_are_a_fault_that_names_file_or_option() {
    let secured = reached_by("ssl:192.0.2.1:6653");
    let without = planned(&secured, None, None);
    assert!(without.problems.contains(&Problem::NoCertificates) && row(&without).is_none());
    let unreadable = planned(&secured, None, folder(Some("/etc/tls/tls.key is empty")));
    let message = unreadable.problems[0].to_string();
    assert_eq!(message, "the controllers require TLS, and /etc/tls/tls.key is empty");
    assert!(unreadable.problems[0].is_fault() && Problem::NoCertificates.is_fault());
    assert!(row(&unreadable).is_some(), "Open vSwitch reads the files when they arrive");
}

fn database(lab: &Lab) -> String {
    lab.vsctl(&["--columns=private_key,ca_cert", "--format=csv", "--no-headings", "list", "SSL"])
}

/// Needs root.
#[test]
fn open_vswitch_gets_the_files_and_the_status_names_a_missing_one() {
    let lab = Lab::new(true);
    let tls = lab.path("tls");
    fs::create_dir(&tls).unwrap();
    for (_, file) in &TLS_FILES[1..] {
        fs::write(tls.join(file), "a certificate").unwrap();
    }
    let generation = |generation: u64, target: &str| {
        document(|d| {
            d["generation"] = json!(generation);
            d["controllers"] = json!([target]);
            d["bridge"]["datapathType"] = json!("netdev");
        })
    };
    lab.configure(generation(1, "ssl:127.0.0.1:6653"));
    let _node = lab.start_node_with(&["--openflow-tls", tls.to_str().unwrap()]);
    let key = tls.join("tls.key");
    wait_until("the message", || lab.status()["message"].as_str().is_some_and(|m| names(m, &key)));
    assert!(database(&lab).contains(key.to_str().unwrap()));
    fs::write(&key, "a key").unwrap();
    wait_until("the file", || !lab.status()["message"].as_str().unwrap().contains("tls.key"));
    lab.configure(generation(2, "tcp:127.0.0.1:6653"));
    wait_until("no certificates", || database(&lab).trim().is_empty());
}

fn names(message: &str, file: &Path) -> bool {
    message.contains(&format!("{} cannot be read: ", file.display()))
}
