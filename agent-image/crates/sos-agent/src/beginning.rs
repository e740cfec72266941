//! The beginning of a transfer under bbr whose streams send far too much: each begins with almost three times what arrives, for three round
//! trips, until it believes that no more does (ADR 0039). Where it has nothing more to send in one of them, as on a long path of which what is
//! under way is all that a window holds, it does not believe so: it goes on as it began, and a third of everything is lost.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use sos_tunnel::PeerConfig;

use crate::share::Look;

/// How long what has arrived at most is the limit, and how many round trips, at least; and this many times of it.
const LASTS: (Duration, u32) = (Duration::from_secs(1), 4);
const SENT: f64 = 1.02;
/// How much longer it is after a look at which a stream that carries still begins, and a round trip at least: longer than until the next look.
const MORE: Duration = Duration::from_millis(250);
/// How many round trips it is at most.
const LASTS_MOST: u32 = 20;
/// A stream that has this part of what all have carries.
const CARRIES: f64 = 0.1;
/// How long there is no other one, unless a stream that carries still begins: where a wire itself loses so much, nothing is gained by it.
const PAUSE: Duration = Duration::from_secs(60);

/// What a stream did when it was looked at last.
#[derive(Debug, Clone, Copy)]
struct Stream {
    /// Bytes a second.
    rate: f64,
    /// Its congestion control still looks for the rate as it does at the beginning.
    searches: bool,
}

/// How long a limit is in force.
#[derive(Debug, Clone, Copy)]
struct Hold {
    until: Instant,
    /// However it goes on.
    longest: Instant,
}

/// A beginning that makes a queue run over.
#[derive(Debug, Clone)]
pub(crate) struct Beginning {
    streams: BTreeMap<u64, Stream>,
    /// The most that they had together in this window, and in the one before, or since they are held.
    most: (f64, f64),
    /// A little more than that is the limit, or was the last time.
    hold: Option<Hold>,
}

impl Beginning {
    pub(crate) fn new() -> Self {
        Self { streams: BTreeMap::new(), most: (0.0, 0.0), hold: None }
    }

    /// Takes what a stream did; `searches`: its congestion control still looks for the rate as it does at the beginning.
    pub(crate) fn add(&mut self, stream: u64, look: Look, searches: bool, now: Instant) {
        self.streams.insert(stream, Stream { rate: look.rate(), searches });
        self.most.0 = self.most.0.max(self.rate());
        let begins = self.begins();
        if let Some(hold) = self.hold.as_mut().filter(|hold| begins && now < hold.until) {
            hold.until = hold.until.max(now + look.min_rtt.max(MORE)).min(hold.longest);
        }
    }

    /// Bytes a second of all streams.
    fn rate(&self) -> f64 {
        self.streams.values().map(|stream| stream.rate).sum()
    }

    /// Some stream that carries still begins.
    fn begins(&self) -> bool {
        let least = self.rate() * CARRIES;
        self.streams.values().any(|stream| stream.searches && stream.rate > 0.0 && stream.rate >= least)
    }

    /// A window has ended.
    pub(crate) fn turn(&mut self, now: Instant) {
        let kept = if self.is_held(now) { self.most.1 } else { 0.0 };
        self.most = (0.0, self.most.0.max(kept));
    }

    /// What was sent last, under bbr, makes the queue run over.
    pub(crate) fn hold(&mut self, min_rtt: Duration, now: Instant) {
        let pause = if self.begins() { Duration::ZERO } else { PAUSE };
        if self.hold.is_none_or(|hold| now >= hold.until + pause) {
            let until = now + LASTS.0.max(min_rtt * LASTS.1);
            self.hold = Some(Hold { until, longest: until.max(now + min_rtt * LASTS_MOST) });
        }
    }

    pub(crate) fn is_held(&self, now: Instant) -> bool {
        self.hold.is_some_and(|hold| now < hold.until)
    }

    /// Bytes a second that each stream may send until it is known better, as bulk goes over some of them only. Where more arrives, more may be
    /// sent.
    pub(crate) fn each(&self, now: Instant) -> Option<f64> {
        let bulk = self.streams.len().saturating_sub(PeerConfig::LIGHT_STREAMS);
        let streams = bulk.clamp(1, PeerConfig::MODELLED_STREAMS) as f64;
        self.is_held(now).then(|| self.most.0.max(self.most.1) * SENT / streams)
    }

    pub(crate) fn forget(&mut self, stream: u64) {
        self.streams.remove(&stream);
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.streams.is_empty()
    }
}
