//! `sos-probe`: arguments, one line of JSON, exit code.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser as _;
use serde::Serialize;
use sos_probe::cli::{Cli, Verb};
use sos_probe::transfer::server;
use sos_probe::{connect, mtu, serve, transfer};

fn main() -> ExitCode {
    match Cli::parse().verb {
        Verb::Serve { address, through, plain, seconds } => {
            if let Err(error) = serve::serve(address, &through, &plain, seconds) {
                eprintln!("sos-probe: {error}");
                return ExitCode::FAILURE;
            }
            ExitCode::SUCCESS
        }
        Verb::Transfer { address, port, direction, seconds, hold } => {
            print(&transfer::transfer(server(address, port), direction, seconds, hold, |opened| {
                print(opened);
            }))
        }
        Verb::Connect { address, port } => print(&connect::connect(server(address, port))),
        Verb::Mtu { address, port } => print(&mtu::find(server(address, port))),
    }
}

/// A report is printed whatever it says: 0 means that it is there.
fn print(report: &impl Serialize) -> ExitCode {
    match serde_json::to_string(report) {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("sos-probe: {error}");
            ExitCode::FAILURE
        }
    }
}
