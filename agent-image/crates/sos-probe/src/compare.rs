//! `compare`: the same download beside a service and through it, what a controller says of both, and a verdict. What `helm test` runs.

use std::net::Ipv4Addr;
use std::thread;
use std::time::{Duration, Instant};

use crate::connect;
use crate::controller::Controller;
use crate::transfer::{server, transfer};
use crate::verdict::{self, Download, Measure, Verdict};
use crate::watch::Watch;
use crate::wire::Direction;

/// A connection is kept open for so long after its bytes, until its session has been seen: agents report every 5 s.
const HOLD: Duration = Duration::from_secs(10);
const AFTER_A_TRY: Duration = Duration::from_secs(1);

/// What is compared.
#[derive(Debug, clap::Args)]
pub struct Compared {
    /// Where `serve` runs
    pub address: Ipv4Addr,
    /// Its port that no service covers
    #[arg(long, value_name = "PORT")]
    pub plain_port: u16,
    /// Its port that a service covers; without it nothing is compared
    #[arg(long, value_name = "PORT")]
    pub port: Option<u16>,
    /// Ask this controller whether the connections are accelerated
    #[arg(long, value_name = "URL")]
    pub controller: Option<Controller>,
    /// How long each download lasts
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=i64::from(crate::wire::MOST_SECONDS)))]
    pub seconds: u16,
    /// It fails where the service is slower than this times plain TCP
    #[arg(long, default_value_t = 0.5)]
    pub least_gain: f64,
    /// How long to wait for the server, in seconds
    #[arg(long, default_value_t = 60)]
    pub wait: u16,
}

/// Waits for the server, downloads, and judges.
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

/// Only the plain port is asked: a controller leaves a server plain for a while that has not answered a connection of a service's.
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
