//! Command line of the link emulator.

use clap::Parser;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::low_level::pipe;
use sos_linkemu::config::LinkSpec;
use sos_linkemu::edge::engine::{Engine, Settings};
use sos_linkemu::edge::sys;
use sos_linkemu::shaper::Limits;
use sos_linkemu::units::{self, Nanos, UnitError};
use std::error::Error;
use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const MIB: u64 = 1 << 20;

/// Emulates WAN links between pairs of network interfaces of this network namespace.
///
/// A link is written A=IF,B=IF,rate=500mbit[,name=N][,delay=29.5ms][,loss=1%][,queue=bdp|BYTES|TIME]; any of the last
/// four may be given for one direction only as a2b.KEY or b2a.KEY. Rates count Ethernet framing, so that TCP reaches
/// rate x 1448/1538. Both interfaces become promiscuous and silent (no ARP, no IPv6).
///
/// Exit status: 0 stopped by SIGTERM or SIGINT, 1 failed, 2 bad usage.
#[derive(Parser)]
#[command(name = "sos-linkemu", version, verbatim_doc_comment)]
struct Arguments {
    /// Link specification; repeat for more links
    #[arg(long = "link", value_name = "SPEC", required = true)]
    links: Vec<LinkSpec>,
    /// Seed of packet loss
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Unix socket for control requests, created once all interfaces are attached
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
    /// File for statistics as JSON on exit (- for standard output)
    #[arg(long, value_name = "FILE")]
    stats: Option<PathBuf>,
    /// Time to wait at start-up for interfaces that are missing or down
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = units::parse_delay)]
    wait: Nanos,
    /// Longest run of packets delivered as one super-frame, as time on the wire; 0 for single packets
    #[arg(long, value_name = "TIME", default_value = "1ms", value_parser = units::parse_delay)]
    burst: Nanos,
    /// Deliver packets of different frames as separate frames
    #[arg(long)]
    no_coalesce: bool,
    /// Run at ordinary priority; on a busy machine, deliveries are then tens of milliseconds late
    #[arg(long)]
    no_realtime: bool,
    /// Approximate maximum lateness of a delivery; a smaller value costs more CPU
    #[arg(long, value_name = "TIME", default_value = "200us", value_parser = parse_tick)]
    tick: Nanos,
    /// Memory per direction in MiB; frames that exceed it are dropped and counted
    #[arg(long, value_name = "MIB", default_value_t = 512, value_parser = clap::value_parser!(u64).range(1..=65536))]
    memory: u64,
}

/// Parses a tick: zero would be a busy loop, and more than 10 ms would not emulate the link.
fn parse_tick(text: &str) -> Result<Nanos, UnitError> {
    let tick = units::parse_delay(text)?;
    if (10 * 1_000..=10 * units::MILLISECOND).contains(&tick) {
        return Ok(tick);
    }
    Err(UnitError::OutOfRange {
        what: "tick",
        text: text.to_owned(),
        range: "10us to 10ms",
    })
}

/// Rejects links with the same name, which would be indistinguishable, and links with the same interface, which would
/// form a loop.
fn check_unique(links: &[LinkSpec]) -> Result<(), String> {
    let mut seen = std::collections::BTreeSet::new();
    for link in links {
        if !seen.insert(format!("name {}", link.name)) {
            return Err(format!("--link: name {} is used twice", link.name));
        }
        for end in &link.ends {
            if !seen.insert(format!("interface {end}")) {
                return Err(format!("--link: interface {end} is used twice"));
            }
        }
    }
    Ok(())
}

fn run(arguments: Arguments) -> Result<(), Box<dyn Error>> {
    let (stop, signalled) = UnixStream::pair()?;
    for signal in [SIGTERM, SIGINT] {
        pipe::register(signal, signalled.try_clone()?)?;
    }
    let settings = Settings {
        limits: Limits {
            run_time: arguments.burst,
            coalesce: !arguments.no_coalesce,
            max_held_bytes: arguments.memory * MIB,
        },
        tick: arguments.tick,
        seed: arguments.seed,
    };
    if !arguments.no_realtime
        && let Err(error) = sys::become_realtime()
    {
        eprintln!(
            "sos-linkemu: warning: no real-time priority ({error}): deliveries are late if the machine is busy"
        );
    }
    let mut engine = Engine::new(arguments.links, settings, &stop)?;
    if engine.attach(arguments.wait)? {
        if let Some(path) = &arguments.control {
            engine.listen(path)?;
        }
        eprintln!("sos-linkemu: ready");
        engine.run()?;
    }
    match &arguments.stats {
        Some(path) => write_statistics(path, &mut engine),
        None => Ok(()),
    }
}

fn write_statistics(path: &Path, engine: &mut Engine) -> Result<(), Box<dyn Error>> {
    let text = format!("{:#}\n", engine.statistics());
    if path == Path::new("-") {
        print!("{text}");
        return Ok(());
    }
    fs::write(path, text).map_err(|e| format!("--stats {}: {e}", path.display()).into())
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Err(message) = check_unique(&arguments.links) {
        eprintln!("sos-linkemu: {message}");
        return ExitCode::from(2);
    }
    match run(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sos-linkemu: {error}");
            ExitCode::FAILURE
        }
    }
}
