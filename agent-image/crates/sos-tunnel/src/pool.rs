//! Streams that are kept open: dialing, accepting, dialing again.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV4};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sos_wire::{AgentId, Body, Frame, WelcomeStatus};
use tokio::net::TcpStream;
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::timeout;
use tracing::{debug, info};

use crate::channel::Channel;
use crate::config::{PeerConfig, Timing};
use crate::exchange::{self, Established, ExchangeError};
use crate::lock;
use crate::peer::{Delivery, Peer};
use crate::reader::Reader;
use crate::replace::{self, Kind};
use crate::stream::{Stream, StreamEnd, of_stream};
use crate::tls::{self, PairKeyName};
use crate::tunnel::Shared;

/// Exchanges that may be under way with dialers; over that the oldest is closed (frame.md clause 3).
const MAX_PENDING: usize = 64;

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
                    .spawn(keep_stream(Arc::clone(shared), Arc::clone(peer), label, slot))
                    .abort_handle()
            });
        }
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
        let dialed = dial(&shared, &peer.config(), label).await;
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

/// Dials as is configured, and encrypted if the peer takes nothing else: its configuration may be newer.
async fn dial(shared: &Shared, peer: &PeerConfig, label: u8) -> Result<Ready, ExchangeError> {
    match dial_as(shared, peer, label, Kind::configured(peer)).await {
        Err(ExchangeError::TurnedAway(WelcomeStatus::EncryptedOnly)) => {
            dial_as(shared, peer, label, Kind::Encrypted).await
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
    let (config, limit) = (&shared.config, shared.config.timing.handshake);
    let to = SocketAddrV4::new(peer.address, peer.first_stream_port + u16::from(label));
    let socket = within(limit, config.sockets.dial(to, label)).await??;
    let number = shared.number_stream();
    let exchange = async {
        let mut channel = match kind {
            Kind::Plain => Channel::plain(socket),
            Kind::Encrypted => {
                let (id, key) = config.keys.sending(peer.site).ok_or(ExchangeError::NoKey)?;
                Channel::dial(socket, &key, (config.site, id)).await?
            }
        };
        let established = exchange::dial(&mut channel, config, peer, label, number).await?;
        Ok((channel, established))
    };
    within(limit, exchange).await?
}

async fn within<T>(limit: Duration, future: impl Future<Output = T>) -> Result<T, ExchangeError> {
    timeout(limit, future).await.map_err(|_| ExchangeError::Timeout)
}

/// Takes a connection to a stream port.
pub(crate) fn accept(shared: &Arc<Shared>, socket: TcpStream, label: u8) {
    let id = shared.pending.next.fetch_add(1, Ordering::Relaxed);
    let (entered, wait) = tokio::sync::oneshot::channel::<()>();
    let task = shared.runtime.spawn({
        let shared = Arc::clone(shared);
        async move {
            // Not before it is on the list, or it could not be taken off it.
            let _ = wait.await;
            accepted(shared, socket, label, id).await;
        }
    });
    shared.pending.insert(id, task.abort_handle());
    let _ = entered.send(());
}

async fn accepted(shared: Arc<Shared>, socket: TcpStream, label: u8, id: u64) {
    let limit = shared.config.timing.handshake;
    let result = within(limit, accept_exchange(&shared, socket, label)).await.and_then(|result| result);
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
    socket: TcpStream,
    label: u8,
) -> Result<(Arc<Peer>, Ready), ExchangeError> {
    shared.config.sockets.accepted(&socket, label)?;
    let from = socket.peer_addr()?.ip();
    let (mut channel, proved) = accept_channel(shared, socket, from).await?;
    let hello = exchange::read_hello(&mut channel).await?;
    let peer = shared.find_peer(hello.0.agent).ok_or(ExchangeError::Stranger)?;
    exchange::check_claim(&hello.0, from, &peer.config())?;
    if let Some(proved) = proved {
        exchange::check_key(&hello.0, proved)?;
    }
    let status = if peer.config().encrypted && !channel.is_encrypted() {
        shared.counters.plain_refused.add(1);
        let refused = shared.counters.plain_refused.value();
        // Nothing is proved yet: who sends many of these shall not fill the log.
        if refused.is_power_of_two() {
            info!(peer = %peer.agent, label, refused, "a plain stream is refused: this pair of sites is encrypted");
        }
        WelcomeStatus::EncryptedOnly
    } else if hello.0.label != label || (shared.is_draining() && peer.session_count() == 0) {
        WelcomeStatus::Draining
    } else if peer.stream_count() >= shared.config.limits.streams_per_peer {
        WelcomeStatus::TooManyStreams
    } else {
        WelcomeStatus::Accepted
    };
    let established = exchange::welcome(&mut channel, &shared.config, hello, status).await?;
    Ok((peer, (channel, established)))
}

/// The connection as its first byte says it is, and the pair key that was proved by encryption.
async fn accept_channel(
    shared: &Arc<Shared>,
    socket: TcpStream,
    from: IpAddr,
) -> Result<(Channel, Option<PairKeyName>), ExchangeError> {
    let mut first = [0];
    if socket.peek(&mut first).await? == 0 {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
    }
    if first != [tls::FIRST_BYTE] {
        return Ok((Channel::plain(socket), None));
    }
    let shared = Arc::clone(shared);
    let find = move |(site, id)| {
        let listed = shared.is_at(site, from);
        listed.then(|| shared.config.keys.find(site, id)).flatten()
    };
    let (channel, proved) = Channel::accept(socket, find).await?;
    Ok((channel, Some(proved)))
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
    let second = channel.socket().as_fd().try_clone_to_owned().ok();
    let (id, now) = ((shared.name_stream(), channel.is_encrypted()), Instant::now());
    let stream = Arc::new(Stream::new(id, (label, peer.meter(label)), established, second, now));
    peer.add_stream(Arc::clone(&stream), established.boot).map_err(|_| ExchangeError::OldBoot)?;
    shared.counters.streams.add(1);
    shared.counters.streams_begun.add(1);
    shared.counters.streams_encrypted.add(u64::from(stream.encrypted));
    let standing = Standing { shared: Arc::clone(shared), peer: Arc::clone(peer), stream };
    shared.publish_live();
    let encrypted = standing.stream.encrypted;
    info!(peer = %peer.agent, label, encrypted, rtt = ?established.rtt, "stream stands");
    if shared.is_draining() {
        standing.stream.push(of_stream(Body::GoAway));
    }
    Ok(Begun { channel, standing })
}

/// Runs a stream to its end; gives back one that has begun to take its place.
async fn run(Begun { channel, standing }: Begun, slot: Option<usize>) -> (StreamEnd, Option<Begun>) {
    let Standing { shared, peer, stream } = &standing;
    let (label, timing) = (stream.label, &shared.config.timing);
    let tended = tend(shared, channel.socket(), label);
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
        end = stream.read(Reader::new(read, &shared.buffers, shared.epoch), |frames| deliver(shared, peer, stream, frames)) => end,
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

/// Lets the process around us look after the socket. What it cannot do does not end the stream.
fn tend(shared: &Shared, socket: &TcpStream, label: u8) -> impl Future<Output = Infallible> + use<> {
    let tended = match (socket.as_fd().try_clone_to_owned(), socket.peer_addr()) {
        (Ok(second), Ok(SocketAddr::V4(peer))) => Some(shared.config.sockets.tend(second, *peer.ip(), label)),
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
        self.shared.counters.streams_encrypted.sub(u64::from(self.stream.encrypted));
        self.shared.counters.streams_lost.add(1);
        self.shared.publish_live();
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

/// Hands frames to their sessions.
fn deliver(
    shared: &Arc<Shared>,
    peer: &Arc<Peer>,
    stream: &Stream,
    frames: Vec<Frame>,
) -> Result<(), StreamEnd> {
    let now = Instant::now();
    for frame in frames {
        if frame.body == Body::GoAway {
            peer.handle_go_away();
            shared.publish_live();
            continue;
        }
        match peer.deliver(stream, frame, now, |open| shared.begin_egress(peer, open, stream.rtt())) {
            Delivery::Done => {}
            Delivery::Unknown => shared.counters.frames_unknown.add(1),
            Delivery::WrongSide => return Err(StreamEnd::WrongSide),
        }
    }
    Ok(())
}
