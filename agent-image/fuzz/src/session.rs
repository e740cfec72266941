//! A session driven by bytes: its host and its driver observe their contracts, and its peer sends arbitrary frames.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use sos_relay::{Budget, Event, Session, SessionConfig, StreamId, StreamView};
use sos_wire::{AgentId, Body, Decoder, Marks, Open, Payload, SessionNumber, SessionUuid};

/// Maximum number of frames taken from the session in one step of the driver.
const FRAMES_PER_TURN: usize = 64;
const MAX_MEMORY: usize = 1 << 20;

/// A session never panics, keeps its invariants, and reports its end once.
pub fn session(data: &[u8]) {
    let Some((first, rest)) = data.split_first() else { return };
    let mut driver = Driver::new(first & 1 == 0);
    let mut bytes = rest;
    while let Some((op, rest)) = bytes.split_first() {
        bytes = driver.step(*op, rest);
        if driver.settle() {
            return;
        }
    }
}

struct Driver {
    session: Session,
    now: Instant,
    /// Streams by slot; stream ids are never reused.
    streams: BTreeMap<u8, StreamId>,
    next_stream: u64,
    connecting: bool,
    host_ended: bool,
}

impl Driver {
    fn new(opener: bool) -> Self {
        let config = SessionConfig {
            number: SessionNumber::new(1, AgentId([1; 16]), AgentId([2; 16])),
            block: 0,
            max_memory: MAX_MEMORY,
            stream_wait: Duration::from_secs(10),
            rtt: Duration::from_millis(20),
            rate: 0.0,
        };
        let open = Open {
            session: SessionUuid([3; 16]),
            client: "10.0.0.11:40000".parse().expect("a constant"),
            server: "10.0.0.139:5003".parse().expect("a constant"),
            marks: Marks::default(),
            block_bytes: 0,
            queue_bytes: 0,
        };
        let (now, budget) = (Instant::now(), Budget::new(8 << 20));
        let session = if opener {
            Session::open(&config, open, &budget, now)
        } else {
            Session::accept(&config, &budget, now)
        };
        let session = session.expect("the budget has room");
        Self {
            session,
            now,
            streams: BTreeMap::new(),
            next_stream: 1,
            connecting: !opener,
            host_ended: false,
        }
    }

    /// Executes one operation; returns the unused bytes.
    fn step<'a>(&mut self, op: u8, rest: &'a [u8]) -> &'a [u8] {
        let argument = rest.first().copied().unwrap_or(0);
        let slot = argument % 4;
        match op % 10 {
            0 => return self.frame(rest),
            1 if !self.host_ended => self.host_data(usize::from(argument) * 257 + 1),
            2 if !self.host_ended => {
                self.host_ended = true;
                self.session.handle_local_eof();
            }
            3 if !self.streams.contains_key(&slot) => {
                let stream = StreamId(self.next_stream);
                self.next_stream += 1;
                self.streams.insert(slot, stream);
                self.session.handle_stream_up(stream);
            }
            4 => {
                if let Some(stream) = self.streams.remove(&slot) {
                    self.session.handle_stream_closed(stream, self.now);
                }
            }
            5 if self.connecting => {
                self.connecting = false;
                self.session.handle_connected();
            }
            6 => self.deliver(usize::from(argument) * 1_031 + 1),
            7 => self.transmit(argument),
            8 => {
                self.now += Duration::from_millis(u64::from(argument) * 40);
                if self.session.poll_timeout().is_some_and(|due| due <= self.now) {
                    self.session.handle_timeout(self.now);
                }
            }
            9 if argument == 255 => self.session.handle_peer_lost(),
            9 => self.session.handle_local_marks(Marks { dscp: argument % 64, ttl: argument }),
            _ => return rest,
        }
        rest.get(1..).unwrap_or_default()
    }

    /// Handles the next frame in the bytes, if there is one.
    fn frame<'a>(&mut self, rest: &'a [u8]) -> &'a [u8] {
        let mut buffer = BytesMut::from(rest);
        match Decoder::default().decode(&mut buffer) {
            Ok(Some(frame)) => {
                self.session.handle_frame(frame.body, self.now);
                &rest[rest.len() - buffer.len()..]
            }
            _ => rest.get(1..).unwrap_or_default(),
        }
    }

    fn host_data(&mut self, wanted: usize) {
        let length = wanted.min(self.session.local_room());
        if length > 0 {
            self.session.handle_local_data(Bytes::from(vec![0; length]));
        }
    }

    fn deliver(&mut self, wanted: usize) {
        if !self.connecting {
            let _ = self.session.poll_marks();
        }
        let waiting: usize = self.session.deliverable().map(Payload::len).sum();
        let taken = wanted.min(waiting);
        if taken > 0 && !self.connecting {
            self.session.handle_delivered(taken, self.now);
            self.session.handle_unacknowledged(0, self.now);
        }
        if taken < waiting || self.connecting {
            self.session.handle_host_full();
        }
    }

    /// Takes frames from the session while its streams have given states. `states` has two bits for each slot: bit 4 + slot is 0 if the
    /// stream has buffer space, and bit slot is 1 if the stream has stalled. Round trip, window and queue length depend on the slot; slots
    /// 0 and 1 share one path label, slots 2 and 3 another.
    fn transmit(&mut self, states: u8) {
        let view = |(slot, id): (&u8, &StreamId)| StreamView {
            id: *id,
            label: slot / 2,
            has_room: states >> (4 + slot) & 1 == 0,
            queued: usize::from(*slot) << 14,
            queued_total: 1 << 20,
            acked: u64::from(states >> (slot ^ 1)) << 14,
            rtt: Duration::from_millis(10 << slot),
            window: u64::from(*slot) * 100_000,
            slow_start: slot % 2 == 0,
            stalled: states >> slot & 1 == 1,
            suspect: states & 7 == *slot,
            parallelism: usize::from(states & 3),
            reserved: states >> 3 & 7 == *slot,
            lossy: states >> 2 & 3 != *slot,
        };
        let views: Vec<_> = self.streams.iter().map(view).collect();
        for _ in 0..FRAMES_PER_TURN {
            let Some(transmit) = self.session.poll_transmit(self.now, &views) else { break };
            let is_reset = matches!(transmit.frame.body, Body::Reset { .. });
            assert!(
                views.iter().any(|view| view.id == transmit.stream && (view.has_room || is_reset)),
                "frames use an offered stream, with buffer space except for Reset"
            );
        }
    }

    /// Returns true if the session is over.
    fn settle(&mut self) -> bool {
        self.session.assert_invariants();
        let held: usize = self.session.deliverable().map(Payload::len).sum();
        assert!(held <= 2 * MAX_MEMORY, "the data that waits for the host is bounded by the credit");
        while let Some(event) = self.session.poll_event() {
            if matches!(event, Event::Closed(_)) {
                assert!(self.session.is_closed() && self.session.poll_event().is_none(), "the last event");
                return true;
            }
        }
        false
    }
}
