//! Command line of the controller benchmark.

use std::collections::HashMap;
use std::error::Error;
use std::fs;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Parser;
use sos_ofbench::agent::Agent;
use sos_ofbench::config::{Document, read_keys};
use sos_ofbench::edge::{self, Plan};
use sos_ofbench::load::Load;
use sos_ofbench::network::{Network, Topology};
use sos_ofbench::world::{Settings, World};
use sos_wire::BootId;

/// Emulates OpenFlow 1.3 switches and measures a controller's answers to their packet-ins.
///
/// Without --config, the network suits a learning switch: each switch has clients and a server. Each SYN is sent to the controller
/// regardless of installed entries, and counts as answered when a packet-out carries it. With --config, the network is declared by a
/// controller-config document of SOS: agents send beacons, answer orders and end sessions, and entries send the SYNs to the controller.
///
/// All SYNs of a millisecond are sent together. Latencies run from this moment to the packet-out with the SYN (release), and to the
/// entry for exactly its flow at the client's switch (entry).
///
/// Exit status: 0 measured, 1 failed, 2 bad usage.
#[derive(Parser)]
#[command(name = "sos-ofbench", version, verbatim_doc_comment)]
struct Arguments {
    /// Controller, as HOST:PORT
    #[arg(long, default_value = "127.0.0.1:6653")]
    controller: String,
    /// Switches to emulate (without --config)
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=4096))]
    switches: u32,
    /// Links between switches, which LLDP crosses (without --config)
    #[arg(long, value_enum, default_value = "none")]
    topology: Topology,
    /// Controller-config document of the emulated network
    #[arg(long, value_name = "FILE", requires = "keys")]
    config: Option<PathBuf>,
    /// Folder of site keys, in the controller's format
    #[arg(long, value_name = "DIR")]
    keys: Option<PathBuf>,
    /// SYNs offered per second over all switches, regardless of answers
    #[arg(long, value_name = "SYNS", conflicts_with = "outstanding", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    rate: Option<u32>,
    /// SYNs kept unanswered at each switch
    #[arg(long, value_name = "SYNS", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    outstanding: u32,
    /// Seconds to measure
    #[arg(long, default_value_t = 5.0, value_parser = seconds)]
    duration: f64,
    /// Maximum number of services with SYNs, at equal distances in the order of the services (with --config)
    #[arg(long, value_name = "SERVICES", requires = "config")]
    sources: Option<usize>,
    /// Number of answers that ends the measurement, for a controller with a session limit if sessions do not end
    #[arg(long, value_name = "SYNS", default_value_t = u64::MAX, hide_default_value = true)]
    most: u64,
    /// Seconds of load before the measurement
    #[arg(long, default_value_t = 1.0, value_parser = seconds)]
    warm_up: f64,
    /// Seconds for the controller to learn hosts before the load starts
    #[arg(long, default_value_t = 1.0, value_parser = seconds)]
    settle: f64,
    /// Time limit in seconds for the controller to request SYNs
    #[arg(long, default_value_t = 60.0, value_parser = seconds)]
    ready: f64,
    /// Seconds after which a SYN counts as lost
    #[arg(long, default_value_t = 3.0, value_parser = seconds)]
    patience: f64,
    /// Duration of a session in seconds, after which both agents end it; without this option sessions do not end
    #[arg(long, value_parser = seconds)]
    hold: Option<f64>,
    /// Servers do not announce themselves, so that every datapath of their site receives egress entries
    #[arg(long)]
    unknown_servers: bool,
    /// Process whose CPU time is measured
    #[arg(long)]
    pid: Option<u32>,
    /// File for the report as JSON (- for standard output, instead of text)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

fn seconds(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| format!("{text} is not a number"))?;
    if (0.0..=86_400.0).contains(&value) { Ok(value) } else { Err("0 to 86400 seconds".into()) }
}

fn main() -> ExitCode {
    match measure(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sos-ofbench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let plan = Plan {
        controller: resolve(&arguments.controller)?,
        load: arguments
            .rate
            .map_or(Load::Outstanding(arguments.outstanding), |rate| Load::Rate(f64::from(rate))),
        ready: Duration::from_secs_f64(arguments.ready),
        settle: Duration::from_secs_f64(arguments.settle),
        warm_up: Duration::from_secs_f64(arguments.warm_up),
        measure: Duration::from_secs_f64(arguments.duration),
        most: arguments.most,
        pid: arguments.pid,
    };
    let report = edge::run(world(arguments)?, &plan)?.0;
    let json = serde_json::to_string_pretty(&report)?;
    match &arguments.json {
        Some(path) if path.as_os_str() == "-" => println!("{json}"),
        Some(path) => {
            fs::write(path, json + "\n")?;
            print!("{}", report.text());
        }
        None => print!("{}", report.text()),
    }
    Ok(())
}

fn resolve(text: &str) -> Result<SocketAddr, Box<dyn Error>> {
    let found = text.to_socket_addrs().map_err(|e| format!("{text}: {e}"))?.next();
    Ok(found.ok_or_else(|| format!("{text}: no address"))?)
}

fn world(arguments: &Arguments) -> Result<World, Box<dyn Error>> {
    let settings = Settings {
        patience: Duration::from_secs_f64(arguments.patience),
        hold: arguments.hold.map(Duration::from_secs_f64),
        announce_servers: !arguments.unknown_servers,
        always_punt: arguments.config.is_none(),
    };
    let Some((config, keys)) = arguments.config.as_ref().zip(arguments.keys.as_ref()) else {
        let network = Network::plain(usize::try_from(arguments.switches)?, arguments.topology);
        return Ok(World::new(network, Vec::new(), settings, 0));
    };
    let document: Document =
        serde_json::from_slice(&fs::read(config)?).map_err(|e| format!("{}: {e}", config.display()))?;
    let keys = read_keys(keys).map_err(|e| format!("{}: {e}", keys.display()))?;
    let mut network = Network::declared(&document)?;
    if let Some(most) = arguments.sources {
        network.thin_lanes(most);
    }
    let agents = agents(&network, &keys, &document)?;
    if network.lanes.is_empty() {
        return Err(format!("{}: no service with clients to emulate", config.display()).into());
    }
    Ok(World::new(network, agents, settings, document.discovery.order_port))
}

type Keys = HashMap<sos_wire::SiteId, (sos_wire::KeyId, sos_wire::Key)>;

fn agents(network: &Network, keys: &Keys, document: &Document) -> Result<Vec<Agent>, Box<dyn Error>> {
    let boot = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos();
    let boot = BootId(u64::try_from(boot)?);
    let agent = |plan: &sos_ofbench::network::AgentPlan| -> Result<Agent, Box<dyn Error>> {
        let key = keys.get(&plan.site).ok_or_else(|| format!("no key of site {}", plan.site.0))?;
        Ok(Agent::new(plan.clone(), key, &document.discovery, boot))
    };
    network.agents.iter().map(agent).collect()
}
