//! Counters that all tasks of a tunnel share.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sos_relay::{Cause, Retransmitted};

use crate::config::Stats;
use crate::first_byte::FirstByteTimes;
use crate::lock;
use crate::stream::path_loss::PathLoss;

/// Counter or gauge; statistics need no memory ordering.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, n: u64) {
        if n != 0 {
            self.0.fetch_add(n, Ordering::Relaxed);
        }
    }

    pub(crate) fn sub(&self, n: u64) {
        self.0.fetch_sub(n, Ordering::Relaxed);
    }

    pub(crate) fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Traffic of a label's streams, including closed streams.
#[derive(Debug)]
pub(crate) struct Meter {
    /// Hosts' bytes, after compression and including retransmissions.
    pub(crate) sent: Counter,
    pub(crate) received: Counter,
    loss: Mutex<PathLoss>,
}

impl Meter {
    pub(crate) fn new(now: Instant) -> Self {
        Self { sent: Counter::default(), received: Counter::default(), loss: Mutex::new(PathLoss::new(now)) }
    }

    /// Adds segments and retransmissions of a stream since its last poll; returns whether the path is lossy.
    pub(crate) fn note_segments(&self, (segments, retransmitted): (u32, u32), now: Instant) -> bool {
        let mut loss = lock(&self.loss);
        if segments > 0 || retransmitted > 0 {
            loss.note(segments, retransmitted, now);
        }
        loss.is_lossy()
    }
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) sessions: Counter,
    pub(crate) sessions_begun: Counter,
    pub(crate) sessions_reset: Counter,
    pub(crate) sessions_refused: Counter,
    pub(crate) streams: Counter,
    pub(crate) streams_encrypted: Counter,
    pub(crate) streams_quic: Counter,
    pub(crate) quic_fallbacks: Counter,
    pub(crate) streams_begun: Counter,
    pub(crate) streams_lost: Counter,
    pub(crate) handshakes_failed: Counter,
    pub(crate) plain_refused: Counter,
    pub(crate) bytes_sent: Counter,
    pub(crate) bytes_received: Counter,
    pub(crate) compressed_bytes: Counter,
    pub(crate) compressed_wire_bytes: Counter,
    pub(crate) compress_nanos: Counter,
    /// Hosts' bytes retransmitted over another stream, by [`Cause`].
    pub(crate) bytes_resent: [Counter; Cause::ALL.len()],
    pub(crate) credit_stalls: Counter,
    pub(crate) frames_unknown: Counter,
    pub(crate) reorder_bytes: Counter,
    /// Changed once per session, so the lock is uncontended.
    pub(crate) first_byte: Mutex<FirstByteTimes>,
}

impl Counters {
    pub(crate) fn snapshot(&self, memory_reserved: usize) -> Stats {
        Stats {
            sessions: self.sessions.value(),
            sessions_total: self.sessions_begun.value(),
            sessions_reset_total: self.sessions_reset.value(),
            sessions_refused_total: self.sessions_refused.value(),
            streams: self.streams.value(),
            streams_encrypted: self.streams_encrypted.value(),
            streams_quic: self.streams_quic.value(),
            quic_fallbacks_total: self.quic_fallbacks.value(),
            streams_total: self.streams_begun.value(),
            streams_lost_total: self.streams_lost.value(),
            handshakes_failed_total: self.handshakes_failed.value(),
            plain_refused_total: self.plain_refused.value(),
            bytes_sent_total: self.bytes_sent.value(),
            bytes_received_total: self.bytes_received.value(),
            compressed_bytes_total: self.compressed_bytes.value(),
            compressed_wire_bytes_total: self.compressed_wire_bytes.value(),
            compress_time_total: Duration::from_nanos(self.compress_nanos.value()),
            bytes_resent_total: self.retransmitted(),
            credit_stalls_total: self.credit_stalls.value(),
            frames_unknown_total: self.frames_unknown.value(),
            memory_reserved: memory_reserved as u64,
            reorder_bytes: self.reorder_bytes.value(),
            first_byte: *lock(&self.first_byte),
        }
    }

    fn retransmitted(&self) -> Retransmitted {
        let mut retransmitted = Retransmitted::default();
        for cause in Cause::ALL {
            retransmitted[cause] = self.bytes_resent[cause as usize].value();
        }
        retransmitted
    }
}
