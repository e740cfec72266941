//! `sos-probe`: arguments, one line of JSON (for `compare`, readable lines), exit code.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser as _;
use serde::Serialize;
use sos_probe::cli::{Cli, Verb};
use sos_probe::transfer::server;
use sos_probe::{compare, connect, mtu, serve, transfer};

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
            let opened = |opened: &transfer::Opened<'_>| {
                print(opened);
            };
            let hold = || transfer::until_told(Duration::from_secs(hold.into()));
            print(&transfer::transfer(server(address, port), direction, seconds, opened, hold))
        }
        Verb::Compare(asked) => {
            let verdict = compare::compare(&asked);
            println!("{}", verdict.lines.join("\n"));
            if verdict.good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Verb::Connect { address, port } => print(&connect::connect(server(address, port))),
        Verb::Mtu { address, port } => print(&mtu::find(server(address, port))),
    }
}

/// Print a report. Exit code 0 means that the report is complete, with any content.
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
