//! Counters of a direction. All byte counts are wire bytes, framing included.

use serde::Serialize;

/// Counters of one kind of event.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Traffic {
    /// Frames as read or written, super-frames counted once.
    pub frames: u64,
    /// Packets that a real link would carry.
    pub packets: u64,
    /// Wire bytes of these packets.
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
    /// Packets lost on the line by the configured probability.
    pub loss: u64,
    /// Packets that arrived at a cut link or were in transit on it.
    pub down: u64,
    /// Packets dropped at the memory limit.
    pub memory: u64,
    /// Frames that the kernel dropped because this process did not read in time: the emulation was not faithful.
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
    /// Maximum number of bytes delivered at one time.
    pub burst_max_bytes: u64,
    /// Maximum lateness of a delivery in microseconds: the time resolution actually reached.
    pub late_max_us: u64,
    /// Deliveries more than a millisecond late.
    pub late_over_1ms: u64,
}
