//! Parse `ovs-vsctl --format=json list` (RFC 7047, 5.1 has the notation of values).

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use crate::observation::observed::{BOND, Bridge, Controller, OvsInfo, Port, Row, text};

/// The tables in the order in which [`parse`] expects them, and their columns.
pub const TABLES: [(&str, &str); 6] = [
    ("Open_vSwitch", "ovs_version,other_config,external_ids"),
    (
        "Bridge",
        "name,ports,controller,fail_mode,datapath_type,datapath_id,protocols,other_config,external_ids",
    ),
    (
        "Port",
        "_uuid,name,interfaces,protected,tag,trunks,vlan_mode,external_ids,bond_mode,bond_updelay,lacp,other_config",
    ),
    ("Interface", "_uuid,name,ofport,ofport_request,error,external_ids,mtu_request,bfd"),
    ("Controller", "_uuid,target,is_connected,connection_mode,max_backoff,inactivity_probe"),
    ("SSL", "private_key,certificate,ca_cert,external_ids"),
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
    /// Row of table SSL, which has one row at most.
    pub ssl: Option<Row>,
    /// Bridges by name.
    pub bridges: BTreeMap<String, Bridge>,
    /// Ports of all bridges by name, including local ports (named like their bridge), with the members of [`BOND`] in its place.
    pub ports: BTreeMap<String, Port>,
    /// Row of [`BOND`].
    pub bond: Option<Row>,
}

/// Parse the answer to one `list` of each of [`TABLES`].
///
/// # Errors
/// The answer does not have that form.
pub fn parse(printed: &str) -> Result<Database, DatabaseError> {
    let tables: Vec<Table> =
        serde_json::Deserializer::from_str(printed).into_iter().collect::<Result<_, _>>()?;
    let rows: Vec<Vec<Row>> = tables.iter().map(rows_of).collect();
    let [ovs, bridges, ports, interfaces, controllers, ssl] = &rows[..] else {
        return Err(DatabaseError::Tables(rows.len()));
    };
    let interfaces = by_uuid(interfaces);
    let controllers = by_uuid(controllers);
    let bond = ports.iter().find(|row| text(row, "name") == BOND);
    let members: Vec<&Row> = bond
        .into_iter()
        .flat_map(|row| items(row, "interfaces"))
        .filter_map(|uuid| interfaces.get(uuid))
        .copied()
        .collect();
    let port_names: BTreeMap<&str, Vec<&str>> = ports
        .iter()
        .map(|row| match text(row, "name") {
            BOND => (text(row, "_uuid"), members.iter().map(|row| text(row, "name")).collect()),
            name => (text(row, "_uuid"), vec![name]),
        })
        .collect();
    let bridges: BTreeMap<String, Bridge> = bridges
        .iter()
        .map(|row| (text(row, "name").to_owned(), bridge(row, &port_names, &controllers)))
        .collect();
    let alone = ports.iter().filter(|row| text(row, "name") != BOND);
    let alone = alone.map(|row| (text(row, "name").to_owned(), port(row, &interfaces)));
    let members = members.into_iter().map(|row| (text(row, "name").to_owned(), member(row)));
    let ports = alone.chain(members).collect();
    let version = ovs.first().map_or("", |row| text(row, "ovs_version")).to_owned();
    let tso = ovs.first().is_some_and(|row| text(row, "other_config:userspace-tso-enable") == "true");
    let waits = |row| RESTORE_WAIT.iter().any(|column| text(row, column) == "true");
    let restore_wait = ovs.first().is_some_and(waits);
    let ovs = OvsInfo { version, tso, restore_wait };
    Ok(Database { ovs, ssl: ssl.first().cloned(), bridges, ports, bond: bond.cloned() })
}

fn bridge(row: &Row, ports: &BTreeMap<&str, Vec<&str>>, controllers: &BTreeMap<&str, &Row>) -> Bridge {
    let names = items(row, "ports")
        .filter_map(|uuid| ports.get(uuid))
        .flatten()
        .map(|name| (*name).to_owned())
        .collect();
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
    Port { row: row.clone(), interface, ofport, more_ofports, bonded: false, error }
}

fn member(interface: &Row) -> Port {
    let own = interface.iter().filter(|(column, _)| column.starts_with("external_ids:"));
    Port {
        row: own.map(|(column, value)| (column.clone(), value.clone())).collect(),
        interface: interface.clone(),
        ofport: text(interface, "ofport").parse().ok(),
        more_ofports: vec![],
        bonded: true,
        error: interface.get("error").cloned(),
    }
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
{"data":[[["uuid","c1"],"tcp:127.0.0.1:6653",true,"out-of-band",2000,5000]],"headings":["_uuid","target","is_connected","connection_mode","max_backoff","inactivity_probe"]}
{"data":[["/tls/tls.key","/tls/tls.crt","/tls/ca.crt",["map",[["sos-owner","1"]]]]],"headings":["private_key","certificate","ca_cert","external_ids"]}"#;

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
        let ssl = database.ssl.unwrap();
        assert_eq!((text(&ssl, "private_key"), text(&ssl, "external_ids:sos-owner")), ("/tls/tls.key", "1"));
        assert_eq!(database.ports["wan0"].ofport, Some(1));
        assert_eq!(database.ports["veth7"].error.as_deref(), Some("could not open"));
        assert_eq!(database.ports["veth7"].ofport, None);
        assert_eq!(text(&database.ports["veth7"].row, "external_ids:contNetns"), "/run/netns/a");
    }

    #[test]
    fn members_of_our_bond_are_listed_in_its_place() {
        let answer = r#"{"data":[["3.1.0",["map",[]]]],"headings":["ovs_version","other_config"]}
{"data":[["br-sos",["uuid","p1"]]],"headings":["name","ports"]}
{"data":[[["uuid","p1"],"sos-base-uplinks",["set",[["uuid","i1"],["uuid","i2"]]],"active-backup",["map",[["sos-owner","1"]]]]],"headings":["_uuid","name","interfaces","bond_mode","external_ids"]}
{"data":[[["uuid","i1"],"wan0",33001,["map",[["sos-device","7"]]]],[["uuid","i2"],"wan1",33002,["map",[]]]],"headings":["_uuid","name","ofport","external_ids"]}
{"data":[],"headings":["_uuid"]}
{"data":[],"headings":["private_key"]}"#;
        let database = parse(answer).unwrap();
        assert_eq!(database.bridges["br-sos"].ports, ["wan0", "wan1"].map(String::from).into());
        assert_eq!(database.ports.len(), 2);
        let (wan0, wan1) = (&database.ports["wan0"], &database.ports["wan1"]);
        assert!(wan0.bonded && wan1.bonded);
        assert_eq!((wan0.ofport, wan1.ofport), (Some(33_001), Some(33_002)));
        assert_eq!(text(&wan0.row, "external_ids:sos-device"), "7");
        assert!(wan1.row.is_empty(), "a member has no key of the bond's row");
        assert_eq!(text(&database.bond.unwrap(), "bond_mode"), "active-backup");
    }

    #[test]
    fn a_missing_table_is_an_error() {
        let short = ANSWER.lines().take(5).collect::<Vec<_>>().join("\n");
        assert!(matches!(parse(&short), Err(DatabaseError::Tables(5))));
        assert!(matches!(parse("ovs-vsctl: oops"), Err(DatabaseError::Json(_))));
    }
}
