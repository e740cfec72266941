//! Host liveness, from the kernel's counters (frame.md section 7).
//!
//! One task polls all host legs a few times a second, with one system call per host; a timer per session would wake the session's task each
//! time. The task recognizes keepalive probes (segments without data or progress on an idle connection), predicts the next probe, and
//! triggers a query of the far host shortly before the predicted probe. It also detects a host that leaves data unacknowledged.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use tokio::net::TcpStream;
use tokio::time::MissedTickBehavior;

use crate::lock;
use crate::session::host::Host;
use crate::session::mailbox::{HostNotice, Mail, Mailbox};
use crate::transport::segment_marks::Watched;
use crate::transport::sockopt::{LegInfo, dropped, leg_info};

/// Interval between two sweeps, the polls of all host legs: a fraction of one second, the resolution of predicted probe times.
const SWEEP: Duration = Duration::from_millis(250);
/// Connections idle for longer than this are polled at every fourth sweep: still at least once a second, as probe times are whole seconds.
const LONG_IDLE: Duration = Duration::from_secs(60);
const LONG_IDLE_SWEEPS: u32 = 4;
/// Number of connections polled before other tasks run.
const BATCH: usize = 512;
/// Common idle times, in seconds, before keepalives (TCP_KEEPIDLE of well-known software and of the kernel). Until the host's own idle time
/// is known, the agent queries the far host shortly before each of these times.
const COMMON_IDLE: [u64; 19] =
    [2, 3, 5, 10, 15, 20, 30, 40, 45, 60, 75, 90, 120, 180, 240, 300, 600, 1200, 7200];
/// Lead of the query of the far host before a predicted probe, in addition to the round trip between the agents: two sweeps. With a shorter
/// lead, the answer is late; with a longer lead, a host that fails meanwhile goes unnoticed.
const LEAD: Duration = Duration::from_millis(450);
/// Maximum difference between the predicted and the actual time of a probe.
const TOLERANCE: Duration = Duration::from_millis(400);
/// Minimum idle time before the first probe: TCP_KEEPIDLE counts whole seconds.
const FIRST_PROBE: Duration = Duration::from_secs(1);
/// A host is silent once `UNANSWERED` consecutive retransmissions or window probes had no answer and its last segment is `SILENT_AFTER`
/// old.
const UNANSWERED: u8 = 2;
const SILENT_AFTER: Duration = Duration::from_millis(500);
/// Interval of repeated notices about a silent host.
const TELL_AGAIN: Duration = Duration::from_secs(1);

/// Values that the session's task and the sweeps exchange.
#[derive(Debug, Default)]
pub(crate) struct HostSignals {
    /// Probes of the host are dropped.
    pub(crate) held: AtomicBool,
    /// DSCP and TTL of the host's packets, as known to the session ([`Marks::to_bits`]).
    pub(crate) marks: AtomicU32,
    /// Round trip between the agents, in milliseconds.
    pub(crate) rtt_ms: AtomicU32,
    /// Counts the starts and ends of probing by the agent itself: the host's answers to the agent's probes must not be taken for keepalive
    /// probes of the host.
    pub(crate) own_probes: AtomicU32,
}

/// State of one host leg.
#[derive(Debug, Default)]
struct Watch {
    last: Option<LegInfo>,
    /// Time of the host's last probe, and the interval between the preceding segment and the probe.
    probed: Option<Instant>,
    cadence: Option<Duration>,
    /// Predicted time of the probe for which the agent has already queried the far host.
    asked_for: Option<Instant>,
    silent_since: Option<Instant>,
    told: Option<Instant>,
    drops: u32,
    own_probes: u32,
}

impl Watch {
    /// Polls a host whose probes are answered.
    fn look(&mut self, info: LegInfo, rtt: Duration, now: Instant) -> Option<HostNotice> {
        let last = self.last.replace(info);
        if let Some(notice) = self.judge_silence(&info, now) {
            return Some(notice);
        }
        if info.outstanding || info.idle < FIRST_PROBE / 2 {
            return None;
        }
        if last.is_some_and(|last| info.is_probe_since(&last)) && info.idle >= FIRST_PROBE {
            self.note_probe(now - info.idle, now);
        }
        let next = self.expected(now - info.idle, now)?;
        let due = now + rtt + LEAD >= next && !self.asked_for.is_some_and(|at| is_near(at, next));
        due.then(|| {
            self.asked_for = Some(next);
            HostNotice::Expected
        })
    }

    /// Polls a host whose probes are dropped; `drops`: number dropped so far.
    fn look_held(&mut self, drops: u32, now: Instant) -> Option<HostNotice> {
        let more = drops != std::mem::replace(&mut self.drops, drops);
        more.then(|| {
            self.probed = Some(now);
            HostNotice::Unanswered
        })
    }

    fn judge_silence(&mut self, info: &LegInfo, now: Instant) -> Option<HostNotice> {
        let silent = info.outstanding && info.unanswered >= UNANSWERED && info.quiet >= SILENT_AFTER;
        if !silent {
            // The host is alive again once its data is acknowledged, or after any segment.
            let again = self.silent_since.is_some() && (!info.outstanding || info.quiet < SILENT_AFTER);
            return again.then(|| {
                self.silent_since = None;
                HostNotice::Answers
            });
        }
        self.silent_since.get_or_insert(now);
        let due = self.told.is_none_or(|at| now.saturating_duration_since(at) >= TELL_AGAIN);
        due.then(|| {
            self.told = Some(now);
            HostNotice::Silent
        })
    }

    /// Notes a probe since the last poll, on a connection idle since `active`.
    fn note_probe(&mut self, active: Instant, now: Instant) {
        let before = self.probed.filter(|at| *at > active).unwrap_or(active);
        if let Some(expected) = self.cadence.map(|cadence| before + cadence)
            && is_near(expected, now)
        {
            self.probed = Some(expected.min(now));
            return;
        }
        // The probe arrived at most one sweep ago, and a whole number of seconds after the segment before it.
        let seconds = Duration::from_secs(now.saturating_duration_since(before).as_secs().max(1));
        (self.cadence, self.probed) = (Some(seconds), Some(before + seconds));
    }

    /// Predicted time of the host's next probe.
    fn expected(&mut self, active: Instant, now: Instant) -> Option<Instant> {
        let before = self.probed.filter(|at| *at > active).unwrap_or(active);
        if let Some(cadence) = self.cadence {
            let next = before + cadence;
            if now <= next + 2 * TOLERANCE {
                return Some(next);
            }
            // The probe did not arrive: the host's settings have changed.
            (self.cadence, self.probed) = (None, None);
        }
        COMMON_IDLE.iter().map(|seconds| active + Duration::from_secs(*seconds)).find(|at| *at > now)
    }
}

fn is_near(one: Instant, other: Instant) -> bool {
    one.max(other).saturating_duration_since(one.min(other)) <= TOLERANCE
}

struct Entry {
    socket: Weak<TcpStream>,
    mailbox: Arc<Mailbox>,
    shared: Arc<HostSignals>,
    marks: Option<Watched>,
    watch: Watch,
}

impl Entry {
    /// Polls the marks of acknowledgements; the marks of segments with data are read with the data.
    fn look_at_marks(&self) {
        let seen = self.marks.as_ref().and_then(Watched::marks).map(|marks| u32::from(marks.to_bits()));
        if seen.is_some_and(|seen| seen != self.shared.marks.load(Ordering::Relaxed)) {
            self.mailbox.push(Mail::Host(HostNotice::Marked));
        }
    }

    fn sweep(&mut self, count: u32, now: Instant) {
        let Some(socket) = self.socket.upgrade() else { return };
        self.look_at_marks();
        let held = self.shared.held.load(Ordering::Acquire);
        let long = self.watch.last.is_some_and(|last| last.idle >= LONG_IDLE) && self.watch.cadence.is_none();
        if long && !held && !count.is_multiple_of(LONG_IDLE_SWEEPS) {
            return;
        }
        let notice = if held {
            dropped(&socket).ok().and_then(|drops| self.watch.look_held(drops, now))
        } else {
            self.watch.drops = dropped(&socket).unwrap_or(self.watch.drops);
            let own_probes = self.shared.own_probes.load(Ordering::Acquire);
            if own_probes != std::mem::replace(&mut self.watch.own_probes, own_probes) {
                self.watch.last = None;
            }
            let rtt = Duration::from_millis(self.shared.rtt_ms.load(Ordering::Relaxed).into());
            leg_info(&socket).ok().and_then(|info| self.watch.look(info, rtt, now))
        };
        if let Some(notice) = notice {
            self.mailbox.push(Mail::Host(notice));
        }
    }
}

/// Connections to poll.
#[derive(Default)]
pub(crate) struct Sweeps {
    new: Mutex<Vec<Entry>>,
}

impl Sweeps {
    /// Adds a connection, which is polled as long as it exists.
    pub(crate) fn watch(&self, host: &Host, mailbox: &Arc<Mailbox>) -> Arc<HostSignals> {
        let shared = Arc::<HostSignals>::default();
        let (socket, mailbox) = (Arc::downgrade(host.socket()), Arc::clone(mailbox));
        let (marks, watch) = (host.watched().cloned(), Watch::default());
        lock(&self.new).push(Entry { socket, mailbox, shared: Arc::clone(&shared), marks, watch });
        shared
    }

    fn take_new(&self, entries: &mut Vec<Entry>) {
        entries.append(&mut lock(&self.new));
    }
}

/// Polls all connections, for as long as the tunnel exists.
pub(crate) async fn sweep(sweeps: Weak<Sweeps>) {
    let mut ticks = tokio::time::interval(SWEEP);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut entries, mut count) = (Vec::new(), 0u32);
    loop {
        ticks.tick().await;
        let Some(sweeps) = sweeps.upgrade() else { return };
        sweeps.take_new(&mut entries);
        drop(sweeps);
        count = count.wrapping_add(1);
        let mut at = 0;
        while at < entries.len() {
            let (end, now) = ((at + BATCH).min(entries.len()), Instant::now());
            for entry in &mut entries[at..end] {
                // A panic affects one session only: its connection is not polled again.
                if catch_unwind(AssertUnwindSafe(|| entry.sweep(count, now))).is_err() {
                    entry.socket = Weak::new();
                }
            }
            at = end;
            tokio::task::yield_now().await;
        }
        entries.retain(|entry| entry.socket.strong_count() > 0);
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const RTT: Duration = Duration::from_millis(20);

    /// Polls a host's idle connection in sweeps, with a keepalive probe every `cadence` seconds.
    fn sweeps(watch: &mut Watch, seconds: u64, cadence: Option<u64>) -> Vec<u64> {
        let start = Instant::now();
        let mut expected = Vec::new();
        // The sweeps are not at whole seconds, unlike the probes.
        for at in (130..1000 * seconds).step_by(250) {
            let idle = Duration::from_millis(at);
            let segments = cadence.map_or(0, |cadence| u32::try_from(at / (1000 * cadence)).unwrap());
            let info = LegInfo { idle, quiet: idle, segments, ..LegInfo::default() };
            match watch.look(info, RTT, start + idle) {
                Some(HostNotice::Expected) => expected.push(at),
                notice => assert_eq!(notice, None),
            }
        }
        expected
    }

    #[test]
    fn the_far_host_is_queried_before_each_probe() {
        for cadence in [5, 7] {
            let expected = sweeps(&mut Watch::default(), 60, Some(cadence));
            for probe in (2..60 / cadence).map(|n| 1000 * n * cadence) {
                let before = expected.iter().filter(|at| (probe - 500..probe - 150).contains(at)).count();
                assert_eq!(before, 1, "a probe at {probe} ms, queries at {expected:?}");
            }
        }
    }

    #[test]
    fn a_host_without_keepalives_causes_ever_fewer_queries() {
        let expected = sweeps(&mut Watch::default(), 3600, None);
        assert_eq!(expected.len(), COMMON_IDLE.len() - 1, "{expected:?}");
        assert!(expected.iter().filter(|at| **at > 600_000).count() <= 2);
    }

    #[test]
    fn an_unanswered_probe_is_reported_once() {
        let (mut watch, now) = (Watch::default(), Instant::now());
        assert_eq!(watch.look_held(0, now), None);
        assert_eq!(watch.look_held(1, now), Some(HostNotice::Unanswered));
        assert_eq!(watch.look_held(1, now), None);
    }

    #[test]
    fn silence_is_reported_each_second_and_its_end_once() {
        let (mut watch, start) = (Watch::default(), Instant::now());
        let silent = LegInfo { outstanding: true, unanswered: 2, quiet: SECOND, ..LegInfo::default() };
        let mut told = |info, ms| watch.look(info, RTT, start + ms * MS);
        assert_eq!(told(LegInfo { unanswered: 1, ..silent }, 0), None, "a lost segment");
        assert_eq!(told(LegInfo { unanswered: 0, ..silent }, 0), None, "a closed window");
        assert_eq!(told(silent, 250), Some(HostNotice::Silent));
        assert_eq!(told(silent, 500), None);
        assert_eq!(told(silent, 1250), Some(HostNotice::Silent));
        assert_eq!(told(LegInfo::default(), 1500), Some(HostNotice::Answers));
        assert_eq!(told(LegInfo::default(), 1750), None);
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn progress_is_no_probe() {
        let last = LegInfo { segments: 7, data_segments: 3, acknowledged: 100, ..LegInfo::default() };
        assert!(LegInfo { segments: 8, ..last }.is_probe_since(&last));
        assert!(!LegInfo { segments: 8, data_segments: 4, ..last }.is_probe_since(&last));
        assert!(!LegInfo { segments: 8, acknowledged: 101, ..last }.is_probe_since(&last));
        assert!(!last.is_probe_since(&last));
    }
}
