//! `sos-agent`: arguments, log, exit code.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser as _;
use sos_agent::cli::Cli;
use sos_agent::run;
use sos_daemon::log;

fn main() -> ExitCode {
    let cli = Cli::parse();
    if cli.check {
        return match run::check(&cli) {
            Ok(summary) => {
                println!("{summary}");
                ExitCode::SUCCESS
            }
            Err(error) => fail(&error),
        };
    }
    log::start(cli.log_format);
    match run::run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

fn fail(error: &dyn std::error::Error) -> ExitCode {
    eprintln!("sos-agent: {error}");
    ExitCode::FAILURE
}
