//! The event loop: waits for frames, due deliveries, control requests and signals; moves bytes between ports and shapers.
//!
//! Under traffic the loop runs at most once per tick, so that frames are read and written in batches. Late reading does
//! not affect the emulation, because the kernel's arrival times count.

use crate::config::{Direction, LinkSpec};
use crate::control::{self, EdgeView};
use crate::edge::port::{Clocks, Port, RETRY_INTERVAL};
use crate::edge::server::Server;
use crate::edge::sys::RxBatch;
use crate::link::Link;
use crate::shaper::Limits;
use crate::stats::DirectionStats;
use crate::units::{Nanos, SECOND};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::time::{ClockId, Timespec, clock_gettime};
use serde_json::Value;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use thiserror::Error;

/// Maximum number of events from one wait.
const MAX_EVENTS: usize = 64;
const STOP_TOKEN: u64 = 1 << 32;
const SERVER_TOKEN: u64 = 1 << 33;

/// Reason why the emulator could not start or continue.
#[derive(Debug, Error)]
pub enum EngineError {
    /// An interface was not ready in time.
    #[error(
        "interface {name}: does not exist or is down in this network namespace after {seconds} s"
    )]
    Missing {
        /// The interface.
        name: String,
        /// Time waited.
        seconds: u64,
    },
    /// An interface could not be used.
    #[error(
        "interface {name}: {source} (packet sockets need root or CAP_NET_RAW and CAP_NET_ADMIN)"
    )]
    Interface {
        /// The interface.
        name: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// The control socket could not be created.
    #[error("control socket: {0}")]
    Control(io::Error),
    /// A system call of the loop failed.
    #[error("event loop: {0}")]
    Loop(#[from] io::Error),
}

impl From<rustix::io::Errno> for EngineError {
    fn from(errno: rustix::io::Errno) -> EngineError {
        EngineError::Loop(errno.into())
    }
}

/// Settings of the loop.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Grouping and memory limits of every direction.
    pub limits: Limits,
    /// Minimum interval of rounds under traffic, and approximate bound of a delivery's lateness.
    pub tick: Nanos,
    /// Seed of packet loss.
    pub seed: u64,
}

/// The interfaces of all links, two per link.
struct Ports(Vec<[Port; 2]>);

impl EdgeView for Ports {
    fn complete(&mut self, index: usize, direction: Direction, stats: &mut DirectionStats) {
        let (incoming, outgoing) = (direction.index(), 1 - direction.index());
        stats.dropped.socket = self.0[index][incoming].dropped_by_socket();
        stats.dropped.unreadable = self.0[index][incoming].unreadable;
        stats.dropped.send = self.0[index][outgoing].send_errors;
    }

    fn attached(&self, index: usize, end: usize) -> bool {
        self.0[index][end].is_attached()
    }
}

/// All links with their interfaces, and the poll set.
pub struct Engine {
    links: Vec<Link>,
    ports: Ports,
    poll: OwnedFd,
    server: Option<Server>,
    batch: RxBatch,
    tick: Nanos,
}

fn nanos(time: Timespec) -> Nanos {
    // Both clocks are positive and within range until the year 2554.
    (time.tv_sec as u64) * SECOND + time.tv_nsec as u64
}

fn now() -> Nanos {
    nanos(clock_gettime(ClockId::Monotonic))
}

fn timespec(time: Nanos) -> Timespec {
    Timespec {
        tv_sec: (time / SECOND) as i64,
        tv_nsec: (time % SECOND) as i64,
    }
}

impl Engine {
    /// Create links and ports for `specs`, not yet attached. A readable `stop` ends [`Engine::run`].
    pub fn new(
        specs: Vec<LinkSpec>,
        settings: Settings,
        stop: &UnixStream,
    ) -> Result<Engine, EngineError> {
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&poll, stop, EventData::new_u64(STOP_TOKEN), EventFlags::IN)?;
        let port = |i: usize, end: usize, spec: &LinkSpec| {
            Port::new(&spec.ends[end], (i * 2 + end) as u64)
        };
        let ports = specs
            .iter()
            .enumerate()
            .map(|(i, s)| [port(i, 0, s), port(i, 1, s)]);
        let ports = Ports(ports.collect());
        let link = |(i, spec)| Link::new(spec, i, settings.limits, settings.seed);
        Ok(Engine {
            links: specs.into_iter().enumerate().map(link).collect(),
            ports,
            poll,
            server: None,
            batch: RxBatch::default(),
            tick: settings.tick,
        })
    }

    /// Attach to every interface, and wait up to `patience` for interfaces that are missing or down. Returns `false` after a
    /// stop signal.
    pub fn attach(&mut self, patience: Nanos) -> Result<bool, EngineError> {
        let deadline = now() + patience;
        loop {
            let time = now();
            self.attach_absent(time, true)?;
            let absent = self.ports.0.iter().flatten().find(|p| !p.is_attached());
            let Some(port) = absent else {
                return Ok(true);
            };
            if time >= deadline {
                return Err(EngineError::Missing {
                    name: port.name().to_owned(),
                    seconds: patience / SECOND,
                });
            }
            if self
                .wait(Some(time + RETRY_INTERVAL / 4))?
                .contains(&STOP_TOKEN)
            {
                return Ok(false);
            }
        }
    }

    /// Open the control socket. Its existence signals that the links work.
    pub fn listen(&mut self, path: &Path) -> Result<(), EngineError> {
        let server =
            Server::listen(path, &self.poll, SERVER_TOKEN).map_err(EngineError::Control)?;
        self.server = Some(server);
        Ok(())
    }

    /// Run until stopped.
    pub fn run(&mut self) -> Result<(), EngineError> {
        let mut round = now();
        loop {
            let tokens = self.wait(self.next_wake(round))?;
            if tokens.contains(&STOP_TOKEN) {
                return Ok(());
            }
            round = now();
            self.receive(round, &tokens)?;
            self.deliver()?;
            self.attach_absent(round, false)?;
            self.serve(&tokens);
            let pause = (round + self.tick).saturating_sub(now());
            if !tokens.is_empty() && pause > 0 {
                // An interrupted sleep only shortens the pause.
                let _ = rustix::thread::nanosleep(&timespec(pause));
            }
        }
    }

    /// Statistics of all links.
    pub fn statistics(&mut self) -> Value {
        control::statistics(now(), &self.links, &mut self.ports)
    }

    /// Wait for events until `until`; returns their tokens.
    fn wait(&self, until: Option<Nanos>) -> Result<Vec<u64>, EngineError> {
        let timeout = until.map(|at| timespec(at.saturating_sub(now())));
        let mut events = Vec::with_capacity(MAX_EVENTS);
        match epoll::wait(
            &self.poll,
            rustix::buffer::spare_capacity(&mut events),
            timeout.as_ref(),
        ) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        Ok(events.iter().map(|e| e.data.u64()).collect())
    }

    /// Time of the next action without events: the next delivery, not before the next tick, or the next
    /// attempt to attach to a missing interface.
    fn next_wake(&self, round: Nanos) -> Option<Nanos> {
        let due = self
            .links
            .iter()
            .flat_map(|link| Direction::BOTH.map(|d| link.shaper(d).next_due()))
            .flatten()
            .map(|due| due.max(round + self.tick));
        let retries = self.ports.0.iter().flatten().filter_map(Port::retry_at);
        due.chain(retries).min()
    }

    fn receive(&mut self, round: Nanos, tokens: &[u64]) -> Result<(), EngineError> {
        let wall_ns = nanos(clock_gettime(ClockId::Realtime));
        let clocks = Clocks {
            now: round,
            wall_ns,
        };
        for token in tokens.iter().filter(|t| **t < STOP_TOKEN) {
            let (index, end) = (*token as usize / 2, *token as usize % 2);
            let mtu = self.ports.0[index][1 - end].mtu();
            let port = &mut self.ports.0[index][end];
            let frames = port
                .receive(clocks, mtu, &mut self.batch)
                .map_err(|source| interface_error(port, source))?;
            let shaper = self.links[index].shaper_mut(Direction::BOTH[end]);
            for (arrival, frame) in frames {
                shaper.enqueue(arrival, frame);
            }
        }
        Ok(())
    }

    fn deliver(&mut self) -> Result<(), EngineError> {
        for (link, ports) in self.links.iter_mut().zip(&mut self.ports.0) {
            for direction in Direction::BOTH {
                let time = now();
                let deliveries = link.shaper_mut(direction).due(time);
                let port = &mut ports[1 - direction.index()];
                port.send(time, &deliveries)
                    .map_err(|source| interface_error(port, source))?;
            }
        }
        Ok(())
    }

    /// Attach to missing interfaces whose retry is due, or to all missing interfaces.
    fn attach_absent(&mut self, time: Nanos, all: bool) -> Result<(), EngineError> {
        for port in self.ports.0.iter_mut().flatten() {
            if port.retry_at().is_some_and(|at| all || at <= time) {
                port.try_attach(time, &self.poll)
                    .map_err(|source| interface_error(port, source))?;
            }
        }
        Ok(())
    }

    fn serve(&mut self, tokens: &[u64]) {
        let Some(server) = &mut self.server else {
            return;
        };
        for token in tokens.iter().filter(|t| **t >= SERVER_TOKEN) {
            let (links, ports) = (&mut self.links, &mut self.ports);
            server.on_event(*token, &self.poll, |line| {
                control::answer(line, now(), links, ports)
            });
        }
    }
}

fn interface_error(port: &Port, source: io::Error) -> EngineError {
    EngineError::Interface {
        name: port.name().to_owned(),
        source,
    }
}
