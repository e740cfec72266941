//! Counters of a direction. All byte counts are wire bytes, framing included.

use serde::Serialize;

/// Counters of one kind of event.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Traffic {
    /// Frames as read or written, super-frames counted once.
    pub frames: u64,
    /// Packets a real wire would carry.
    pub packets: u64,
    /// Their bytes on the wire.
    pub bytes: u64,
}

impl Traffic {
    /// Count one frame.
    pub fn add(&mut self, packets: usize, bytes: u64) {
        self.frames += 1;
        self.packets += packets as u64;
        self.bytes += bytes;
    }
}

/// Dropped packets by reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Dropped {
    /// Tail drops at the queue limit.
    pub queue: u64,
    /// Lost on the line by the configured probability.
    pub loss: u64,
    /// Arrived at, or in transit on, a cut link.
    pub down: u64,
    /// The memory bound was reached.
    pub memory: u64,
    /// Frames the kernel dropped because this process did not read in time: the emulation was not faithful.
    pub socket: u64,
    /// Super-frames inside a tunnel, which a virtio-net header cannot express, and frames longer than 64 KiB.
    pub unreadable: u64,
    /// Frames that the outgoing interface refused (longer than its MTU, full, or down).
    pub send: u64,
}

/// Statistics of one direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct DirectionStats {
    /// Received traffic.
    pub received: Traffic,
    /// Delivered traffic.
    pub delivered: Traffic,
    /// Dropped packets.
    pub dropped: Dropped,
    /// Queue length now.
    pub queue_bytes: u64,
    /// Longest queue so far.
    pub queue_max_bytes: u64,
    /// Limit of the queue.
    pub queue_limit_bytes: u64,
    /// Memory held by queue and line now.
    pub held_bytes: u64,
    /// Most bytes delivered at one instant.
    pub burst_max_bytes: u64,
    /// Longest delay of a delivery beyond its due time, in microseconds: the resolution actually reached.
    pub late_max_us: u64,
    /// Deliveries more than a millisecond late.
    pub late_over_1ms: u64,
}
