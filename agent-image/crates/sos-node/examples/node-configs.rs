//! Reads node-configs from standard input, one per line, and processes each as the node process does: the plan for an empty machine and its
//! command lines. Open vSwitch's own parser reads each base entry that is not in an earlier document. Prints `LINE: error` for each
//! document that is rejected or causes a panic (scripts/worlds.py).

use std::collections::HashSet;
use std::io::{self, BufRead, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use sos_node::config::NodeConfig;
use sos_node::edge::node::Target;
use sos_node::encode::Ovs;
use sos_node::observation::observed::Observed;
use sos_node::{observation::flow, planning::plan};

fn main() -> io::Result<()> {
    let mut out = io::stdout().lock();
    let mut read = HashSet::new();
    for (number, line) in io::stdin().lock().split(b'\n').enumerate() {
        let line = line?;
        match catch_unwind(AssertUnwindSafe(|| take(&line, &mut read))) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => writeln!(out, "{number}: {error}")?,
            Err(_) => writeln!(out, "{number}: panic")?,
        }
    }
    Ok(())
}

fn take(document: &[u8], read: &mut HashSet<String>) -> Result<(), String> {
    let config = NodeConfig::parse(document).map_err(|error| error.to_string())?;
    let entries = flow::encode_base_flows(&config);
    // Entries that Open vSwitch has accepted once are not checked again: starting a process for each of ten thousand documents would take
    // an hour.
    let flows = if entries.lines().all(|entry| read.contains(entry)) {
        vec![]
    } else {
        Target::new(config.clone()).map_err(|error| error.to_string())?.flows
    };
    read.extend(entries.lines().map(str::to_owned));
    let planned = plan::plan(&config, &flows, &Observed::default());
    let _ = Ovs { rundir: PathBuf::from("/run/openvswitch") }.encode(&planned.changes);
    Ok(())
}
