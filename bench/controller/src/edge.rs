//! Sockets and clocks: one connection per switch, and one loop over all connections.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream as StdStream};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use thiserror::Error;

use crate::load::Load;
use crate::openflow::switch::MAX_UNSENT;
use crate::openflow::wire::WireError;
use crate::process::cpu_seconds;
use crate::report::{Measured, Report};
use crate::stats::Messages;
use crate::world::World;

/// Interval of an agent's beacons; each fifth beacon is followed by a report (spec/beacon.md 1, spec/order.md 7).
const BEACON: Duration = Duration::from_secs(1);
/// Length of an interval in the report's time series.
const INTERVAL: Duration = Duration::from_millis(250);
const CONNECT: Duration = Duration::from_secs(5);
const READ: usize = 256 * 1024;

/// A run that could not be completed.
#[derive(Debug, Error)]
pub enum RunError {
    /// A socket failed.
    #[error("{0}: {1}")]
    Io(&'static str, #[source] io::Error),
    /// The controller closed a connection.
    #[error("the controller closed the connection of switch {0}")]
    Closed(String),
    /// The controller sent something other than OpenFlow 1.3.
    #[error("switch {0}: {1}")]
    Wire(String, #[source] WireError),
    /// The controller does not read the output of a switch.
    #[error("the controller does not read what switch {0} sends")]
    Unread(String),
    /// The controller was not ready in time.
    #[error("not ready within {0:?}: {1} of {2} switches have been asked for their ports")]
    NotReady(Duration, usize, usize),
}

/// Parameters of a run.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Address of the controller.
    pub controller: SocketAddr,
    /// Load model.
    pub load: Load,
    /// Time limit for the controller to become ready.
    pub ready: Duration,
    /// Time in which only hosts are announced, before the load starts.
    pub settle: Duration,
    /// Duration of the load before the measurement.
    pub warm_up: Duration,
    /// Duration of the measurement.
    pub measure: Duration,
    /// Number of answers that ends the measurement; checked after every interval.
    pub most: u64,
    /// Process id of the controller, for its CPU time.
    pub pid: Option<u32>,
}

struct Runner {
    world: World,
    poll: Poll,
    sockets: Vec<(TcpStream, bool)>,
    began: Instant,
    due_beacon: Duration,
    beacons: u64,
    buffer: Vec<u8>,
}

/// Run a world against a controller.
///
/// # Errors
/// The controller cannot be reached, misbehaves, or is not ready in time.
pub fn run(world: World, plan: &Plan) -> Result<(Report, World), RunError> {
    let mut runner = Runner::connect(world, plan.controller)?;
    let handshake = runner.until(plan.ready, |world| world.switches.iter().all(|s| s.described))?;
    let settled = runner.now() + plan.settle;
    let ready = loop {
        runner.world.announce();
        runner.spin(Duration::from_millis(500).min(plan.settle), None)?;
        if runner.now() >= settled && runner.world.ready() {
            break runner.now() - handshake;
        }
        runner.check(plan.ready)?;
    };
    runner.spin(plan.warm_up, Some(plan.load))?;
    runner.world.reset();
    let before = (runner.messages(), cpu(plan.pid)?);
    let (started, mut series) = (runner.now(), Vec::new());
    while runner.now() - started < plan.measure && runner.world.answered_in_all() < plan.most {
        runner.stretch(
            started,
            INTERVAL * (u32::try_from(series.len()).unwrap_or(u32::MAX) + 1),
            plan.load,
        )?;
        let world = &runner.world;
        series.push(world.counts.iter().zip(&world.outstanding).map(|(c, o)| (c.answered, *o)).collect());
    }
    let measured = runner.now() - started;
    let used = cpu(plan.pid)?.zip(before.1).map(|(after, before)| after - before);
    let seconds = [handshake, ready, measured, INTERVAL].map(|d| d.as_secs_f64());
    let load = match plan.load {
        Load::Rate(rate) => format!("{rate} SYN/s offered"),
        Load::Outstanding(window) => format!("{window} SYNs unanswered per switch"),
    };
    let messages = runner.messages().since(before.0);
    let found =
        Measured { controller: plan.controller.to_string(), load, seconds, cpu_s: used, messages, series };
    let world = runner.world;
    Ok((Report::new(&world, found), world))
}

fn cpu(pid: Option<u32>) -> Result<Option<f64>, RunError> {
    pid.map(cpu_seconds).transpose().map_err(|e| RunError::Io("the controller's CPU time", e))
}

impl Runner {
    fn connect(world: World, controller: SocketAddr) -> Result<Self, RunError> {
        let poll = Poll::new().map_err(|e| RunError::Io("poll", e))?;
        let mut sockets = Vec::new();
        for index in 0..world.switches.len() {
            let open = || -> io::Result<TcpStream> {
                let stream = StdStream::connect_timeout(&controller, CONNECT)?;
                stream.set_nodelay(true)?;
                stream.set_nonblocking(true)?;
                let mut stream = TcpStream::from_std(stream);
                poll.registry().register(&mut stream, Token(index), Interest::READABLE)?;
                Ok(stream)
            };
            sockets.push((open().map_err(|e| RunError::Io("cannot connect to the controller", e))?, false));
        }
        let buffer = vec![0; READ];
        Ok(Self {
            world,
            poll,
            sockets,
            began: Instant::now(),
            due_beacon: Duration::ZERO,
            beacons: 0,
            buffer,
        })
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    fn messages(&self) -> Messages {
        self.world.switches.iter().fold(Messages::default(), |sum, s| Messages {
            adds: sum.adds + s.messages.adds,
            deletes: sum.deletes + s.messages.deletes,
            packet_outs: sum.packet_outs + s.messages.packet_outs,
            barriers: sum.barriers + s.messages.barriers,
        })
    }

    fn check(&self, limit: Duration) -> Result<(), RunError> {
        if self.now() < limit {
            return Ok(());
        }
        let described = self.world.switches.iter().filter(|s| s.described).count();
        Err(RunError::NotReady(limit, described, self.world.switches.len()))
    }

    fn until(&mut self, limit: Duration, done: impl Fn(&World) -> bool) -> Result<Duration, RunError> {
        while !done(&self.world) {
            self.check(limit)?;
            self.turn()?;
        }
        Ok(self.now())
    }

    /// Run the loop for `length`, with or without load.
    fn spin(&mut self, length: Duration, load: Option<Load>) -> Result<(), RunError> {
        let started = self.now();
        match load {
            Some(load) => self.stretch(started, length, load),
            None => {
                while self.now() - started < length {
                    self.turn()?;
                }
                Ok(())
            }
        }
    }

    /// Offer load until `length` after `started`.
    fn stretch(&mut self, started: Duration, length: Duration, load: Load) -> Result<(), RunError> {
        loop {
            let now = self.now();
            if now - started >= length {
                return Ok(());
            }
            self.world.offer(load, now, now - started);
            self.turn()?;
        }
    }

    /// Write pending output, wait at most a millisecond, and read the input.
    fn turn(&mut self) -> Result<(), RunError> {
        let now = self.now();
        let time_ms = wall_ms();
        self.world.pass(now, time_ms);
        if now >= self.due_beacon && self.world.switches.iter().all(|s| s.described) {
            self.due_beacon = now + BEACON;
            self.beacons += 1;
            self.world.beacons(time_ms, self.beacons.is_multiple_of(5));
        }
        for index in 0..self.sockets.len() {
            self.write(index)?;
        }
        let mut events = Events::with_capacity(1024);
        match self.poll.poll(&mut events, Some(Duration::from_millis(1))) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => {
                return Err(RunError::Io("poll", error));
            }
            _ => (),
        }
        for event in &events {
            if event.is_readable() {
                self.read(event.token().0)?;
            }
        }
        Ok(())
    }

    fn read(&mut self, index: usize) -> Result<(), RunError> {
        loop {
            match self.sockets[index].0.read(&mut self.buffer) {
                Ok(0) => return Err(RunError::Closed(self.name(index))),
                Ok(length) => {
                    let now = self.began.elapsed();
                    let taken = self.world.receive(index, &self.buffer[..length], now, wall_ms());
                    taken.map_err(|e| RunError::Wire(self.name(index), e))?;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
                Err(error) => return Err(RunError::Io("a connection of a switch", error)),
            }
        }
    }

    fn write(&mut self, index: usize) -> Result<(), RunError> {
        let ((socket, waiting), out) = (&mut self.sockets[index], &mut self.world.switches[index].out);
        let mut written = 0;
        while written < out.len() {
            match socket.write(&out[written..]) {
                Ok(length) => written += length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
                Err(error) => return Err(RunError::Io("a connection of a switch", error)),
            }
        }
        out.drain(..written);
        let wait = !out.is_empty();
        if out.len() > MAX_UNSENT {
            return Err(RunError::Unread(self.name(index)));
        }
        if wait != *waiting {
            *waiting = wait;
            let interest = if wait { Interest::READABLE | Interest::WRITABLE } else { Interest::READABLE };
            let again = self.poll.registry().reregister(socket, Token(index), interest);
            again.map_err(|e| RunError::Io("poll", e))?;
        }
        Ok(())
    }

    fn name(&self, index: usize) -> String {
        self.world.switches[index].plan.name.clone()
    }
}

fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
