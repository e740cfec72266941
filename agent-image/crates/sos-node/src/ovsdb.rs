//! Parse `ovs-vsctl --format=json list` (RFC 7047, 5.1 has the notation of values).

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use crate::observed::{Bridge, Controller, OvsInfo, Port, Row, text};

/// The tables in the order in which [`parse`] expects them, and their columns.
pub const TABLES: [(&str, &str); 5] = [
    ("Open_vSwitch", "ovs_version,other_config,external_ids"),
    (
        "Bridge",
        "name,ports,controller,fail_mode,datapath_type,datapath_id,protocols,other_config,external_ids",
    ),
    ("Port", "_uuid,name,interfaces,protected,tag,trunks,vlan_mode,external_ids"),
    ("Interface", "_uuid,name,ofport,ofport_request,error,external_ids,mtu_request"),
    ("Controller", "_uuid,target,is_connected,connection_mode,max_backoff,inactivity_probe"),
];

/// Keys of a switch that waits for its entries: Open vSwitch's own key, which is removed before the entries are installed, and the mark of
/// the start script, which is removed afterwards.
const RESTORE_WAIT: [&str; 2] = ["other_config:flow-restore-wait", "external_ids:sos-restoring"];

/// Unexpected output of ovs-vsctl.
#[derive(Debug, thiserror::Error)]
pub enum DatabaseError {
    /// Not JSON, or not of the form of a table.
    #[error("unexpected answer of ovs-vsctl: {0}")]
    Json(#[from] serde_json::Error),
    /// Too few or too many tables.
    #[error("ovs-vsctl printed {0} tables of {expected}", expected = TABLES.len())]
    Tables(usize),
}

#[derive(Deserialize)]
struct Table {
    headings: Vec<String>,
    data: Vec<Vec<Value>>,
}

/// The part of the database that this program uses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Database {
    /// Open vSwitch itself.
    pub ovs: OvsInfo,
    /// Bridges by name.
    pub bridges: BTreeMap<String, Bridge>,
    /// Ports of all bridges by name, including local ports (named like their bridge).
    pub ports: BTreeMap<String, Port>,
}

/// Parse the answer to one `list` of each of [`TABLES`].
///
/// # Errors
/// The answer does not have that form.
pub fn parse(printed: &str) -> Result<Database, DatabaseError> {
    let tables: Vec<Table> =
        serde_json::Deserializer::from_str(printed).into_iter().collect::<Result<_, _>>()?;
    let rows: Vec<Vec<Row>> = tables.iter().map(rows_of).collect();
    let [ovs, bridges, ports, interfaces, controllers] = &rows[..] else {
        return Err(DatabaseError::Tables(rows.len()));
    };
    let interfaces = by_uuid(interfaces);
    let controllers = by_uuid(controllers);
    let port_names: BTreeMap<&str, &str> =
        ports.iter().map(|row| (text(row, "_uuid"), text(row, "name"))).collect();
    let bridges: BTreeMap<String, Bridge> = bridges
        .iter()
        .map(|row| (text(row, "name").to_owned(), bridge(row, &port_names, &controllers)))
        .collect();
    let ports = ports.iter().map(|row| (text(row, "name").to_owned(), port(row, &interfaces))).collect();
    let version = ovs.first().map_or("", |row| text(row, "ovs_version")).to_owned();
    let tso = ovs.first().is_some_and(|row| text(row, "other_config:userspace-tso-enable") == "true");
    let waits = |row| RESTORE_WAIT.iter().any(|column| text(row, column) == "true");
    let restore_wait = ovs.first().is_some_and(waits);
    Ok(Database { ovs: OvsInfo { version, tso, restore_wait }, bridges, ports })
}

fn bridge(row: &Row, ports: &BTreeMap<&str, &str>, controllers: &BTreeMap<&str, &Row>) -> Bridge {
    let names =
        items(row, "ports").filter_map(|uuid| ports.get(uuid)).map(|name| (*name).to_owned()).collect();
    let mut controllers: Vec<Controller> = items(row, "controller")
        .filter_map(|uuid| controllers.get(uuid))
        .map(|row| controller(row))
        .collect();
    controllers.sort();
    Bridge { row: row.clone(), ports: names, controllers }
}

fn controller(row: &Row) -> Controller {
    Controller {
        target: text(row, "target").to_owned(),
        connection_mode: text(row, "connection_mode").to_owned(),
        max_backoff: text(row, "max_backoff").to_owned(),
        inactivity_probe: text(row, "inactivity_probe").to_owned(),
        connected: text(row, "is_connected") == "true",
    }
}

fn port(row: &Row, interfaces: &BTreeMap<&str, &Row>) -> Port {
    let mut members = items(row, "interfaces").filter_map(|uuid| interfaces.get(uuid)).copied();
    let interface = members.next().cloned().unwrap_or_default();
    let number = |interface: &Row| text(interface, "ofport").parse().ok();
    let (ofport, more_ofports) = (number(&interface), members.filter_map(number).collect());
    let error = interface.get("error").cloned();
    Port { row: row.clone(), interface, ofport, more_ofports, error }
}

fn by_uuid(rows: &[Row]) -> BTreeMap<&str, &Row> {
    rows.iter().map(|row| (text(row, "_uuid"), row)).collect()
}

fn items<'a>(row: &'a Row, column: &str) -> impl Iterator<Item = &'a str> {
    text(row, column).split(',').filter(|item| !item.is_empty())
}

fn rows_of(table: &Table) -> Vec<Row> {
    let flat = |values: &Vec<Value>| {
        let mut row = Row::new();
        for (column, value) in table.headings.iter().zip(values) {
            flatten(column, value, &mut row);
        }
        row
    };
    table.data.iter().map(flat).collect()
}

fn flatten(column: &str, value: &Value, row: &mut Row) {
    match value.as_array().map(Vec::as_slice) {
        Some([Value::String(kind), Value::Array(pairs)]) if kind == "map" => {
            for pair in pairs {
                if let Some([key, value]) = pair.as_array().map(Vec::as_slice) {
                    row.insert(format!("{column}:{}", scalar(key)), scalar(value));
                }
            }
        }
        Some([Value::String(kind), Value::Array(members)]) if kind == "set" => {
            let members: Vec<String> = members.iter().map(scalar).collect();
            if !members.is_empty() {
                row.insert(column.to_owned(), members.join(","));
            }
        }
        _ => {
            row.insert(column.to_owned(), scalar(value));
        }
    }
}

fn scalar(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(pair) => pair.get(1).map(scalar).unwrap_or_default(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWER: &str = r#"{"data":[["3.1.0",["map",[["userspace-tso-enable","true"]]]]],"headings":["ovs_version","other_config"]}
{"data":[["br-sos",["set",[["uuid","p1"],["uuid","p2"]]],["uuid","c1"],"secure","netdev","00013c2a51b7d0e4",["set",["OpenFlow10","OpenFlow13"]],["map",[["hwaddr","06:2a:51:b7:d0:e4"]]],["map",[["sos-owner","1"]]]]],"headings":["name","ports","controller","fail_mode","datapath_type","datapath_id","protocols","other_config","external_ids"]}
{"data":[[["uuid","p1"],"wan0",["uuid","i1"],false,["map",[["sos-owner","1"]]]],[["uuid","p2"],"veth7",["uuid","i2"],false,["map",[["contNetns","/run/netns/a"]]]]],"headings":["_uuid","name","interfaces","protected","external_ids"]}
{"data":[[["uuid","i1"],"wan0",1,1,["set",[]],["map",[]],["set",[]]],[["uuid","i2"],"veth7",-1,["set",[]],"could not open",["map",[]],["set",[]]]],"headings":["_uuid","name","ofport","ofport_request","error","external_ids","mtu_request"]}
{"data":[[["uuid","c1"],"tcp:127.0.0.1:6653",true,"out-of-band",2000,5000]],"headings":["_uuid","target","is_connected","connection_mode","max_backoff","inactivity_probe"]}"#;

    #[test]
    fn parses_bridges_ports_and_controllers() {
        let database = parse(ANSWER).unwrap();
        assert_eq!(database.ovs, OvsInfo { version: "3.1.0".into(), tso: true, restore_wait: false });
        let bridge = &database.bridges["br-sos"];
        assert_eq!(bridge.ports, ["veth7", "wan0"].map(String::from).into());
        assert_eq!(text(&bridge.row, "protocols"), "OpenFlow10,OpenFlow13");
        assert_eq!(text(&bridge.row, "other_config:hwaddr"), "06:2a:51:b7:d0:e4");
        assert_eq!(bridge.controllers[0].target, "tcp:127.0.0.1:6653");
        assert!(bridge.controllers[0].connected);
        assert_eq!(database.ports["wan0"].ofport, Some(1));
        assert_eq!(database.ports["veth7"].error.as_deref(), Some("could not open"));
        assert_eq!(database.ports["veth7"].ofport, None);
        assert_eq!(text(&database.ports["veth7"].row, "external_ids:contNetns"), "/run/netns/a");
    }

    #[test]
    fn a_missing_table_is_an_error() {
        let short = ANSWER.lines().take(4).collect::<Vec<_>>().join("\n");
        assert!(matches!(parse(&short), Err(DatabaseError::Tables(4))));
        assert!(matches!(parse("ovs-vsctl: oops"), Err(DatabaseError::Json(_))));
    }
}
