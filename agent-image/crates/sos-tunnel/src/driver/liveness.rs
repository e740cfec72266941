//! What a session does about its host and the far one being there (frame.md section 7).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use sos_wire::{Body, Frame, Marks};

use super::Driver;
use crate::host::Host;
use crate::liveness::{Notice, Shared};
use crate::sockopt::Gate;

/// A host that has been heard within this time is there.
const FRESH: Duration = Duration::from_millis(500);
/// How long a host may take to answer a probe, and how soon it is looked whether it has: it is on the same LAN.
const PATIENCE: Duration = Duration::from_secs(3);
const FIRST_LOOK: Duration = Duration::from_millis(2);
const LOOK_MAX: Duration = Duration::from_millis(250);
/// What is said of a silent host holds for this long.
const SILENCE_HOLDS: Duration = Duration::from_secs(5);

/// The own host is being asked, for the other agent.
#[derive(Debug)]
struct Asking {
    opaque: u64,
    since: Instant,
    look_at: Instant,
    pause: Duration,
}

#[derive(Debug, Default)]
pub(super) struct Liveness {
    watched: Option<Arc<Shared>>,
    /// What of the own host's segments may pass, as far as the far host is known to be there.
    passes: Gate,
    asking: Option<Asking>,
    /// The last Probe sent.
    sent: u64,
    /// The far host is silent until then, unless it is said again.
    silent_until: Option<Instant>,
}

impl Liveness {
    /// When [`Driver::handle_liveness`] has something to do.
    pub(super) fn next(&self) -> Option<Instant> {
        let look = self.asking.as_ref().map(|asking| asking.look_at);
        [look, self.silent_until].into_iter().flatten().min()
    }

    /// The session knows of these marks of the host.
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
    /// The host's connection is looked at from now on.
    pub(super) fn watch_host(&mut self) {
        if let Some(host) = &self.host {
            self.liveness.watched = Some(self.shared.sweeps.watch(host, &self.mailbox));
        }
        self.tell_rtt();
    }

    /// What the looks at the own host's connection have shown.
    pub(super) fn handle_notice(&mut self, notice: Notice) {
        match notice {
            // Bytes that it has not taken yet are a question of their own.
            Notice::Expected if self.delivery.unacknowledged == 0 => self.ask(),
            Notice::Unanswered if self.liveness.passes == Gate::NoProbes => self.ask(),
            Notice::Marked => self.note_marks(),
            Notice::Silent => self.tell_host_state(0, true),
            Notice::Answers => self.tell_host_state(0, false),
            Notice::Expected | Notice::Unanswered => {}
        }
    }

    /// Asks for the far host. Until the answer is here probes of the own host are left unanswered.
    fn ask(&mut self) {
        let opaque = self.liveness.sent + 1;
        if self.session.is_opened() && self.tell(Body::Probe { opaque }) {
            self.liveness.sent = opaque;
            if self.liveness.passes == Gate::Open {
                self.set_gate(Gate::NoProbes);
            }
        }
    }

    /// The other agent asks for this one's host.
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
            // Its answer has to pass, whatever is known of the far host.
            host.set_gate(Gate::Open);
            host.probe(true);
            self.note_gate();
        }
        if let Some(watched) = &self.liveness.watched {
            watched.own_probes.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// The other agent tells of its host.
    pub(super) fn handle_host_state(&mut self, opaque: u64, silent: bool, now: Instant) {
        if silent {
            self.liveness.silent_until = Some(now + SILENCE_HOLDS);
            // What the host has not acknowledged yet was said by the far one while it was there.
            if self.delivery.unacknowledged == 0 {
                self.set_gate(Gate::Closed);
            }
        } else if opaque == 0 || opaque == self.liveness.sent {
            self.liveness.silent_until = None;
            self.set_gate(Gate::Open);
        }
    }

    /// Time has passed.
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
        // The host being there says nothing of the far one: probes that were left unanswered before stay so.
        self.set_gate(self.liveness.passes);
        if answered {
            self.tell_host_state(opaque, false);
        }
    }

    fn tell_host_state(&self, opaque: u64, silent: bool) {
        self.tell(Body::HostState { opaque, silent });
    }

    /// Sends a frame about the hosts, if the peer takes such.
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
        // An answer that is waited for has to pass meanwhile.
        if let Some(host) = self.host.as_mut().filter(|_| self.liveness.asking.is_none()) {
            host.set_gate(gate);
        }
        self.note_gate();
    }

    /// The host was given something: its answers have to pass ([`Host`] has seen to that).
    pub(super) fn note_given_gate(&mut self) {
        self.liveness.passes = Gate::Open;
        self.note_gate();
    }

    /// Tells the sweeps what passes.
    fn note_gate(&self) {
        if let Some(watched) = &self.liveness.watched {
            watched.held.store(self.gate() == Gate::NoProbes, Ordering::Release);
        }
    }
}
