//! One peer: its streams, its sessions, and the sessions that wait for buffer space on a stream.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sos_relay::{ClosedSessions, StreamId};
use sos_wire::{AgentId, Body, BootId, EndReason, Frame, SessionNumber, Willingness};

use crate::config::{PathStats, PathStreams, PeerConfig};
use crate::counters::Meter;
use crate::lock;
use crate::session::mailbox::{Mail, Mailbox};
use crate::stream::{Stream, of_stream};
use crate::transport::channel::Kind;
use crate::types::Labels;

/// Half-life of the known rate of hosts behind a peer.
const RATE_HALF_LIFE: Duration = Duration::from_secs(60);

/// A peer.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) agent: AgentId,
    /// This agent.
    local: AgentId,
    /// Number of sessions that this agent has opened to any peer in this boot. Session numbers are derived from this count, so that no
    /// number is reused.
    opened: Arc<AtomicU64>,
    state: Mutex<PeerState>,
    room_waiters: Mutex<VecDeque<(Labels, Arc<Mailbox>)>>,
    room_waiter_count: AtomicUsize,
    /// Rate at which a host behind the peer has received, in bytes per second, and the time of the measurement.
    rate: Mutex<Option<(f64, Instant)>>,
    /// Traffic meters by label; bounded by the number of labels.
    meters: Mutex<BTreeMap<u8, Arc<Meter>>>,
}

#[derive(Debug)]
struct PeerState {
    config: PeerConfig,
    /// The peer is no longer configured, and is kept while sessions run.
    retired: bool,
    boot: Option<BootId>,
    going_away: bool,
    willingness: Willingness,
    /// Labels on which QUIC has failed, with the end of the pause and its length.
    without_quic: BTreeMap<u8, (Instant, Duration)>,
    streams: Vec<Arc<Stream>>,
    sessions: BTreeMap<SessionNumber, Arc<Mailbox>>,
    ended: ClosedSessions,
}

/// Reason for rejecting a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rejected {
    /// The peer's boot id is older than a boot id already seen.
    OldBoot,
    /// The stream is plain, and encryption has become required since its handshake started.
    Plain,
}

impl Peer {
    pub(crate) fn new(local: AgentId, config: PeerConfig, opened: &Arc<AtomicU64>) -> Arc<Self> {
        let state = PeerState {
            retired: false,
            boot: None,
            going_away: false,
            willingness: Willingness::default(),
            without_quic: BTreeMap::new(),
            streams: Vec::new(),
            sessions: BTreeMap::new(),
            ended: ClosedSessions::default(),
            config,
        };
        Arc::new(Self {
            agent: state.config.agent,
            local,
            opened: Arc::clone(opened),
            state: Mutex::new(state),
            room_waiters: Mutex::default(),
            room_waiter_count: AtomicUsize::new(0),
            rate: Mutex::default(),
            meters: Mutex::default(),
        })
    }

    // --- configuration ---

    pub(crate) fn config(&self) -> PeerConfig {
        lock(&self.state).config.clone()
    }

    pub(crate) fn configure(&self, config: PeerConfig) {
        let mut state = lock(&self.state);
        (state.config, state.retired) = (config, false);
        if state.config.encrypted_only {
            state
                .streams
                .iter()
                .filter(|stream| !stream.kind.is_encrypted())
                .for_each(|stream| stream.close());
        }
    }

    pub(crate) fn retire(&self) {
        lock(&self.state).retired = true;
    }

    /// True if the peer is no longer listed and has no session left. Then no stream to the peer is dialed or accepted.
    pub(crate) fn is_over(&self) -> bool {
        lock(&self.state).is_over()
    }

    pub(crate) fn is_retired(&self) -> bool {
        lock(&self.state).retired
    }

    /// True if this agent must keep the `slot`-th stream of a label open: this agent dials the peer, and either the stream is configured or
    /// sessions with the peer are still running.
    pub(crate) fn wants(&self, label: u8, slot: usize) -> bool {
        let state = lock(&self.state);
        if !state.config.is_dialed_by(self.local) {
            return false;
        }
        let configured = !state.retired && state.config.streams.get(&label).is_some_and(|n| slot < *n);
        configured || !state.sessions.is_empty()
    }

    /// True if new sessions may be opened towards the peer.
    pub(crate) fn is_alive(&self) -> bool {
        lock(&self.state).is_alive()
    }

    /// True if the peer is alive and willing to accept new sessions.
    pub(crate) fn is_willing(&self) -> bool {
        let state = lock(&self.state);
        state.is_alive() && state.willingness.holds()
    }

    // --- streams ---

    pub(crate) fn stream_count(&self, label: u8) -> usize {
        lock(&self.state).streams.iter().filter(|stream| stream.label == label).count()
    }

    pub(crate) fn path_streams(&self) -> Vec<PathStreams> {
        let state = lock(&self.state);
        PathStreams::by_label(&state.config.streams, state.streams.iter().map(|stream| stream.label))
    }

    /// Adds an established stream of the peer's boot `boot`. A newer boot than the known one ends all streams and sessions of the older boot.
    pub(crate) fn add_stream(&self, stream: Arc<Stream>, boot: BootId) -> Result<(), Rejected> {
        let mut state = lock(&self.state);
        if state.boot.is_some_and(|known| boot < known) {
            return Err(Rejected::OldBoot);
        }
        if state.config.encrypted_only && !stream.kind.is_encrypted() {
            return Err(Rejected::Plain);
        }
        if state.boot.replace(boot).is_some_and(|known| boot > known) {
            state.going_away = false;
            state.willingness = Willingness::default();
            state.ended = ClosedSessions::default();
            for old in std::mem::take(&mut state.streams) {
                old.close();
            }
            // The new boot numbers its sessions from the start: frames of old sessions must not reach new sessions.
            for mailbox in std::mem::take(&mut state.sessions).into_values() {
                mailbox.push(Mail::PeerLost);
            }
        }
        for mailbox in state.sessions.values() {
            mailbox.push(Mail::StreamUp(Arc::clone(&stream)));
        }
        if stream.kind == Kind::Quic {
            state.without_quic.remove(&stream.label);
        }
        state.streams.push(stream);
        Ok(())
    }

    pub(crate) fn remove_stream(&self, id: StreamId) {
        let mut state = lock(&self.state);
        state.streams.retain(|stream| stream.id != id);
        for mailbox in state.sessions.values() {
            mailbox.push(Mail::StreamClosed(id));
        }
    }

    /// Pauses QUIC on a label after a failure: for `least`, doubled for each consecutive failure, up to `most`. Returns the pause; `None` if a
    /// pause is already in force.
    pub(crate) fn give_up_quic(
        &self,
        label: u8,
        now: Instant,
        (least, most): (Duration, Duration),
    ) -> Option<Duration> {
        let mut state = lock(&self.state);
        let before = state.without_quic.get(&label);
        if before.is_some_and(|(until, _)| now < *until) {
            return None;
        }
        let pause = before.map_or(least, |(_, pause)| *pause * 2).min(most);
        state.without_quic.insert(label, (now + pause, pause));
        Some(pause)
    }

    /// True if QUIC may be tried on a label.
    pub(crate) fn may_try_quic(&self, label: u8, now: Instant) -> bool {
        lock(&self.state).without_quic.get(&label).is_none_or(|(until, _)| *until <= now)
    }

    /// Number of plain streams older than this stream.
    pub(crate) fn plain_before(&self, id: StreamId) -> usize {
        lock(&self.state)
            .streams
            .iter()
            .take_while(|stream| stream.id != id)
            .filter(|s| !s.kind.is_encrypted())
            .count()
    }

    /// True if all frames to the peer have arrived, as far as the transports know.
    pub(crate) fn has_heard_all(&self, now: Instant) -> bool {
        let streams = lock(&self.state).streams.clone();
        streams.iter().map(|stream| stream.view(now)).all(|view| view.acked == view.queued_total)
    }

    pub(crate) fn close_streams(&self) {
        lock(&self.state).streams.iter().for_each(|stream| stream.close());
    }

    /// Requests that the peer open no more sessions towards this agent.
    pub(crate) fn send_go_away(&self) {
        lock(&self.state).streams.iter().for_each(|stream| stream.push(of_stream(Body::GoAway)));
    }

    pub(crate) fn handle_go_away(&self) {
        lock(&self.state).going_away = true;
    }

    /// Notifies the peer whether this agent accepts new sessions.
    pub(crate) fn say_willing(&self, changes: Willingness) {
        lock(&self.state).streams.iter().for_each(|stream| stream.say_willing(changes));
    }

    /// Handles a Willing frame. Frames on different streams may overtake each other: the highest count is in force.
    pub(crate) fn handle_willing(&self, changes: Willingness) {
        let mut state = lock(&self.state);
        state.willingness = state.willingness.max(changes);
    }

    /// Sends a frame about a session that has not started, on the stream with the earliest expected arrival. False if no stream accepts it.
    pub(crate) fn send_ahead(&self, body: Body, labels: Labels, now: Instant) -> bool {
        let streams = lock(&self.state).streams.clone();
        let usable = streams.iter().filter(|stream| stream.takes_connect && labels.contains(stream.label));
        let soonest = usable.min_by_key(|stream| {
            let view = stream.view(now);
            (view.stalled, !view.has_room, view.rtt)
        });
        soonest.is_some_and(|stream| stream.try_push(of_stream(body)))
    }

    /// True if the peer supports connecting to servers ahead of sessions.
    pub(crate) fn takes_connect(&self) -> bool {
        lock(&self.state).streams.iter().any(|stream| stream.takes_connect)
    }

    /// Minimum round trip of all streams.
    pub(crate) fn rtt(&self) -> Duration {
        lock(&self.state).streams.iter().map(|stream| stream.rtt()).min().unwrap_or(Duration::ZERO)
    }

    /// Recent rate of hosts behind the peer, in bytes per second. It decays, because paths change.
    pub(crate) fn known_rate(&self, now: Instant) -> f64 {
        lock(&self.rate).map_or(0.0, |(rate, at)| {
            let halves = now.saturating_duration_since(at).as_secs_f64() / RATE_HALF_LIFE.as_secs_f64();
            rate * 0.5f64.powf(halves)
        })
    }

    /// Notes the rate at which a host behind the peer has received, in bytes per second.
    pub(crate) fn note_rate(&self, rate: f64, now: Instant) {
        if rate > self.known_rate(now) {
            *lock(&self.rate) = Some((rate, now));
        }
    }

    /// Traffic meter of a label's streams.
    pub(crate) fn meter(&self, label: u8, now: Instant) -> Arc<Meter> {
        Arc::clone(lock(&self.meters).entry(label).or_insert_with(|| Arc::new(Meter::new(now))))
    }

    /// Statistics of each label that has a stream.
    pub(crate) fn paths(&self, now: Instant) -> Vec<PathStats> {
        let streams = lock(&self.state).streams.clone();
        let mut found: BTreeMap<u8, PathStats> = BTreeMap::new();
        for stream in streams {
            let (rtt, min_rtt) = stream.round_trips(now);
            let path = found.entry(stream.label).or_insert_with(|| {
                let meter = self.meter(stream.label, now);
                let (sent, received) = (meter.sent.value(), meter.received.value());
                let (peer, label) = (self.agent, stream.label);
                PathStats { peer, label, streams: 0, rtt, min_rtt, sent, received }
            });
            path.streams += 1;
            path.rtt = lower(path.rtt, rtt);
            path.min_rtt = lower(path.min_rtt, min_rtt);
        }
        found.into_values().collect()
    }

    // --- sessions ---

    pub(crate) fn session_count(&self) -> usize {
        lock(&self.state).sessions.len()
    }

    /// Registers a session opened by this agent and gives it a number. Its mailbox receives the existing streams.
    pub(crate) fn open_session(&self, mailbox: &Arc<Mailbox>) -> SessionNumber {
        let mut state = lock(&self.state);
        let opened = self.opened.fetch_add(1, Ordering::Relaxed) + 1;
        let number = SessionNumber::new(opened, self.local, self.agent);
        state.register(number, mailbox);
        number
    }

    /// Ends a session; returns true if it was registered. A session of an earlier boot of the peer is no longer registered, and a newer
    /// session may have the same number.
    pub(crate) fn end_session(
        &self,
        (number, mailbox): (SessionNumber, &Arc<Mailbox>),
        reason: EndReason,
        delivered: u64,
        now: Instant,
    ) -> bool {
        let mut state = lock(&self.state);
        let known = state.sessions.get(&number).is_some_and(|known| Arc::ptr_eq(known, mailbox));
        if known {
            state.sessions.remove(&number);
            state.ended.insert(number, reason, delivered, now);
            if state.is_over() {
                // Close the streams, so that the peer no longer counts this agent as alive.
                state.streams.iter().for_each(|stream| stream.close());
            }
        }
        known
    }

    pub(crate) fn abort_sessions(&self, reason: EndReason) {
        for mailbox in lock(&self.state).sessions.values() {
            mailbox.push(Mail::Abort(reason));
        }
    }

    /// Delivers a frame to its session. `begin` creates the mailbox of a session that the peer opens.
    pub(crate) fn deliver(
        &self,
        stream: &Stream,
        frame: Frame,
        now: Instant,
        begin: impl FnOnce(&Frame) -> Result<Arc<Mailbox>, EndReason>,
    ) -> Delivery {
        let mut state = lock(&self.state);
        if let Some(mailbox) = state.sessions.get(&frame.session) {
            mailbox.push(Mail::Frame(frame.body));
            return Delivery::Done;
        }
        let number = frame.session;
        if matches!(frame.body, Body::Open { .. }) && !state.ended.contains(number) {
            if !number.opened_by(self.agent, self.local) {
                return Delivery::WrongSide;
            }
            match begin(&frame) {
                Ok(mailbox) => {
                    state.register(number, &mailbox);
                    mailbox.push(Mail::Frame(frame.body));
                }
                Err(reason) => {
                    state.ended.insert(number, reason, 0, now);
                    stream.push_if_room(Frame { session: number, body: Body::Reset { reason } });
                }
            }
            return Delivery::Done;
        }
        if let Some(body) = state.ended.answer(number, &frame.body, now) {
            stream.push_if_room(Frame { session: number, body });
        }
        Delivery::Unknown
    }

    // --- sessions that wait for buffer space ---

    /// Queues a session that has frames to send while none of its streams has buffer space. `all_streams`: the session uses every stream,
    /// including reserved ones.
    pub(crate) fn wait_for_room(&self, mailbox: &Arc<Mailbox>, labels: Labels, all_streams: bool) {
        if mailbox.start_waiting(all_streams) {
            let mut room_waiters = lock(&self.room_waiters);
            room_waiters.push_back((labels, Arc::clone(mailbox)));
            self.room_waiter_count.store(room_waiters.len(), Ordering::Release);
        }
    }

    /// Wakes the session that has waited longest for buffer space on a stream of this label. If that session does not use every stream, it
    /// may not use this one, so the first waiting session that uses every stream is woken, too. Returns true if a session was woken.
    pub(crate) fn wake_next(&self, label: u8) -> bool {
        if !self.others_wait() {
            return false;
        }
        let (first, all_streams) = {
            let mut room_waiters = lock(&self.room_waiters);
            let first = take_from(&mut room_waiters, label, |_| true);
            let has_much = first.as_ref().is_some_and(|first| !first.uses_all_streams());
            let all_streams =
                has_much.then(|| take_from(&mut room_waiters, label, Mailbox::uses_all_streams)).flatten();
            self.room_waiter_count.store(room_waiters.len(), Ordering::Release);
            (first, all_streams)
        };
        for mailbox in first.iter().chain(&all_streams) {
            mailbox.stop_waiting();
            mailbox.wake();
        }
        first.is_some()
    }

    /// True if a session waits for buffer space.
    pub(crate) fn others_wait(&self) -> bool {
        self.room_waiter_count.load(Ordering::Acquire) > 0
    }
}

/// Removes the first waiting session that may use streams of this label and for which `wanted` is true, and drops closed sessions.
fn take_from(
    room_waiters: &mut VecDeque<(Labels, Arc<Mailbox>)>,
    label: u8,
    wanted: impl Fn(&Mailbox) -> bool,
) -> Option<Arc<Mailbox>> {
    loop {
        let at = room_waiters
            .iter()
            .position(|(labels, m)| (labels.contains(label) && wanted(m)) || m.is_closed())?;
        let (_, mailbox) = room_waiters.remove(at)?;
        if !mailbox.is_closed() {
            return Some(mailbox);
        }
    }
}

/// The lower of two times; zero means unknown.
fn lower(one: Duration, other: Duration) -> Duration {
    [one, other].into_iter().filter(|time| !time.is_zero()).min().unwrap_or_default()
}

/// Result of delivering a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// The session has received the frame, or has begun or been refused.
    Done,
    /// Unknown session.
    Unknown,
    /// A session number that belongs to this agent's side.
    WrongSide,
}

impl PeerState {
    fn is_over(&self) -> bool {
        self.retired && self.sessions.is_empty()
    }

    fn is_alive(&self) -> bool {
        !self.retired && !self.going_away && self.usable().next().is_some()
    }

    /// Streams that sessions may use. If sessions must be encrypted, plain streams that are being closed are excluded.
    fn usable(&self) -> impl Iterator<Item = &Arc<Stream>> {
        let only = self.config.encrypted_only;
        self.streams.iter().filter(move |stream| !only || stream.kind.is_encrypted())
    }

    fn register(&mut self, number: SessionNumber, mailbox: &Arc<Mailbox>) {
        for stream in self.usable() {
            mailbox.push(Mail::StreamUp(Arc::clone(stream)));
        }
        self.sessions.insert(number, Arc::clone(mailbox));
    }
}

#[cfg(test)]
mod tests;
