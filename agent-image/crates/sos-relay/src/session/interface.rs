//! Input and output of a session.

use std::time::Duration;

use sos_wire::{EndReason, Frame, SessionNumber};

use crate::sending::scheduler::StreamId;

/// Initial settings of a session.
#[derive(Debug, Clone)]
pub struct SessionConfig {
    /// Session number, agreed between the two agents.
    pub number: SessionNumber,
    /// Block size in bytes, 0 = [`crate::DEFAULT_BLOCK`] and more on fast paths; clamped to [`crate::MIN_BLOCK`] and [`crate::MAX_BLOCK`].
    pub block: usize,
    /// Maximum bytes that the session may hold in each direction.
    pub max_memory: usize,
    /// Maximum wait without a stream (frame.md clause 11).
    pub stream_wait: Duration,
    /// Round trip time of the streams.
    pub rtt: Duration,
    /// Recent rate of hosts behind the same peer in bytes per second, 0 = unknown.
    pub rate: f64,
}

/// Action of the driver for the local host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The server has accepted. At the opener only.
    Opened,
    /// The host has received everything that the peer sent: shut down the write side.
    Finished,
    /// Reset the host's connection now.
    Reset(EndReason),
    /// The session is over; no further event follows.
    Closed(EndReason),
}

/// A frame and its stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transmit {
    /// One of the offered streams.
    pub stream: StreamId,
    /// The frame.
    pub frame: Frame,
}
