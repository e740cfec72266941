//! Liveness of both hosts, in a session (frame.md section 7).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use sos_wire::{Body, Frame, Marks};

use super::Driver;
use crate::session::host::Host;
use crate::session::host_liveness::HostSignals;
use crate::session::mailbox::HostNotice;
use crate::transport::sockopt::Gate;

/// Maximum age at which a host's last segment proves that the host is alive.
const FRESH: Duration = Duration::from_millis(500);
/// Timeout for a host's answer to a probe; the host is on the same LAN.
const PATIENCE: Duration = Duration::from_secs(3);
/// First and longest interval between two polls for that answer; each interval is twice the last.
const FIRST_LOOK: Duration = Duration::from_millis(2);
const LOOK_MAX: Duration = Duration::from_millis(250);
/// Time for which a report that a host is silent remains valid.
const SILENCE_HOLDS: Duration = Duration::from_secs(5);

/// A running probe of this agent's host, requested by the other agent.
#[derive(Debug)]
struct Asking {
    opaque: u64,
    since: Instant,
    look_at: Instant,
    pause: Duration,
}

#[derive(Debug, Default)]
pub(super) struct Liveness {
    watched: Option<Arc<HostSignals>>,
    /// Filter for segments of this agent's host, set by the state of the far host.
    passes: Gate,
    asking: Option<Asking>,
    /// Number of the last Probe sent.
    sent: u64,
    /// End of the reported silence of the far host, unless a new report arrives.
    silent_until: Option<Instant>,
}

impl Liveness {
    /// Next deadline of [`Driver::handle_liveness`].
    pub(super) fn next(&self) -> Option<Instant> {
        let look = self.asking.as_ref().map(|asking| asking.look_at);
        [look, self.silent_until].into_iter().flatten().min()
    }

    /// Tells the sweeps which marks the session knows: the sweeps report only marks that differ.
    pub(super) fn note_marks(&self, marks: Marks) {
        if let Some(watched) = &self.watched {
            watched.marks.store(marks.to_bits().into(), Ordering::Relaxed);
        }
    }

    pub(super) fn set_rtt(&self, rtt: Duration) {
        if let Some(watched) = &self.watched {
            watched.rtt_ms.store(u32::try_from(rtt.as_millis()).unwrap_or(u32::MAX), Ordering::Relaxed);
        }
    }
}

impl Driver {
    /// Adds the host's connection to the liveness sweeps.
    pub(super) fn watch_host(&mut self) {
        if let Some(host) = &self.host {
            self.liveness.watched = Some(self.context.sweeps.watch(host, &self.mailbox));
        }
        self.tell_rtt();
    }

    /// Handles a notice of the sweeps.
    pub(super) fn handle_notice(&mut self, notice: HostNotice) {
        match notice {
            // No query while the host has unacknowledged bytes: a query closes the filter to bare acknowledgements, and the host's
            // acknowledgement must pass.
            HostNotice::Expected if self.delivery.unacknowledged == 0 => self.ask(),
            HostNotice::Unanswered if self.liveness.passes == Gate::NoProbes => self.ask(),
            HostNotice::Marked => self.note_marks(),
            HostNotice::Silent => self.tell_host_state(0, true),
            HostNotice::Answers => self.tell_host_state(0, false),
            HostNotice::Expected | HostNotice::Unanswered => {}
        }
    }

    /// Queries the state of the far host. Until the answer arrives, probes of this agent's host stay unanswered.
    fn ask(&mut self) {
        let opaque = self.liveness.sent + 1;
        if self.session.is_opened() && self.tell(Body::Probe { opaque }) {
            self.liveness.sent = opaque;
            if self.liveness.passes == Gate::Open {
                self.set_gate(Gate::NoProbes);
            }
        }
    }

    /// Handles the other agent's query about this agent's host.
    pub(super) fn handle_probe(&mut self, opaque: u64, now: Instant) {
        let Some(host) = &mut self.host else { return };
        if host.info().is_some_and(|info| info.quiet < FRESH) {
            return self.tell_host_state(opaque, false);
        }
        if let Some(asking) = &mut self.liveness.asking {
            (asking.opaque, asking.since) = (opaque, now);
        } else {
            self.liveness.asking =
                Some(Asking { opaque, since: now, look_at: now + FIRST_LOOK, pause: FIRST_LOOK });
            // The host's answer must pass, whatever the state of the far host.
            host.set_gate(Gate::Open);
            host.probe(true);
            self.note_gate();
        }
        if let Some(watched) = &self.liveness.watched {
            watched.own_probes.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Handles the other agent's report about its host.
    pub(super) fn handle_host_state(&mut self, opaque: u64, silent: bool, now: Instant) {
        if silent {
            self.liveness.silent_until = Some(now + SILENCE_HOLDS);
            // The far host sent the unacknowledged bytes while it was alive, so their acknowledgement must pass.
            if self.delivery.unacknowledged == 0 {
                self.set_gate(Gate::Closed);
            }
        } else if opaque == 0 || opaque == self.liveness.sent {
            self.liveness.silent_until = None;
            self.set_gate(Gate::Open);
        }
    }

    /// Handles deadlines.
    pub(super) fn handle_liveness(&mut self, now: Instant) {
        if self.liveness.silent_until.take_if(|at| *at <= now).is_some()
            && self.liveness.passes == Gate::Closed
        {
            self.set_gate(Gate::Open);
        }
        self.look_for_answer(now);
    }

    fn look_for_answer(&mut self, now: Instant) {
        let Some(asking) = self.liveness.asking.as_mut().filter(|asking| asking.look_at <= now) else {
            return;
        };
        let asked = now.saturating_duration_since(asking.since);
        let quiet = self.host.as_ref().and_then(Host::info).map_or(PATIENCE, |info| info.quiet);
        let answered = quiet < FRESH;
        if !answered && asked < PATIENCE {
            asking.pause = (2 * asking.pause).min(LOOK_MAX);
            asking.look_at = now + asking.pause;
            return;
        }
        let opaque = asking.opaque;
        self.liveness.asking = None;
        if let Some(watched) = &self.liveness.watched {
            watched.own_probes.fetch_add(1, Ordering::AcqRel);
        }
        if let Some(host) = &self.host {
            host.probe(false);
        }
        // Restore the filter that was opened for the probe: the answer of this agent's host proves nothing about the far host, whose state
        // determines the filter.
        self.set_gate(self.liveness.passes);
        if answered {
            self.tell_host_state(opaque, false);
        }
    }

    fn tell_host_state(&self, opaque: u64, silent: bool) {
        self.tell(Body::HostState { opaque, silent });
    }

    /// Sends a frame about the hosts, if the peer accepts it.
    fn tell(&self, body: Body) -> bool {
        let able = self.streams.iter().filter(|stream| stream.takes_liveness);
        let Some(stream) = able.min_by_key(|stream| stream.rtt()) else { return false };
        stream.push_if_room(Frame { session: self.number, body });
        true
    }

    fn gate(&self) -> Gate {
        self.host.as_ref().map_or(Gate::Open, Host::gate)
    }

    fn set_gate(&mut self, gate: Gate) {
        self.liveness.passes = gate;
        // The filter must let a pending answer pass.
        if let Some(host) = self.host.as_mut().filter(|_| self.liveness.asking.is_none()) {
            host.set_gate(gate);
        }
        self.note_gate();
    }

    /// Notes that bytes were sent to the host, for whose acknowledgement [`Host`] has opened the filter.
    pub(super) fn note_given_gate(&mut self) {
        self.liveness.passes = Gate::Open;
        self.note_gate();
    }

    /// Publishes the state of the filter to the sweeps.
    fn note_gate(&self) {
        if let Some(watched) = &self.liveness.watched {
            watched.held.store(self.gate() == Gate::NoProbes, Ordering::Release);
        }
    }
}
