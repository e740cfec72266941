//! The command line.

use std::net::Ipv4Addr;
use std::ops::RangeInclusive;

use clap::{Parser, Subcommand};

use crate::compare::Compared;
use crate::transfer::wire::{Direction, MOST_SECONDS};

/// Sends real TCP between two hosts and reports the outcome.
#[derive(Debug, Parser)]
#[command(name = "sos-probe", version)]
pub struct Cli {
    /// The verb.
    #[command(subcommand)]
    pub verb: Verb,
}

/// The verbs of the command line.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Serve transfers until standard input ends or the time limit is reached
    Serve {
        /// Local address to listen on
        #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0")]
        address: Ipv4Addr,
        /// Listen on the first free port of this range; repeat for further ranges
        #[arg(long, value_name = "FIRST[-LAST]", value_parser = ports, action = clap::ArgAction::Append)]
        through: Vec<RangeInclusive<u16>>,
        /// Listen on the first free port of this range, too, which also answers `mtu`
        #[arg(long, value_name = "FIRST[-LAST]", value_parser = ports, action = clap::ArgAction::Append)]
        plain: Vec<RangeInclusive<u16>>,
        /// Time limit in seconds
        #[arg(long, default_value_t = 120, value_parser = clap::value_parser!(u16).range(1..=3600))]
        seconds: u16,
    },
    /// Transfer bytes in one direction and check each byte
    Transfer {
        /// The server's address
        address: Ipv4Addr,
        /// The server's port
        port: u16,
        /// Direction of the bytes
        #[arg(long, value_enum, default_value_t = Direction::Down)]
        direction: Direction,
        /// Duration in seconds
        #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=i64::from(MOST_SECONDS)))]
        seconds: u16,
        /// Keep the connection open after the transfer for this many seconds, or until standard input ends
        #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..=60))]
        hold: u16,
    },
    /// Download outside a service and through it, and print a verdict; exit code 1 if the verdict is FAILED
    Compare(Compared),
    /// Check for a listening server, without data
    Connect {
        /// The server's address
        address: Ipv4Addr,
        /// The server's port
        port: u16,
    },
    /// Find the largest IP packet that passes unfragmented in each direction
    Mtu {
        /// Address of `serve`
        address: Ipv4Addr,
        /// Plain port of `serve`
        port: u16,
    },
}

fn ports(text: &str) -> Result<RangeInclusive<u16>, String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let number = |part: &str| part.parse::<u16>().ok().filter(|port| *port > 0);
    match (number(first), number(last)) {
        (Some(first), Some(last)) if first <= last => Ok(first..=last),
        _ => Err("FIRST or FIRST-LAST, 1 to 65535".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn parses_ranges_of_ports() {
        assert_eq!(ports("22"), Ok(22..=22));
        assert_eq!(ports("5000-5999"), Ok(5000..=5999));
        for wrong in ["", "0", "70000", "9-8", "a", "1-2-3"] {
            assert!(ports(wrong).is_err(), "{wrong}");
        }
    }
}
