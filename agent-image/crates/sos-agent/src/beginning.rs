//! The beginning of a transfer under bbr whose streams send far too much: each begins with almost three times what arrives, for three round
//! trips, until it believes that no more does (ADR 0039).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use sos_tunnel::PeerConfig;

use crate::share::Look;

/// How long what has arrived at most is the limit, and how many round trips, at least; and this many times of it.
const LASTS: (Duration, u32) = (Duration::from_secs(1), 4);
const SENT: f64 = 1.02;
/// How long there is no other one: where a wire itself loses so much, nothing is gained by it.
const PAUSE: Duration = Duration::from_secs(60);

/// A beginning that makes a queue run over.
#[derive(Debug, Clone)]
pub(crate) struct Beginning {
    /// Bytes a second that each stream had when it was looked at last.
    rates: BTreeMap<u64, f64>,
    /// The most that they had together in this window, and in the one before, or since they are held.
    most: (f64, f64),
    /// How long a little more than that is the limit.
    until: Option<Instant>,
}

impl Beginning {
    pub(crate) fn new() -> Self {
        Self { rates: BTreeMap::new(), most: (0.0, 0.0), until: None }
    }

    pub(crate) fn add(&mut self, stream: u64, look: Look) {
        self.rates.insert(stream, look.rate());
        self.most.0 = self.most.0.max(self.rates.values().sum());
    }

    /// A window has ended.
    pub(crate) fn turn(&mut self, now: Instant) {
        let kept = if self.is_held(now) { self.most.1 } else { 0.0 };
        self.most = (0.0, self.most.0.max(kept));
    }

    /// What was sent last, under bbr, makes the queue run over.
    pub(crate) fn hold(&mut self, min_rtt: Duration, now: Instant) {
        if self.until.is_none_or(|until| now >= until + PAUSE) {
            self.until = Some(now + LASTS.0.max(min_rtt * LASTS.1));
        }
    }

    pub(crate) fn is_held(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    /// Bytes a second that each stream may send until it is known better, as bulk goes over some of them only. Where more arrives, more may be
    /// sent.
    pub(crate) fn each(&self, now: Instant) -> Option<f64> {
        let bulk = self.rates.len().saturating_sub(PeerConfig::LIGHT_STREAMS);
        let streams = bulk.clamp(1, PeerConfig::MODELLED_STREAMS) as f64;
        self.is_held(now).then(|| self.most.0.max(self.most.1) * SENT / streams)
    }

    pub(crate) fn forget(&mut self, stream: u64) {
        self.rates.remove(&stream);
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.rates.is_empty()
    }
}
