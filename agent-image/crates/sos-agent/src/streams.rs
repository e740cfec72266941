//! Streams between agents: the listeners on the agent's own address, and the sockets of both directions.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, SockRef, Socket, Type};
use sos_tunnel::{BoxFuture, Keys, Line, Pacing, PathInfo, PeerConfig, Sockets};
use sos_wire::{Key, KeyId, SiteId};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::MissedTickBehavior;
use tracing::{debug, info, warn};

use crate::bugs;
use crate::carriers::Carriers;
use crate::ceiling::{Ceiling, Told};
use crate::config::CongestionControl;
use crate::congestion::{Choice, Chooser, Sample};
use crate::pool;
use crate::share::{Look, Sharer};
use crate::shared::Shared;
use crate::socket;

/// Pause after a failed accept: out of descriptors or memory, it would fail again at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// Accepts streams of one path label for ever, from peers' addresses only; who the peer is proves the exchange.
pub async fn accept_streams(shared: Arc<Shared>, listener: TcpListener, label: u8) {
    loop {
        match listener.accept().await {
            Ok((stream, from)) => {
                _ = bugs::fence(|| {
                    if admits(&shared, from.ip()) {
                        shared.tunnel().accept_stream(stream, label);
                    }
                });
            }
            Err(error) => {
                warn!(%error, "cannot accept streams");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Whether an address is a peer's; counted if it is not.
fn admits(shared: &Shared, address: IpAddr) -> bool {
    let config = shared.config();
    let address = address.to_canonical();
    let known =
        config.peers.iter().flat_map(|peer| &peer.agents).any(|agent| IpAddr::V4(agent.address) == address);
    if !known {
        shared.metrics.strangers.inc();
        debug!(%address, "a stream from no peer's address");
    }
    known
}

/// How often a stream's path is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// Unsent bytes that a stream's socket may hold: what it sends in this time, as small sessions wait behind them, and at least so many.
const UNSENT: Duration = Duration::from_millis(10);
const UNSENT_LEAST: u64 = 32 << 10;

/// Lowest round trip from which a stream spreads what it sends over it. Windows sent in bursts overrun queues on long paths: cubic without it had 744
/// to 863 Mbit/s in most transfers of 10 s over 164 ms at 1 Gbit/s, with it 860, and 896 the next time. Without delay a timer for each burst is a fifth
/// of a sender's CPU time for nothing.
const PACED_FROM: Duration = Duration::from_millis(3);

/// How long bbr models a path before it begins anew where its streams share a limit: it stops for a fifth of a second when it has seen no shorter
/// round trip for ten seconds, to empty a queue of its own that might hide one. Below the limit there is none.
const BEGINS_ANEW: Duration = Duration::from_secs(8);

/// No path is so long: what the kernel calls the lowest round trip before it has seen one is an hour and more.
const FAR_AWAY: Duration = Duration::from_secs(60);

/// A path: the peer's address and the label.
type PathKey = (Ipv4Addr, u8);

/// What is known of one path.
#[derive(Debug)]
struct Known {
    chooser: Chooser,
    sharer: Sharer,
    ceiling: Ceiling,
    carriers: Carriers,
    /// Streams that are looked after, by numbers that are not used again.
    streams: BTreeSet<u64>,
    next: u64,
}

impl Known {
    fn new(now: Instant) -> Self {
        Self {
            chooser: Chooser::new(now),
            sharer: Sharer::new(now),
            ceiling: Ceiling::new(now),
            carriers: Carriers::new(now),
            streams: BTreeSet::new(),
            next: 0,
        }
    }

    /// Takes what a stream did; `named`: how many carry bulk is configured.
    fn observe(&mut self, stream: u64, told: Told, named: bool, now: Instant) {
        self.sharer.observe(stream, told.look, now);
        if named {
            self.carriers = Carriers::new(now);
        } else {
            self.carriers.observe(stream, &told, now);
        }
        if told.sample.segments > 0 {
            let refused = self.chooser.refuses_bbr();
            self.chooser.observe(told.sample, now);
            if !refused && self.chooser.refuses_bbr() {
                // What was learned of bbr here goes with it.
                self.ceiling = Ceiling::new(now);
            }
        }
        let choice = self.choice(now);
        self.ceiling.observe(stream, told, choice, now);
    }

    /// Streams that share a limit use what it was learned with, and what stays the same when others come and take a part.
    fn choice(&self, now: Instant) -> Choice {
        if self.ceiling.needs_bbr(now) { Choice::Bbr } else { self.chooser.choice() }
    }

    /// Bytes a second that each stream may send.
    fn each(&self, now: Instant) -> Option<u64> {
        // What bulk leaves to small sessions takes no part of it.
        let carrying = self.streams.len().saturating_sub(PeerConfig::LIGHT_STREAMS);
        let carrying = carrying.min(self.carriers.most()).max(1);
        // A model of the path's rate shares it in its own way.
        let share = self.sharer.limit().filter(|_| self.choice(now) == Choice::Cubic);
        let share = share.map(|limit| limit / carrying as f64);
        share.into_iter().chain(self.ceiling.each(now)).min_by(f64::total_cmp).map(|each| each as u64)
    }

    fn forget(&mut self, stream: u64) {
        self.streams.remove(&stream);
        self.sharer.forget(stream);
        self.ceiling.forget(stream);
    }
}

/// What is known of the paths to peers. Only configured peers get here, so it is bounded like their list.
#[derive(Debug, Clone, Default)]
struct Paths(Arc<Mutex<BTreeMap<PathKey, Known>>>);

impl Paths {
    fn with<T>(&self, path: PathKey, now: Instant, act: impl FnOnce(&mut Known) -> T) -> T {
        let mut paths = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        act(paths.entry(path).or_insert_with(|| Known::new(now)))
    }
}

/// Stream sockets from this agent's own address, with the congestion control of the configuration, or the one that fits.
#[derive(Debug)]
pub struct StreamSockets {
    shared: Arc<Shared>,
    address: Ipv4Addr,
    paths: Paths,
}

/// The congestion control for a path: the configuration's, or the one that fits.
fn wished(shared: &Shared, paths: &Paths, path: PathKey) -> CongestionControl {
    match pool::congestion(&shared.config(), path.0) {
        CongestionControl::Auto => {
            let now = Instant::now();
            paths.with(path, now, |known| fitting(known.choice(now)))
        }
        configured => configured,
    }
}

fn fitting(choice: Choice) -> CongestionControl {
    match choice {
        Choice::Cubic => CongestionControl::Cubic,
        Choice::Bbr => CongestionControl::Bbr,
    }
}

/// A stream that is looked after, until this is dropped.
#[derive(Debug)]
struct Tended {
    shared: Arc<Shared>,
    paths: Paths,
    path: PathKey,
    number: u64,
    before: Option<(PathInfo, Instant)>,
}

/// What a stream's socket should be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Wish {
    congestion: CongestionControl,
    pacing: Pacing,
    /// It is known what its path carries, and the stream takes a part of it, without a queue.
    known: bool,
    /// Bytes.
    unsent: u32,
    /// How many streams of its path bulk sessions use at most.
    carriers: usize,
}

impl Tended {
    fn new(shared: Arc<Shared>, paths: Paths, path: PathKey) -> Self {
        let number = paths.with(path, Instant::now(), |known| {
            known.next += 1;
            known.streams.insert(known.next);
            known.next
        });
        Self { shared, paths, path, number, before: None }
    }

    /// Takes what the kernel says of it, and decides.
    fn look(&mut self, info: PathInfo, now: Instant) -> Wish {
        let before = self.before.replace((info, now));
        let moved = before.map(|(before, at)| look(before, info, now - at));
        let unsent = unsent(moved);
        let config = self.shared.config();
        let configured = pool::congestion(&config, self.path.0);
        if configured != CongestionControl::Auto {
            let pacing = pacing(None, info.min_rtt);
            return Wish { congestion: configured, pacing, known: false, unsent, carriers: usize::MAX };
        }
        let named = pool::names_streams(&config, self.path.0);
        let (path, number) = (self.path, self.number);
        self.paths.with(path, now, |known| {
            let was = (known.choice(now), known.each(now), known.carriers.most());
            if let Some((look, (before, _))) = moved.zip(before) {
                let sample = difference(before, info, look.elapsed);
                known.observe(number, Told { look, sample, searches: info.searches }, named, now);
            }
            let (choice, each, carriers) = (known.choice(now), known.each(now), known.carriers.most());
            if choice != was.0 {
                info!(peer = %path.0, label = path.1, ?choice, "congestion control of a path");
            }
            if each != was.1 {
                debug!(peer = %path.0, label = path.1, bytes_per_second = ?each, "what each stream of a path may send");
            }
            if carriers != was.2 {
                debug!(peer = %path.0, label = path.1, most = carriers, "streams of a path that carry bulk sessions");
            }
            Wish {
                congestion: fitting(choice),
                pacing: pacing(each, info.min_rtt),
                known: known.ceiling.is_known() && moved.is_some_and(|moved| moved.tells() && moved.is_near()),
                unsent,
                carriers,
            }
        })
    }
}

impl Drop for Tended {
    fn drop(&mut self) {
        let number = self.number;
        self.paths.with(self.path, Instant::now(), |known| known.forget(number));
    }
}

/// What a stream moved between two looks at it.
fn look(before: PathInfo, after: PathInfo, elapsed: Duration) -> Look {
    Look {
        // Not what was acknowledged: that stands still while there is a gap, and jumps when it closes.
        bytes: u64::from(after.delivered.wrapping_sub(before.delivered)) * u64::from(after.segment),
        elapsed,
        rtt: after.rtt,
        min_rtt: if after.min_rtt < FAR_AWAY { after.min_rtt } else { Duration::ZERO },
    }
}

/// What happened between two looks at a stream.
fn difference(before: PathInfo, after: PathInfo, elapsed: Duration) -> Sample {
    // Where the queue ran over meanwhile it is gone now: it was there before.
    let rtt = before.rtt.max(after.rtt);
    let percent = rtt.as_micros() * 100 / after.min_rtt.as_micros().max(1);
    Sample {
        segments: after.segments.wrapping_sub(before.segments).into(),
        resent: after.resent.wrapping_sub(before.resent).into(),
        elapsed,
        rtt,
        rtt_percent: u64::try_from(percent).unwrap_or(u64::MAX),
        waiting: after.unsent > 0,
    }
}

/// What a stream's socket may hold unsent, in powers of two: setting it costs a system call.
fn unsent(moved: Option<Look>) -> u32 {
    let sent = moved.map_or(0.0, |moved| moved.rate() * UNSENT.as_secs_f64());
    let bytes = (sent as u64).max(UNSENT_LEAST).next_power_of_two();
    u32::try_from(bytes).unwrap_or(u32::MAX).min(socket::STREAM_NOTSENT_LOWAT)
}

/// How a stream sends that may have so many bytes a second, by its lowest round trip.
fn pacing(limit: Option<u64>, min_rtt: Duration) -> Pacing {
    let else_so = if (PACED_FROM..FAR_AWAY).contains(&min_rtt) { Pacing::Spread } else { Pacing::Bursts };
    limit.map_or(else_so, Pacing::AtMost)
}

/// Keeps a stream's congestion control and pace as they should be, for as long as the stream stands.
async fn tend(mut tended: Tended, line: Line) {
    let mut modelled = Instant::now();
    let mut ticks = tokio::time::interval(LOOK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut in_force = Wish {
        congestion: wished(&tended.shared, &tended.paths, tended.path),
        pacing: Pacing::Bursts,
        known: false,
        unsent: 0,
        carriers: usize::MAX,
    };
    loop {
        ticks.tick().await;
        let Ok(info) = line.path_info() else { return };
        let now = Instant::now();
        let wish = tended.look(info, now);
        if wish.congestion != in_force.congestion {
            modelled = now;
        } else if wish.known && now - modelled >= BEGINS_ANEW {
            // The kernel does nothing when it is told what is in force.
            set_congestion(&line, CongestionControl::Cubic);
            set_congestion(&line, wish.congestion);
            modelled = now;
        }
        if apply(&line, in_force, wish).is_err() {
            return;
        }
        in_force = wish;
    }
}

fn apply(line: &Line, in_force: Wish, wish: Wish) -> io::Result<()> {
    if wish.congestion != in_force.congestion {
        set_congestion(line, wish.congestion);
    }
    if wish.pacing != in_force.pacing {
        line.set_pacing(wish.pacing)?;
    }
    if wish.unsent != in_force.unsent {
        line.set_unsent(wish.unsent)?;
    }
    line.set_carriers(wish.carriers);
    Ok(())
}

fn set_congestion(line: &Line, congestion: CongestionControl) {
    if let Err(error) = line.set_congestion(socket::kernel_name(congestion)) {
        debug!(?congestion, %error, "the kernel does not take this congestion control");
    }
}

impl StreamSockets {
    /// Sockets from `address`, the agent's own.
    #[must_use]
    pub fn new(shared: Arc<Shared>, address: Ipv4Addr) -> Self {
        Self { shared, address, paths: Paths::default() }
    }

    fn prepare(&self, socket: &SockRef<'_>, path: PathKey) -> io::Result<()> {
        socket::prepare_stream(socket, wished(&self.shared, &self.paths, path))
    }

    fn socket(&self, to: SocketAddrV4, label: u8) -> io::Result<TcpSocket> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
        socket::set_first_window(&socket);
        self.prepare(&SockRef::from(&socket), (*to.ip(), label))?;
        // Where the site rewrites, sessions leave by their clients' ports, of which this may be one.
        socket.set_reuse_address(true)?;
        socket.bind(&SocketAddr::from((self.address, 0)).into())?;
        Ok(TcpSocket::from_std_stream(socket.into()))
    }
}

impl Sockets for StreamSockets {
    fn dial(&self, to: SocketAddrV4, label: u8) -> BoxFuture<io::Result<TcpStream>> {
        let socket = self.socket(to, label);
        Box::pin(async move { socket?.connect(to.into()).await })
    }

    fn accepted(&self, socket: &TcpStream, label: u8) -> io::Result<()> {
        match socket.peer_addr()? {
            SocketAddr::V4(peer) => self.prepare(&SockRef::from(socket), (*peer.ip(), label)),
            SocketAddr::V6(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    fn admits(&self, from: IpAddr) -> bool {
        admits(&self.shared, from)
    }

    fn congestion(&self, peer: Ipv4Addr, label: u8) -> &'static str {
        socket::kernel_name(wished(&self.shared, &self.paths, (peer, label)))
    }

    fn tend(&self, line: Line, peer: Ipv4Addr, label: u8) -> BoxFuture<()> {
        let tended = Tended::new(Arc::clone(&self.shared), self.paths.clone(), (peer, label));
        Box::pin(tend(tended, line))
    }
}

/// The pair keys in force at each moment.
#[derive(Debug)]
pub struct PairKeys(pub Arc<Shared>);

impl Keys for PairKeys {
    fn sending(&self, site: SiteId) -> Option<(KeyId, Key)> {
        self.0.keys().pair(site).sending().map(|(id, key)| (id, key.clone()))
    }

    fn find(&self, site: SiteId, id: KeyId) -> Option<Key> {
        self.0.keys().pair(site).find(id).ok().cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_holds_what_it_sends_in_ten_milliseconds() {
        let second = Duration::from_secs(1);
        let at = |bytes| unsent(Some(Look { bytes, elapsed: second, rtt: second, min_rtt: second }));
        assert_eq!((unsent(None), at(0), at(3_000_000)), (32 << 10, 32 << 10, 32 << 10));
        assert_eq!((at(6_250_000), at(25_000_000)), (64 << 10, 256 << 10));
        assert_eq!(at(1 << 40), socket::STREAM_NOTSENT_LOWAT);
    }

    #[test]
    fn what_a_long_path_is_sent_is_spread_over_its_round_trip() {
        let unknown = Duration::from_micros(u32::MAX.into());
        for near in [Duration::ZERO, Duration::from_micros(2_999), unknown] {
            assert_eq!(pacing(None, near), Pacing::Bursts);
        }
        for far in [Duration::from_millis(3), Duration::from_millis(600)] {
            assert_eq!((pacing(None, far), pacing(Some(7), far)), (Pacing::Spread, Pacing::AtMost(7)));
        }
    }

    #[test]
    fn a_queue_that_ran_over_between_two_looks_was_there() {
        let ms = Duration::from_millis;
        let before = PathInfo {
            rtt: ms(36),
            min_rtt: ms(20),
            segments: u32::MAX - 9,
            resent: 3,
            ..PathInfo::default()
        };
        let after = PathInfo {
            rtt: ms(22),
            min_rtt: ms(20),
            segments: 90,
            resent: 10,
            unsent: 1,
            ..PathInfo::default()
        };
        let sample =
            Sample { segments: 100, resent: 7, elapsed: LOOK, rtt: ms(36), rtt_percent: 180, waiting: true };
        assert_eq!(difference(before, after, LOOK), sample);
    }
}
