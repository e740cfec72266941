//! One direction of a link in virtual time: drop-tail queue, serialiser, and a line with delay and loss.
//!
//! One number represents queue and serialiser: the time until which the serialiser is busy. Its remaining work at `now`
//! is the queue. Each packet of a super-frame is dropped and timed individually. Consecutive surviving packets form a
//! run, which is due when its last packet arrives, as from a network card with receive coalescing.

use crate::frames::delivery::{self, Delivery};
use crate::frames::frame::Frame;
use crate::stats::DirectionStats;
use crate::units::{Nanos, SECOND};
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};
use std::collections::VecDeque;
use std::rc::Rc;

/// Picoseconds, so that rounding does not change the rate: a full packet takes 1230 ns at 10 Gbit/s, so an error of 1
/// ns would be 0.1 %.
type Picos = u128;

const PICOS_PER_NANO: u128 = 1_000;
const PICO_BITS_PER_BYTE: u128 = 8 * 1_000_000_000_000;

/// Overhead of a held frame in addition to its bytes (allocations, line entry), so that the memory of small frames is
/// counted, too.
const HELD_FRAME_OVERHEAD: u64 = 256;

/// A direction's characteristics, resolved to numbers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shape {
    /// Bits per second on the wire. Never 0.
    pub rate_bps: u64,
    /// One-way delay.
    pub delay: Nanos,
    /// Loss probability per packet.
    pub loss: f64,
    /// Queue limit in wire bytes; an empty queue always accepts a packet.
    pub queue_bytes: u64,
}

/// Limits of grouping and memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Longest run delivered as one frame, in serialisation time; a run has at least one packet.
    pub run_time: Nanos,
    /// True if packets of different frames may be joined.
    pub coalesce: bool,
    /// Limit of held memory; frames beyond it are dropped and counted.
    pub max_held_bytes: u64,
}

/// Consecutive packets of one frame in transit.
#[derive(Debug)]
struct Run {
    frame: Rc<Frame>,
    first: usize,
    count: usize,
    wire_bytes: u64,
    /// Time at which the serialiser has sent the last packet.
    sent: Picos,
    /// Arrival time of the last packet.
    due: Nanos,
    /// True for the last run of a frame, which releases the frame's memory.
    releases: bool,
}

/// One direction of a link. Has no clock and no socket.
#[derive(Debug)]
pub struct Shaper {
    shape: Shape,
    limits: Limits,
    loss_threshold: u64,
    rng: Pcg64Mcg,
    busy_until: Picos,
    last_due: Nanos,
    line: VecDeque<Run>,
    held_bytes: u64,
    down: bool,
    stats: DirectionStats,
}

fn held_cost(frame: &Frame) -> u64 {
    frame.bytes().len() as u64 + HELD_FRAME_OVERHEAD
}

/// `loss` as a threshold for a uniform 64-bit number.
fn threshold(loss: f64) -> u64 {
    // The cast saturates, so with a loss of 1 only one packet in 2^64 survives.
    (loss * 2f64.powi(64)) as u64
}

impl Shaper {
    /// Create an empty direction. `seed` determines the lost packets.
    pub fn new(shape: Shape, limits: Limits, seed: u64) -> Shaper {
        Shaper {
            shape,
            limits,
            loss_threshold: threshold(shape.loss),
            rng: Pcg64Mcg::seed_from_u64(seed),
            busy_until: 0,
            last_due: 0,
            line: VecDeque::new(),
            held_bytes: 0,
            down: false,
            stats: DirectionStats::default(),
        }
    }

    /// Enqueue a frame that arrived at `now`. Times must not decrease from call to call.
    pub fn enqueue(&mut self, now: Nanos, frame: Frame) {
        let packets = frame.packets();
        let bytes = (0..packets).map(|i| frame.packet_wire_bytes(i)).sum();
        self.stats.received.add(packets, bytes);
        if self.down {
            self.stats.dropped.down += packets as u64;
            return;
        }
        if self.held_bytes + held_cost(&frame) > self.limits.max_held_bytes {
            self.stats.dropped.memory += packets as u64;
            return;
        }
        let frame = Rc::new(frame);
        let mut runs = self.transmit(now, &frame);
        let kept: usize = runs.iter().map(|r| r.count).sum();
        // A few surviving packets must not keep the whole super-frame in memory: a flooded queue would need many times
        // its own size.
        let compact = kept * 2 < packets;
        match runs.last_mut() {
            Some(last) if !compact => {
                last.releases = true;
                self.held_bytes += held_cost(&frame);
            }
            _ => {}
        }
        for run in runs {
            self.put_on_line(run, compact);
        }
    }

    /// Queue, serialise and lose the packets of `frame`; returns the runs that will arrive.
    fn transmit(&mut self, now: Nanos, frame: &Rc<Frame>) -> Vec<Run> {
        let now = Picos::from(now) * PICOS_PER_NANO;
        self.busy_until = self.busy_until.max(now);
        let mut queued = self.queued_bytes(now);
        let max_run_bytes = self.max_run_bytes();
        let mut runs: Vec<Run> = Vec::with_capacity(2);
        for index in 0..frame.packets() {
            let wire_bytes = frame.packet_wire_bytes(index);
            if queued > 0 && queued + wire_bytes > self.shape.queue_bytes {
                self.stats.dropped.queue += 1;
                continue;
            }
            queued += wire_bytes;
            self.busy_until += self.serialisation(wire_bytes);
            if self.is_lost() {
                self.stats.dropped.loss += 1;
                continue;
            }
            let sent = self.busy_until;
            match runs.last_mut() {
                Some(run)
                    if run.first + run.count == index
                        && run.wire_bytes + wire_bytes <= max_run_bytes =>
                {
                    run.count += 1;
                    run.wire_bytes += wire_bytes;
                    run.sent = sent;
                }
                _ => runs.push(Run {
                    frame: Rc::clone(frame),
                    first: index,
                    count: 1,
                    wire_bytes,
                    sent,
                    due: 0,
                    releases: false,
                }),
            }
        }
        self.stats.queue_max_bytes = self.stats.queue_max_bytes.max(queued);
        runs
    }

    fn put_on_line(&mut self, mut run: Run, compact: bool) {
        run.due = self.due_time(run.sent);
        if compact {
            if let Some(frame) = compacted(&run) {
                run.frame = Rc::new(frame);
                run.first = 0;
            }
            run.releases = true;
            self.held_bytes += held_cost(&run.frame);
        }
        self.line.push_back(run);
    }

    /// Arrival time of data that the serialiser has finished at `sent`; never before the arrival of earlier data.
    fn due_time(&mut self, sent: Picos) -> Nanos {
        let sent = u64::try_from(sent.div_ceil(PICOS_PER_NANO)).unwrap_or(u64::MAX);
        self.last_due = sent.saturating_add(self.shape.delay).max(self.last_due);
        self.last_due
    }

    fn serialisation(&self, wire_bytes: u64) -> Picos {
        u128::from(wire_bytes) * PICO_BITS_PER_BYTE / u128::from(self.shape.rate_bps)
    }

    fn queued_bytes(&self, now: Picos) -> u64 {
        let busy = self.busy_until.saturating_sub(now);
        let bytes = (busy * u128::from(self.shape.rate_bps)).div_ceil(PICO_BITS_PER_BYTE);
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    /// Wire bytes of the longest run; also the limit of joined frames.
    fn max_run_bytes(&self) -> u64 {
        let bits = u128::from(self.shape.rate_bps) * u128::from(self.limits.run_time);
        u64::try_from(bits / 8 / u128::from(SECOND)).unwrap_or(u64::MAX)
    }

    fn is_lost(&mut self) -> bool {
        self.loss_threshold > 0 && self.rng.next_u64() < self.loss_threshold
    }

    /// Time of the next delivery.
    pub fn next_due(&self) -> Option<Nanos> {
        self.line.front().map(|run| run.due)
    }

    /// Remove the deliveries due at `now`, in order.
    pub fn due(&mut self, now: Nanos) -> Vec<Delivery> {
        let mut deliveries = Vec::new();
        while let Some(run) = self.pop_due(now) {
            self.note_lateness(now - run.due);
            deliveries.push(delivery::cut(&run.frame, run.first, run.count));
        }
        if self.limits.coalesce && deliveries.len() > 1 {
            deliveries = delivery::coalesce(deliveries, self.max_run_bytes());
        }
        let mut burst = 0;
        for delivery in &deliveries {
            self.stats
                .delivered
                .add(delivery.packets(), delivery.wire_bytes());
            burst += delivery.wire_bytes();
        }
        self.stats.burst_max_bytes = self.stats.burst_max_bytes.max(burst);
        deliveries
    }

    fn pop_due(&mut self, now: Nanos) -> Option<Run> {
        if self.next_due()? > now {
            return None;
        }
        let run = self.line.pop_front()?;
        if run.releases {
            self.held_bytes -= held_cost(&run.frame);
        }
        Some(run)
    }

    fn note_lateness(&mut self, late: Nanos) {
        let late_us = late / 1_000;
        self.stats.late_max_us = self.stats.late_max_us.max(late_us);
        self.stats.late_over_1ms += u64::from(late_us > 1_000);
    }

    /// Change the characteristics at `now`. Queued data gets the new rate and delay; data on the line arrives as
    /// before. Order is kept.
    pub fn reshape(&mut self, now: Nanos, shape: Shape) {
        let now = Picos::from(now) * PICOS_PER_NANO;
        let (old_rate, new_rate) = (u128::from(self.shape.rate_bps), u128::from(shape.rate_bps));
        let rescaled = |time: Picos| time * old_rate / new_rate;
        self.shape = shape;
        self.loss_threshold = threshold(shape.loss);
        let waiting = self.line.partition_point(|run| run.sent <= now);
        self.last_due = waiting.checked_sub(1).map_or(0, |i| self.line[i].due);
        let mut line = std::mem::take(&mut self.line);
        for run in line.iter_mut().skip(waiting) {
            run.sent = now + rescaled(run.sent - now);
            run.due = self.due_time(run.sent);
        }
        self.line = line;
        self.busy_until = now + rescaled(self.busy_until.saturating_sub(now));
    }

    /// Cut the line (`true`) or repair it. A cut drops all data in the queue and on the line, and all data that arrives
    /// later.
    pub fn set_down(&mut self, down: bool) {
        self.down = down;
        if down {
            let packets: usize = self.line.iter().map(|run| run.count).sum();
            self.stats.dropped.down += packets as u64;
            self.line.clear();
            self.held_bytes = 0;
            self.busy_until = 0;
        }
    }

    /// True if the line is cut.
    pub fn is_down(&self) -> bool {
        self.down
    }

    /// The characteristics in force.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Statistics at `now`.
    pub fn stats(&self, now: Nanos) -> DirectionStats {
        DirectionStats {
            queue_bytes: self.queued_bytes(Picos::from(now) * PICOS_PER_NANO),
            queue_limit_bytes: self.shape.queue_bytes,
            held_bytes: self.held_bytes,
            ..self.stats
        }
    }
}

/// The run's packets as a frame of their own, so that the original frame can be freed.
fn compacted(run: &Run) -> Option<Frame> {
    let piece = delivery::cut(&run.frame, run.first, run.count);
    Frame::new(
        *piece.vnet(),
        piece.to_bytes().into_boxed_slice(),
        usize::MAX,
    )
    .filter(|frame| frame.packets() == run.count)
}
