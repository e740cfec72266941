//! `sos-node`: arguments, logging, signals, and the loop of [`sos_node::edge::daemon`].

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use sos_daemon::bugs;
use sos_daemon::files::document_path;
use sos_daemon::log::{self, LogFormat};
use sos_node::edge::daemon::{Daemon, OfferError, Options, TICK, Ticked};
use sos_node::edge::metrics::Metrics;
use sos_node::edge::serve::{self, Shared};
use sos_node::planning::orphan::SILENCE;
use sos_node::planning::trial::{MAX_ANCHORS, parse_anchor};
use sos_node::status::{State, Status};

/// Time limit of `--once`.
const ONCE_DEADLINE: Duration = Duration::from_secs(30);

/// Keeps this node's Open vSwitch in the state of its node-config.
///
/// SIGTERM ends the program and leaves the switch as it is, unless an operator has polled this node before and has been silent for long.
/// Otherwise only a config of state Absent removes anything. The environment variable RUST_LOG sets the log level (default: info).
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// The node-config, or a folder with NODE.json.
    #[arg(long, value_name = "PATH")]
    config: PathBuf,
    /// This node's name.
    #[arg(long)]
    node: String,
    /// Folder of the last good config.
    #[arg(long, value_name = "DIR")]
    state: PathBuf,
    /// Folder of Open vSwitch's sockets (db.sock and BRIDGE.mgmt).
    #[arg(long, value_name = "DIR")]
    ovs_rundir: PathBuf,
    /// Folder of tls.crt, tls.key and ca.crt for TLS with controllers, at the same path for Open vSwitch, which follows changes
    #[arg(long, value_name = "DIR")]
    openflow_tls: Option<PathBuf>,
    /// An address that the node must reach (an API server's), up to four times: an uplink that cuts it off is removed again
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = parse_anchor)]
    anchor: Vec<SocketAddr>,
    /// Apply once and exit: 0 if everything is as configured, 1 if not.
    #[arg(long)]
    once: bool,
    /// Status file, written as JSON.
    #[arg(long, value_name = "FILE")]
    status_file: Option<PathBuf>,
    /// Address for /healthz, /readyz, /status and /metrics.
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    /// Seconds without a poll by the operator after which SIGTERM removes the bridge, since its site is gone.
    #[arg(long, value_name = "SECONDS", default_value_t = SILENCE.as_secs())]
    orphaned_after: u64,
    /// Format of the log.
    #[arg(long, value_enum, default_value = "text")]
    log_format: LogFormat,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    log::start(arguments.log_format);
    bugs::count_panics();
    match run(&arguments) {
        Ok(code) => code,
        Err(message) => {
            eprintln!("sos-node: {message}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<ExitCode, String> {
    if arguments.anchor.len() > MAX_ANCHORS {
        return Err(format!("--anchor: {} given, {MAX_ANCHORS} at most", arguments.anchor.len()));
    }
    let options = Options {
        config: arguments.config.clone(),
        node: arguments.node.clone(),
        state: arguments.state.clone(),
        ovs_rundir: arguments.ovs_rundir.clone(),
        openflow_tls: arguments.openflow_tls.clone(),
        status_file: arguments.status_file.clone(),
        anchors: arguments.anchor.clone(),
        orphaned_after: Duration::from_secs(arguments.orphaned_after),
    };
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).map_err(|error| error.to_string())?;
    }
    let path = document_path(&arguments.config, &arguments.node);
    let state = arguments.state.display();
    let mut daemon = Daemon::new(options, Instant::now()).map_err(|error| format!("{state}: {error}"))?;
    match daemon.reload(Instant::now()) {
        Err(OfferError::Later(error)) if arguments.once => return Err(error),
        Err(OfferError::Later(error)) => tracing::info!(error, "waiting"),
        Err(error) if arguments.once || !daemon.has_config() => {
            return Err(format!("{}: {error}", path.display()));
        }
        Err(error) => tracing::error!(%error, "new config rejected; the config in force stays"),
        Ok(()) => {}
    }
    if arguments.once { Ok(once(&mut daemon, &stop)) } else { serve_and_loop(&mut daemon, arguments, &stop) }
}

/// Run passes until the config is applied, a fault needs action, or the time limit is reached.
fn once(daemon: &mut Daemon, stop: &AtomicBool) -> ExitCode {
    let end = Instant::now() + ONCE_DEADLINE;
    let mut last = None;
    while Instant::now() < end && !stop.load(Ordering::Relaxed) {
        if let Some(ticked) = daemon.tick(Instant::now()) {
            log_change(&ticked, last.as_ref());
            match ticked.status.state {
                State::Ready => return ExitCode::SUCCESS,
                State::Failed if ticked.well => break,
                _ => last = Some(ticked.status),
            }
        }
        std::thread::sleep(TICK);
    }
    ExitCode::FAILURE
}

fn serve_and_loop(daemon: &mut Daemon, arguments: &Arguments, stop: &AtomicBool) -> Result<ExitCode, String> {
    let (metrics, registry) = Metrics::new();
    let mut status = Status::pending(&arguments.node, "starting".to_owned());
    let shared = Shared::new(status.clone(), registry, Instant::now());
    if let Some(address) = arguments.listen {
        let bound =
            serve::start(address, Arc::clone(&shared)).map_err(|error| format!("{address}: {error}"))?;
        tracing::info!(%bound, "serving HTTP");
    }
    loop {
        let began = Instant::now();
        daemon.polled(shared.last_poll());
        if stop.load(Ordering::Relaxed) && daemon.may_exit(began) {
            break;
        }
        let ticked = daemon.tick(began);
        if let Some(ticked) = &ticked {
            metrics.count_pass(&ticked.made, !ticked.well, began.elapsed().as_secs_f64());
            metrics.show(&ticked.status);
            log_change(ticked, Some(&status));
            status = ticked.status.clone();
        }
        shared.update(ticked.map(|ticked| ticked.status).as_ref(), Instant::now());
        std::thread::sleep(TICK);
    }
    daemon.end();
    Ok(ExitCode::SUCCESS)
}

/// Log only changes.
fn log_change(ticked: &Ticked, last: Option<&Status>) {
    let Ticked { status, made, .. } = ticked;
    if !made.is_empty() {
        tracing::info!(changes = made.join(" "), "changed the node");
    }
    let same = last.is_some_and(|last| last.state == status.state && last.message == status.message);
    if !same {
        tracing::info!(state = ?status.state, message = status.message, "status");
    }
}
