//! What goes into a session and comes out of it.

use std::time::Duration;

use sos_wire::{EndReason, Frame, SessionNumber};

use crate::scheduler::StreamId;

/// What a session is told at its beginning.
#[derive(Debug, Clone)]
pub struct SessionConfig {
    /// Names it between the two agents.
    pub number: SessionNumber,
    /// Block size in bytes, 0 = [`crate::DEFAULT_BLOCK`] and more on fast paths; brought inside [`crate::MIN_BLOCK`] and [`crate::MAX_BLOCK`].
    pub block: usize,
    /// Bytes it may hold in each direction.
    pub max_memory: usize,
    /// How long it waits while there is no stream (frame.md clause 11).
    pub stream_wait: Duration,
    /// Round trip time of the streams.
    pub rtt: Duration,
    /// Bytes a second that hosts have lately taken behind the same peer, 0 = not known.
    pub rate: f64,
}

/// What the driver has to do for the local host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The server has accepted. At the opener only.
    Opened,
    /// The host has been given everything the peer sent: shut down the write side.
    Finished,
    /// Reset the host's connection now.
    Reset(EndReason),
    /// The session is over; nothing will be asked of the driver any more. The last event.
    Closed(EndReason),
}

/// A frame and the stream it goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transmit {
    /// One of the streams that were offered.
    pub stream: StreamId,
    /// The frame.
    pub frame: Frame,
}
