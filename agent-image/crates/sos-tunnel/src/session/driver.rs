//! The task that owns a session. It connects the core, the host's socket and the streams; the core makes all decisions about the protocol.

mod delivery;
mod liveness;
mod marks;

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use sos_relay::sending::stream_reservation::{self, StreamLimit};
use sos_relay::{Cause, Compression, Event, Session, SessionStats, StreamView, usable};
use sos_wire::{Body, EndReason, Frame, Role, SessionNumber};
use tokio::sync::oneshot;
use tokio::time::Sleep;
use tracing::{debug, trace};

use self::delivery::Delivery;
use self::liveness::Liveness;
use crate::callbacks::{BoxFuture, Egress, OpenInfo};
use crate::lock;
use crate::session::handle::Progress;
use crate::session::host::{Host, Leg, ReadTargets};
use crate::session::mailbox::{Mail, Mailbox};
use crate::stream::Stream;
use crate::transport::channel::Kind;
use crate::tunnel::context::TunnelContext;
use crate::tunnel::peer::Peer;
use crate::types::{Labels, SessionEnd};

/// Number of rounds of one session (read, send, write) before other tasks run. The smaller value applies while blocks are compressed,
/// because each round then takes several times as long.
const ROUNDS: usize = 16;
const COMPRESSING_ROUNDS: usize = 4;
/// Number of bytes after which a session stops queueing frames if other sessions wait for buffer space.
const QUANTUM: usize = 64 << 10;
/// Interval at which a connection that is not being read is checked for errors.
const CHECK: Duration = Duration::from_secs(1);

/// Ingress: reports the session's end to its handle. Egress: the peer's Open, and the pending connection to the server.
pub(crate) enum Side {
    Ingress(Option<oneshot::Sender<SessionEnd>>),
    Egress(OpenInfo, Option<BoxFuture<Result<Egress, EndReason>>>),
}

pub(crate) struct Driver {
    context: Arc<TunnelContext>,
    peer: Arc<Peer>,
    number: SessionNumber,
    session: Session,
    /// Compression of data towards the peer, if that makes the session faster.
    compression: Option<Box<Compression>>,
    mailbox: Arc<Mailbox>,
    mail: VecDeque<Mail>,
    host: Option<Host>,
    side: Side,
    labels: Labels,
    most: StreamLimit,
    streams: Vec<Arc<Stream>>,
    views: Vec<StreamView>,
    timer: Pin<Box<Sleep>>,
    timer_at: Option<Instant>,
    check_at: Option<Instant>,
    delivery: Delivery,
    liveness: Liveness,
    progress: Arc<Progress>,
    last: SessionStats,
    begun: Instant,
    reason: Option<EndReason>,
}

/// Arguments of [`Driver::new`].
pub(crate) struct DriverParts {
    pub(crate) context: Arc<TunnelContext>,
    pub(crate) peer: Arc<Peer>,
    pub(crate) session: Session,
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) host: Option<Host>,
    pub(crate) side: Side,
    pub(crate) labels: Labels,
    pub(crate) compress: bool,
    pub(crate) most: StreamLimit,
    pub(crate) progress: Arc<Progress>,
    pub(crate) now: Instant,
}

impl Driver {
    pub(crate) fn new(parts: DriverParts) -> Self {
        let DriverParts {
            context,
            peer,
            session,
            mailbox,
            host,
            side,
            labels,
            compress,
            most,
            progress,
            now,
        } = parts;
        context.counters.sessions.add(1);
        context.counters.sessions_begun.add(1);
        Self {
            number: session.number(),
            context,
            peer,
            session,
            compression: compress.then(|| Box::new(Compression::new(now))),
            mailbox,
            mail: VecDeque::new(),
            host,
            side,
            labels,
            most,
            streams: Vec::new(),
            views: Vec::new(),
            timer: Box::pin(tokio::time::sleep_until(now.into())),
            timer_at: Some(now),
            check_at: None,
            delivery: Delivery::default(),
            liveness: Liveness::default(),
            progress,
            last: SessionStats::default(),
            begun: now,
            reason: None,
        }
    }

    /// Runs the session to its end.
    pub(crate) async fn run(mut self) {
        self.watch_host();
        poll_fn(|cx| self.poll(cx)).await;
        self.leave_peer();
        if self.reason == Some(EndReason::Finished)
            && let Some(host) = self.host.take()
        {
            host.end_cleanly().await;
        }
    }

    /// Removes the session from its peer, which remembers the result to answer late frames (frame.md clause 10). A slow host may still be
    /// reading.
    fn leave_peer(&mut self) {
        self.publish();
        // The session may have been woken for buffer space that it no longer uses: wake the next waiting session.
        self.mailbox.close();
        self.pass_on();
        let reason = self.reason.unwrap_or(EndReason::InternalLimit);
        let name = (self.number, &self.mailbox);
        let known = self.peer.end_session(name, reason, self.last.delivered, Instant::now());
        if known
            && reason == EndReason::Finished
            && let Some(stream) = self.streams.first()
            && let Some(body) = self.session.closing_ack()
        {
            stream.push_if_room(Frame { session: self.number, body });
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let compressing = self.compression.as_ref().is_some_and(|compression| compression.is_on());
        for _ in 0..if compressing { COMPRESSING_ROUNDS } else { ROUNDS } {
            let now = Instant::now();
            let mut progress = self.take_mail(cx, now);
            progress |= self.poll_connect(cx, now);
            progress |= self.poll_host_read(cx, now);
            progress |= self.transmit(now);
            progress |= self.poll_host_write(cx, now);
            progress |= self.take_events();
            if self.session.is_closed() {
                return Poll::Ready(());
            }
            if !progress && !self.poll_timer(cx, now) {
                self.publish();
                return Poll::Pending;
            }
        }
        self.publish();
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn take_mail(&mut self, cx: &Context<'_>, now: Instant) -> bool {
        if self.mailbox.take(&mut self.mail, cx).is_err() {
            debug!(session = %self.number, "peer sent more than the protocol allows");
            self.abort(EndReason::InternalLimit);
        }
        let any = !self.mail.is_empty();
        while let Some(mail) = self.mail.pop_front() {
            match mail {
                Mail::Frame(Body::Probe { opaque }) => self.handle_probe(opaque, now),
                Mail::Frame(Body::HostState { opaque, silent }) => {
                    self.handle_host_state(opaque, silent, now);
                }
                Mail::Frame(body) => self.session.handle_frame(body, now),
                Mail::Host(notice) => self.handle_notice(notice),
                Mail::StreamUp(stream) => {
                    if self.labels.contains(stream.label) {
                        self.session.handle_stream_up(stream.id);
                        self.streams.push(stream);
                        self.tell_rtt();
                    }
                }
                Mail::StreamClosed(id) => {
                    self.streams.retain(|stream| stream.id != id);
                    self.session.handle_stream_closed(id, now);
                }
                Mail::PeerLost => self.session.handle_peer_lost(),
                Mail::Abort(reason) => self.abort(reason),
            }
        }
        any
    }

    /// Polls the connection of the egress leg.
    fn poll_connect(&mut self, cx: &mut Context<'_>, now: Instant) -> bool {
        let Side::Egress(_, Some(connecting)) = &mut self.side else { return false };
        let Poll::Ready(result) = connecting.as_mut().poll(cx) else { return false };
        if let Side::Egress(_, connecting) = &mut self.side {
            *connecting = None;
        }
        let host = result.and_then(|egress| {
            self.restrict(egress.labels, now);
            self.most = StreamLimit(egress.streams);
            self.compression = egress.compress.then(|| Box::new(Compression::new(now)));
            let leg = Leg { socket: egress.host, routers: egress.routers };
            self.context.host(leg).map_err(|_| EndReason::InternalLimit)
        });
        match host {
            Ok(host) => {
                self.host = Some(host);
                self.watch_host();
                self.note_marks();
                self.session.handle_connected();
            }
            Err(reason) => self.abort(reason),
        }
        true
    }

    /// Restricts the session to streams with these labels.
    fn restrict(&mut self, labels: Labels, now: Instant) {
        self.labels = labels;
        let (usable, other) =
            std::mem::take(&mut self.streams).into_iter().partition(|s| labels.contains(s.label));
        self.streams = usable;
        for stream in other {
            self.session.handle_stream_closed(stream.id, now);
        }
    }

    fn poll_host_read(&mut self, cx: &mut Context<'_>, now: Instant) -> bool {
        let Some(host) = self.host.as_mut().filter(|host| !host.has_ended()) else { return false };
        let room = self.session.local_room();
        if room == 0 {
            return false;
        }
        host.fit_window(self.session.host_window());
        // Bytes must be in memory to be compressed or encrypted.
        let passes = self.compression.is_none() && self.streams.iter().all(|s| s.kind == Kind::Plain);
        let pipes = passes.then(|| (&self.context.pipes, self.session.block()));
        match host.poll_read(cx, now, room, ReadTargets { buffers: &self.context.buffers, pipes }) {
            Poll::Ready(Ok(bytes)) => self.handle_read(bytes),
            Poll::Ready(Err(error)) => self.host_failed(&error),
            Poll::Pending => return false,
        }
        true
    }

    fn poll_host_write(&mut self, cx: &mut Context<'_>, now: Instant) -> bool {
        self.fit_marks();
        if self.session.deliverable().next().is_none() {
            return false;
        }
        let written = match &mut self.host {
            Some(host) => host.poll_write(cx, self.session.deliverable()),
            None => Poll::Pending,
        };
        match written {
            Poll::Ready(Ok(n)) => {
                self.session.handle_delivered(n, now);
                self.note_given(n as u64, now);
            }
            Poll::Ready(Err(error)) => self.host_failed(&error),
            Poll::Pending => {
                self.session.handle_host_full();
                return false;
            }
        }
        true
    }

    /// Queues frames on streams with buffer space, up to a fair share if other sessions wait.
    fn transmit(&mut self, now: Instant) -> bool {
        let mut sent = 0;
        loop {
            self.views.clear();
            self.views.extend(self.streams.iter().map(|s| s.view(now)));
            let stalled = self.views.iter().filter(|view| view.stalled);
            let stalled = Labels(stalled.fold(0, |set, view| set | 1 << view.label));
            for view in &mut self.views {
                view.suspect &= stalled.contains(view.label);
            }
            stream_reservation::reserve(&mut self.views, &self.session.stats(), self.most);
            let Some(transmit) = self.session.poll_transmit(now, &self.views) else { break };
            sent += transmit.frame.wire_len();
            if let Some(stream) = self.streams.iter().find(|s| s.id == transmit.stream) {
                let Frame { session, body } = transmit.frame;
                if matches!(body, Body::Marks { .. }) && !stream.takes_marks {
                    continue;
                }
                let body = match &mut self.compression {
                    Some(compression) => compression.pack(body, stream.takes_compressed, now, thread_time),
                    None => body,
                };
                stream.send(Frame { session, body }, || _ = self.peer.wake_next(stream.label));
            }
            if sent >= QUANTUM && self.peer.others_wait() {
                break;
            }
        }
        // If a usable stream has buffer space, the scheduler has declined it, and the session retries by timer. If the session joined the
        // waiting sessions instead, `pass_on` would wake it again immediately, forever.
        let full = !usable(&self.views).iter().any(|view| view.has_room);
        let declined = self.session.has_transmit() && (full || sent < QUANTUM);
        if let Some(compression) = self.compression.as_mut().filter(|_| declined) {
            compression.handle_waiting();
        }
        if self.session.has_transmit() && !self.streams.is_empty() && (full || sent >= QUANTUM) {
            let all_streams = self.views.iter().all(|view| !view.reserved);
            self.peer.wait_for_room(&self.mailbox, self.labels, all_streams);
        }
        // Check after joining the waiting sessions, or buffer space freed meanwhile would go unnoticed.
        self.pass_on();
        sent > 0
    }

    /// Wakes the next waiting session if a stream that this session uses has buffer space. This session may itself be waiting, although
    /// other streams have buffer space.
    fn pass_on(&self) {
        if self.peer.others_wait() {
            let ours = usable(&self.views);
            let is_ours = |s: &Stream| ours.iter().any(|view| view.id == s.id);
            let mut with_room = self.streams.iter().filter(|s| s.has_room() && is_ours(s));
            let _ = with_room.any(|s| self.peer.wake_next(s.label));
        }
    }

    fn take_events(&mut self) -> bool {
        let mut any = false;
        while let Some(event) = self.session.poll_event() {
            any = true;
            match event {
                Event::Opened => trace!(session = %self.number, "opened"),
                Event::Finished => {
                    if let Some(Err(error)) = self.host.as_mut().map(Host::finish) {
                        self.host_failed(&error);
                    }
                    self.note_given_gate();
                }
                // Dropping the host's socket resets it.
                Event::Reset(_) => self.host = None,
                Event::Closed(reason) => self.reason = Some(reason),
            }
        }
        any
    }

    /// Waits for the next deadline of the session; returns true if a deadline has passed.
    fn poll_timer(&mut self, cx: &mut Context<'_>, now: Instant) -> bool {
        let reading =
            self.host.as_ref().is_none_or(|host| !host.has_ended()) && self.session.local_room() > 0;
        let check = self.check_at.or(Some(now + CHECK)).filter(|_| !reading && self.host.is_some());
        self.check_at = check;
        let tick = self.host.as_ref().filter(|_| reading).and_then(Host::tick_at);
        let next = [self.session.poll_timeout(), check, tick, self.delivery.next(), self.liveness.next()]
            .into_iter()
            .flatten()
            .min();
        let Some(next) = next else { return false };
        if next <= now {
            self.handle_time(now);
            return true;
        }
        // A timer that fires early costs one poll of the task, and each reset of a timer costs a lock. So postpone the timer only when it
        // fires.
        if self.timer_at.is_none_or(|at| at > next) {
            self.set_timer(next);
        }
        if self.timer.as_mut().poll(cx).is_ready() {
            self.set_timer(next);
            return self.timer.as_mut().poll(cx).is_ready();
        }
        false
    }

    fn set_timer(&mut self, at: Instant) {
        self.timer.as_mut().reset(at.into());
        self.timer_at = Some(at);
    }

    fn handle_time(&mut self, now: Instant) {
        if self.check_at.is_some_and(|at| at <= now) {
            self.check_at = None;
            if let Some(error) = self.host.as_ref().and_then(Host::take_error) {
                self.host_failed(&error);
            }
        }
        self.look_if_due(now);
        self.handle_liveness(now);
        self.tell_rtt();
        self.session.handle_timeout(now);
    }

    fn host_failed(&mut self, error: &io::Error) {
        debug!(session = %self.number, %error, "host connection failed");
        let reason = match self.side {
            Side::Ingress(_) => EndReason::ClientReset,
            Side::Egress(..) => EndReason::ServerReset,
        };
        self.abort(reason);
    }

    fn abort(&mut self, reason: EndReason) {
        self.host = None;
        self.session.handle_local_reset(reason);
    }

    fn tell_rtt(&mut self) {
        let rtt = self.streams.iter().map(|stream| stream.rtt()).max().unwrap_or_default();
        let lowest = self.streams.iter().map(|stream| stream.lowest_rtt()).max().unwrap_or_default();
        self.session.set_rtt(rtt, lowest);
        self.liveness.set_rtt(rtt);
    }

    /// Adds the changes since the last call to the counters.
    fn publish(&mut self) {
        let (now, last, counters) = (self.session.stats(), self.last, &self.context.counters);
        counters.bytes_sent.add(now.sent - last.sent);
        counters.bytes_received.add(now.delivered - last.delivered);
        if self.role() == Role::Ingress && last.delivered == 0 && now.delivered > 0 {
            lock(&counters.first_byte).observe(self.begun.elapsed());
        }
        for cause in Cause::ALL {
            counters.bytes_resent[cause as usize].add(now.retransmitted[cause] - last.retransmitted[cause]);
        }
        counters.credit_stalls.add(now.credit_stalls - last.credit_stalls);
        counters.reorder_bytes.add(now.reorder_bytes);
        counters.reorder_bytes.sub(last.reorder_bytes);
        if let Some(done) = self.compression.as_mut().map(|compression| compression.take_done()) {
            counters.compressed_bytes.add(done.original);
            counters.compressed_wire_bytes.add(done.wire);
            counters.compress_nanos.add(u64::try_from(done.cpu.as_nanos()).unwrap_or(u64::MAX));
        }
        self.tell_rate();
        let (up, down) = match self.role() {
            Role::Ingress => (now.sent, now.delivered),
            Role::Egress => (now.delivered, now.sent),
        };
        self.progress.up.store(up, Ordering::Relaxed);
        self.progress.down.store(down, Ordering::Relaxed);
        self.last = now;
    }

    fn role(&self) -> Role {
        match self.side {
            Side::Ingress(_) => Role::Ingress,
            Side::Egress(..) => Role::Egress,
        }
    }
}

/// CPU time of this thread.
fn thread_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

/// Unregisters the session and reports its end, however the task ends: normally, dropped or by a panic.
impl Drop for Driver {
    fn drop(&mut self) {
        // After a normal end, this is the second call, which changes nothing.
        self.leave_peer();
        let counters = &self.context.counters;
        counters.reorder_bytes.sub(self.last.reorder_bytes);
        counters.sessions.sub(1);
        let reason = self.reason.unwrap_or(EndReason::InternalLimit);
        if reason != EndReason::Finished {
            counters.sessions_reset.add(1);
        }
        self.context.release_session();
        let end = SessionEnd {
            reason,
            bytes_up: self.progress.up.load(Ordering::Relaxed),
            bytes_down: self.progress.down.load(Ordering::Relaxed),
            duration: self.begun.elapsed(),
        };
        match &mut self.side {
            Side::Ingress(told) => {
                // The receiver no longer exists if the handle was dropped, which is allowed.
                let _ = told.take().map(|told| told.send(end));
            }
            Side::Egress(info, _) => self.context.config.egress.ended(info, end),
        }
    }
}
