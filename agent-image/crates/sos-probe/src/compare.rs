//! `compare`: the same download outside a service and through it, the controller's view of both, and a verdict. Run by `helm test`.
//!
//! Order of calls: two transfers run, meanwhile [`watch`] polls [`controller`]; [`verdict`] judges both results.
//!
//! | module | contains |
//! |---|---|
//! | [`controller`] | the query for a session in a controller's API |
//! | [`watch`] | polling in the background |
//! | [`verdict`] | the judgement of two downloads; pure |

pub mod controller;
pub mod verdict;
pub mod watch;

use std::net::Ipv4Addr;
use std::thread;
use std::time::{Duration, Instant};

use self::controller::Controller;
use self::verdict::{Download, Measure, Verdict};
use self::watch::Watch;
use crate::connect;
use crate::transfer::wire::Direction;
use crate::transfer::{server, transfer};

/// Maximum time for which a connection stays open after its transfer, until a controller lists its session: agents report every 5
/// s.
const HOLD: Duration = Duration::from_secs(10);
const AFTER_A_TRY: Duration = Duration::from_secs(1);

/// Arguments of a comparison.
#[derive(Debug, clap::Args)]
pub struct Compared {
    /// Address of `serve`
    pub address: Ipv4Addr,
    /// Port of `serve` that no service covers
    #[arg(long, value_name = "PORT")]
    pub plain_port: u16,
    /// Port of `serve` that a service covers; without this port nothing is compared
    #[arg(long, value_name = "PORT")]
    pub port: Option<u16>,
    /// Query this controller for sessions of the connections
    #[arg(long, value_name = "URL")]
    pub controller: Option<Controller>,
    /// Duration of each download in seconds
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=i64::from(crate::transfer::wire::MOST_SECONDS)))]
    pub seconds: u16,
    /// Fail if the service is slower than this times plain TCP
    #[arg(long, default_value_t = 0.5)]
    pub least_gain: f64,
    /// Time to wait for the server, in seconds
    #[arg(long, default_value_t = 60)]
    pub wait: u16,
}

/// Wait for the server, download, and judge.
#[must_use]
pub fn compare(asked: &Compared) -> Verdict {
    if let Err(why) = reachable(asked) {
        let place = server(asked.address, asked.plain_port);
        let what = format!("wrong: {place} does not answer within {} s: {why}", asked.wait);
        return Verdict { lines: vec![what, "FAILED".to_owned()], good: false };
    }
    let plain = download(asked, asked.plain_port, Duration::ZERO);
    let covered = asked.port.map(|port| download(asked, port, HOLD));
    let measure = Measure { least_gain: asked.least_gain, asked: asked.controller.is_some() };
    verdict::judge(&plain, covered.as_ref(), measure)
}

/// Wait until the plain port answers. The service's port is not probed, because a controller leaves a server plain for some
/// time after a connection without an answer.
fn reachable(asked: &Compared) -> Result<(), String> {
    let until = Instant::now() + Duration::from_secs(asked.wait.into());
    loop {
        let report = connect::connect(server(asked.address, asked.plain_port));
        if report.ok {
            return Ok(());
        }
        if Instant::now() >= until {
            return Err(report.detail);
        }
        thread::sleep(AFTER_A_TRY);
    }
}

fn download(asked: &Compared, port: u16, hold: Duration) -> Download {
    let (place, watch) = (server(asked.address, port), &Watch::default());
    let report = thread::scope(|scope| {
        let opened = |own: &str| {
            if let Some(controller) = asked.controller.as_ref() {
                let own = own.to_owned();
                scope.spawn(move || watch.look(|| controller.lists(&own, place)));
            }
        };
        let hold = if asked.controller.is_some() { hold } else { Duration::ZERO };
        let report =
            transfer(place, Direction::Down, asked.seconds, |first| opened(first.own), || watch.wait(hold));
        watch.stop();
        report
    });
    Download { port, report, listed: watch.said() }
}
