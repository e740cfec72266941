//! Streams that are kept open: dialing, accepting, dialing again.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddrV4};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sos_wire::{AgentId, Body, Frame, Key, WelcomeStatus, Willingness};
use tokio::net::TcpStream;
use tokio::task::{AbortHandle, JoinHandle, JoinSet};
use tokio::time::timeout;
use tracing::{debug, info};

use crate::channel::{Channel, Kind};
use crate::config::{PeerConfig, Timing};
use crate::exchange::{self, Established, ExchangeError};
use crate::hooks::OpenInfo;
use crate::lock;
use crate::peer::{Delivery, Peer, Unwanted};
use crate::quic;
use crate::reader::Reader;
use crate::replace;
use crate::stream::{Stream, StreamEnd, of_stream};
use crate::tls::{self, FindKey, PairKeyName};
use crate::tunnel::Shared;

/// Exchanges that may be under way with dialers; over that the oldest is closed (frame.md clause 3).
pub(crate) const MAX_PENDING: usize = 64;

/// The tasks that keep streams, one per peer, label and slot.
#[derive(Debug, Default)]
pub(crate) struct Slots(Mutex<BTreeMap<(AgentId, u8, usize), AbortHandle>>);

impl Slots {
    pub(crate) fn abort(&self, agent: AgentId) {
        lock(&self.0).retain(|(peer, ..), task| {
            let kept = *peer != agent;
            if !kept {
                task.abort();
            }
            kept
        });
    }

    pub(crate) fn abort_all(&self) {
        std::mem::take(&mut *lock(&self.0)).values().for_each(AbortHandle::abort);
    }
}

/// Exchanges with dialers that are under way.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    tasks: Mutex<VecDeque<(u64, AbortHandle)>>,
    next: AtomicU64,
}

impl Pending {
    fn insert(&self, id: u64, task: AbortHandle) {
        let mut tasks = lock(&self.tasks);
        tasks.push_back((id, task));
        if tasks.len() > MAX_PENDING
            && let Some((_, oldest)) = tasks.pop_front()
        {
            oldest.abort();
        }
    }

    /// How many are under way.
    pub(crate) fn len(&self) -> usize {
        lock(&self.tasks).len()
    }

    /// The exchange is over. Says whether it was still wanted.
    fn remove(&self, id: u64) -> bool {
        let mut tasks = lock(&self.tasks);
        let before = tasks.len();
        tasks.retain(|(known, _)| *known != id);
        tasks.len() < before
    }
}

/// Starts a task for every slot of a peer that has none.
pub(crate) fn keep_streams(shared: &Arc<Shared>, peer: &Arc<Peer>) {
    let mut slots = lock(&shared.slots.0);
    for (label, count) in peer.config().streams {
        for slot in 0..count {
            slots.entry((peer.agent, label, slot)).or_insert_with(|| {
                shared
                    .runtime
                    .spawn(keep_slot(Arc::clone(shared), Arc::clone(peer), label, slot))
                    .abort_handle()
            });
        }
    }
}

/// Keeps a slot's stream for ever. A panic ends the stream that it was about, not the slot.
async fn keep_slot(shared: Arc<Shared>, peer: Arc<Peer>, label: u8, slot: usize) {
    loop {
        // Aborted with this task.
        let mut kept = JoinSet::new();
        kept.spawn(keep_stream(Arc::clone(&shared), Arc::clone(&peer), label, slot));
        kept.join_next().await;
        tokio::time::sleep(shared.config.timing.backoff_max).await;
    }
}

/// Keeps one stream open while it is wanted, until the task is aborted.
async fn keep_stream(shared: Arc<Shared>, peer: Arc<Peer>, label: u8, slot: usize) {
    let timing = shared.config.timing;
    let mut backoff = timing.backoff_min;
    loop {
        if !peer.wants(label, slot) {
            tokio::time::sleep(timing.backoff_max).await;
            continue;
        }
        let begun = Instant::now();
        let dialed = dial(&shared, &peer, label).await;
        match dialed.and_then(|ready| begin(&shared, &peer, ready, label)) {
            Ok(mut stream) => {
                let end = loop {
                    match run(stream, Some(slot)).await {
                        (_, Some(next)) => stream = next,
                        (end, None) => break end,
                    }
                };
                debug!(peer = %peer.agent, label, slot, %end, "stream ended");
            }
            Err(error) => {
                shared.counters.handshakes_failed.add(1);
                debug!(peer = %peer.agent, label, slot, %error, "no stream");
            }
        }
        // One that lived was no failure to dial: the next attempt is prompt.
        if begun.elapsed() > timing.backoff_max {
            backoff = timing.backoff_min;
        }
        tokio::time::sleep(backoff.mul_f64(rand::random_range(0.5..1.0))).await;
        backoff = (backoff * 2).min(timing.backoff_max);
    }
}

/// A connection that is about to be a stream.
pub(crate) type Ready = (Channel, Established);

/// Dials as is configured; over TCP if QUIC does not come about, and encrypted if the peer takes nothing else: its configuration may be
/// newer.
async fn dial(shared: &Shared, peer: &Peer, label: u8) -> Result<Ready, ExchangeError> {
    let config = peer.config();
    if replace::configured(&config) == Kind::Quic && peer.may_try_quic(label, Instant::now()) {
        match dial_as(shared, &config, label, Kind::Quic).await {
            // It came as far as the peer, which has its reasons.
            Err(ExchangeError::TurnedAway(status)) => return Err(ExchangeError::TurnedAway(status)),
            Err(error) => replace::give_up_quic(shared, peer, label, &error),
            ready => return ready,
        }
    }
    match dial_as(shared, &config, label, replace::over_tcp(&config)).await {
        Err(ExchangeError::TurnedAway(WelcomeStatus::EncryptedOnly)) => {
            dial_as(shared, &config, label, Kind::Encrypted).await
        }
        result => result,
    }
}

pub(crate) async fn dial_as(
    shared: &Shared,
    peer: &PeerConfig,
    label: u8,
    kind: Kind,
) -> Result<Ready, ExchangeError> {
    let (config, timing) = (&shared.config, &shared.config.timing);
    let to = SocketAddrV4::new(peer.address, peer.first_stream_port + u16::from(label));
    let limit = if kind == Kind::Quic { timing.quic } else { timing.handshake };
    let socket = match kind {
        Kind::Quic => None,
        _ => Some(within(limit, config.sockets.dial(to, label)).await??),
    };
    let number = shared.number_stream();
    let exchange = async {
        let (id, key) = config.keys.sending(peer.site).ok_or(ExchangeError::NoKey)?;
        let named = (&key, (config.site, id));
        let mut channel = match (socket, kind) {
            (None, _) => Channel::quic(dial_quic(shared, to, label, named).await?),
            (Some(socket), Kind::Encrypted) => Channel::dial(socket, named.0, named.1).await?,
            (Some(socket), _) => Channel::plain(socket),
        };
        let established = exchange::dial(&mut channel, config, peer, label, number).await?;
        Ok((channel, established))
    };
    within(limit, exchange).await?
}

async fn dial_quic(
    shared: &Shared,
    to: SocketAddrV4,
    label: u8,
    named: (&Key, PairKeyName),
) -> Result<quic::Connected, ExchangeError> {
    let (endpoint, congestion) =
        (shared.endpoints.of(label), shared.config.sockets.congestion(*to.ip(), label));
    Ok(quic::dial(endpoint, to, named, congestion, &shared.windows).await?)
}

async fn within<T>(limit: Duration, future: impl Future<Output = T>) -> Result<T, ExchangeError> {
    timeout(limit, future).await.map_err(|_| ExchangeError::Timeout)
}

/// A connection that may become a stream.
pub(crate) enum Arrived {
    Tcp(TcpStream),
    Quic(Box<quinn::Incoming>),
}

/// Takes a connection to a stream port.
pub(crate) fn accept(shared: &Arc<Shared>, arrived: Arrived, label: u8) {
    let id = shared.pending.next.fetch_add(1, Ordering::Relaxed);
    let (entered, wait) = tokio::sync::oneshot::channel::<()>();
    let task = shared.runtime.spawn({
        let shared = Arc::clone(shared);
        async move {
            // Not before it is on the list, or it could not be taken off it.
            let _ = wait.await;
            accepted(shared, arrived, label, id).await;
        }
    });
    shared.pending.insert(id, task.abort_handle());
    let _ = entered.send(());
}

async fn accepted(shared: Arc<Shared>, arrived: Arrived, label: u8, id: u64) {
    let limit = shared.config.timing.handshake;
    let result = within(limit, accept_exchange(&shared, arrived, label)).await.and_then(|result| result);
    if !shared.pending.remove(id) {
        return;
    }
    match result.and_then(|(peer, ready)| begin(&shared, &peer, ready, label)) {
        Ok(stream) => {
            let agent = stream.standing.peer.agent;
            let (end, _) = run(stream, None).await;
            debug!(peer = %agent, label, %end, "stream ended");
        }
        Err(error) => {
            shared.counters.handshakes_failed.add(1);
            debug!(label, %error, "connection turned away");
        }
    }
}

async fn accept_exchange(
    shared: &Arc<Shared>,
    arrived: Arrived,
    label: u8,
) -> Result<(Arc<Peer>, Ready), ExchangeError> {
    let (mut channel, proved) = match arrived {
        Arrived::Tcp(socket) => accept_tcp(shared, socket, label).await?,
        Arrived::Quic(incoming) => accept_quic(shared, *incoming, label).await?,
    };
    let from = channel.peer()?;
    let hello = exchange::read_hello(&mut channel).await?;
    let peer = shared.find_peer(hello.0.agent).ok_or(ExchangeError::Stranger)?;
    exchange::check_claim(&hello.0, from, &peer.config())?;
    if let Some(proved) = proved {
        exchange::check_key(&hello.0, proved)?;
    }
    let status = if peer.config().encrypted && !channel.kind().is_encrypted() {
        shared.counters.plain_refused.add(1);
        let refused = shared.counters.plain_refused.value();
        // Nothing is proved yet: who sends many of these shall not fill the log.
        if refused.is_power_of_two() {
            info!(peer = %peer.agent, label, refused, "a plain stream is refused: this pair of sites is encrypted");
        }
        WelcomeStatus::EncryptedOnly
    } else if hello.0.label != label || (shared.is_draining() && peer.session_count() == 0) {
        WelcomeStatus::Draining
    } else if peer.stream_count(label) >= shared.config.limits.streams_per_path {
        WelcomeStatus::TooManyStreams
    } else {
        WelcomeStatus::Accepted
    };
    let established = exchange::welcome(&mut channel, &shared.config, hello, status).await?;
    Ok((peer, (channel, established)))
}

/// The connection as its first byte says it is, and the pair key that was proved by encryption.
async fn accept_tcp(
    shared: &Arc<Shared>,
    socket: TcpStream,
    label: u8,
) -> Result<(Channel, Option<PairKeyName>), ExchangeError> {
    shared.config.sockets.accepted(&socket, label)?;
    let (from, mut first) = (socket.peer_addr()?.ip(), [0]);
    if socket.peek(&mut first).await? == 0 {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
    }
    if first != [tls::FIRST_BYTE] {
        return Ok((Channel::plain(socket), None));
    }
    let (channel, proved) = Channel::accept(socket, keys_of(shared, from)).await?;
    Ok((channel, Some(proved)))
}

async fn accept_quic(
    shared: &Arc<Shared>,
    incoming: quinn::Incoming,
    label: u8,
) -> Result<(Channel, Option<PairKeyName>), ExchangeError> {
    let IpAddr::V4(from) = incoming.remote_address().ip().to_canonical() else {
        return Err(ExchangeError::Stranger);
    };
    let congestion = shared.config.sockets.congestion(from, label);
    let keys = keys_of(shared, from.into());
    let (connected, proved) = quic::accept(incoming, keys, congestion, &shared.windows).await?;
    Ok((Channel::quic(connected), Some(proved)))
}

/// The pair keys that a dialer at an address may name.
fn keys_of(shared: &Arc<Shared>, from: IpAddr) -> FindKey {
    let shared = Arc::clone(shared);
    Box::new(move |(site, id)| {
        let listed = shared.is_at(site, from);
        listed.then(|| shared.config.keys.find(site, id)).flatten()
    })
}

/// A stream that stands and is about to run.
pub(crate) struct Begun {
    channel: Channel,
    standing: Standing,
}

/// Puts a stream on the books: sessions may use it from now on.
pub(crate) fn begin(
    shared: &Arc<Shared>,
    peer: &Arc<Peer>,
    (channel, established): Ready,
    label: u8,
) -> Result<Begun, ExchangeError> {
    let (id, now, line) = ((shared.name_stream(), channel.kind()), Instant::now(), channel.line().ok());
    let stream = Arc::new(Stream::new(id, (label, peer.meter(label, now)), established, line, now));
    peer.add_stream(Arc::clone(&stream), established.boot).map_err(|unwanted| match unwanted {
        Unwanted::OldBoot => ExchangeError::OldBoot,
        Unwanted::Plain => ExchangeError::TurnedAway(WelcomeStatus::EncryptedOnly),
    })?;
    shared.counters.streams.add(1);
    shared.counters.streams_begun.add(1);
    shared.counters.streams_encrypted.add(u64::from(stream.kind.is_encrypted()));
    shared.counters.streams_quic.add(u64::from(stream.kind == Kind::Quic));
    let standing = Standing { shared: Arc::clone(shared), peer: Arc::clone(peer), stream };
    shared.publish_willing();
    let kind = standing.stream.kind;
    info!(peer = %peer.agent, label, ?kind, rtt = ?established.rtt, "stream stands");
    if shared.is_draining() {
        standing.stream.push(of_stream(Body::GoAway));
    }
    // Also that it takes sessions again: what was said on streams that are gone may be lost.
    let changes = shared.willingness();
    if changes != Willingness::default() {
        standing.stream.say_willing(changes);
    }
    Ok(Begun { channel, standing })
}

/// Runs a stream to its end; gives back one that has begun to take its place.
async fn run(Begun { channel, standing }: Begun, slot: Option<usize>) -> (StreamEnd, Option<Begun>) {
    let Standing { shared, peer, stream } = &standing;
    let (label, timing) = (stream.label, &shared.config.timing);
    let tended = tend(shared, &channel, stream);
    let (read, write) = channel.into_split();
    let mut writer = Writer(tokio::spawn({
        let (stream, peer) = (Arc::clone(stream), Arc::clone(peer));
        async move {
            let end = stream.write(write, || _ = peer.wake_next(stream.label)).await;
            stream.close();
            end
        }
    }));
    let mut next = None;
    let end = tokio::select! {
        end = stream.read(Reader::new(read, &shared.buffers, &shared.pipes, shared.epoch), |frames| deliver(shared, peer, stream, frames)) => end,
        end = stream.watch(timing) => end,
        end = unwanted(peer, label, slot, timing) => end,
        begun = replace::replacement(shared, peer, stream, slot) => {
            next = Some(begun);
            StreamEnd::Closed
        }
        () = replace::overdue(peer, stream, timing) => StreamEnd::Closed,
        never = tended => match never {},
    };
    drop(standing);
    writer.0.abort();
    // The writer knows better why, if it was the one to fail.
    match (end, (&mut writer.0).await) {
        (StreamEnd::Closed, Ok(end)) | (end, _) => (end, next),
    }
}

/// Lets the process around us look after the connection. What it cannot do does not end the stream.
fn tend(shared: &Shared, channel: &Channel, stream: &Stream) -> impl Future<Output = Infallible> + use<> {
    let tended = match (channel.line(), channel.peer().map(|peer| peer.to_canonical())) {
        (Ok(line), Ok(IpAddr::V4(peer))) => {
            let line = line.telling(stream.carriers());
            Some(shared.config.sockets.tend(line, peer, stream.label))
        }
        _ => None,
    };
    async move {
        if let Some(tended) = tended {
            tended.await;
        }
        std::future::pending().await
    }
}

/// A stream's writing task, which ends with the task that reads.
struct Writer(JoinHandle<StreamEnd>);

impl Drop for Writer {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A stream that stands; however its task ends it is taken off the books.
struct Standing {
    shared: Arc<Shared>,
    peer: Arc<Peer>,
    stream: Arc<Stream>,
}

impl Drop for Standing {
    fn drop(&mut self) {
        self.stream.close();
        self.peer.remove_stream(self.stream.id);
        self.shared.counters.streams.sub(1);
        self.shared.counters.streams_encrypted.sub(u64::from(self.stream.kind.is_encrypted()));
        self.shared.counters.streams_quic.sub(u64::from(self.stream.kind == Kind::Quic));
        self.shared.counters.streams_lost.add(1);
        self.shared.publish_willing();
    }
}

/// Comes to an end when a stream that was dialed is not wanted any more.
async fn unwanted(peer: &Peer, label: u8, slot: Option<usize>, timing: &Timing) -> StreamEnd {
    loop {
        tokio::time::sleep(timing.ping).await;
        if slot.is_some_and(|slot| !peer.wants(label, slot)) {
            return StreamEnd::Closed;
        }
    }
}

/// Takes note of frames about the peer and hands the others to their sessions.
fn deliver(
    shared: &Arc<Shared>,
    peer: &Arc<Peer>,
    stream: &Stream,
    frames: Vec<Frame>,
) -> Result<(), StreamEnd> {
    let now = Instant::now();
    for frame in frames {
        match frame.body {
            Body::GoAway => peer.handle_go_away(),
            Body::Willing { changes } => peer.handle_willing(changes),
            Body::Connect { .. } | Body::Connected { .. } | Body::Release { .. } => {
                take_ahead(shared, peer, &frame.body);
                continue;
            }
            _ => {
                hand_over(shared, peer, stream, frame, now)?;
                continue;
            }
        }
        shared.publish_willing();
    }
    Ok(())
}

/// Takes a frame about a session that has not begun.
fn take_ahead(shared: &Shared, peer: &Peer, body: &Body) {
    let egress = &shared.config.egress;
    match *body {
        Body::Connect { open } => egress.connect_ahead(OpenInfo { peer: peer.agent, open }),
        Body::Connected { session, refused } => egress.connected_ahead(peer.agent, session, refused),
        Body::Release { session } => egress.release(peer.agent, session),
        _ => {}
    }
}

/// Hands a frame to its session.
fn hand_over(
    shared: &Arc<Shared>,
    peer: &Arc<Peer>,
    stream: &Stream,
    frame: Frame,
    now: Instant,
) -> Result<(), StreamEnd> {
    match peer.deliver(stream, frame, now, |open| shared.begin_egress(peer, open, stream.rtt())) {
        Delivery::Done => {}
        Delivery::Unknown => shared.counters.frames_unknown.add(1),
        Delivery::WrongSide => return Err(StreamEnd::WrongSide),
    }
    Ok(())
}
