//! The search for a path's rate, and what follows it, over a model of a path: one queue, four streams in slow start, and somebody else
//! who begins at the same moment.
#![allow(missing_docs)]

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use sos_agent::share::{Look, Sharer};

const STEP: f64 = 0.000_25;
const SEGMENT: f64 = 1448.0;
const MEGABIT: f64 = 125_000.0;
const STREAMS: usize = 4;
/// How often streams are looked at when nothing is searched.
const LOOK: f64 = 0.1;
/// When transfers begin: streams have stood for a while.
const BEGIN: f64 = 0.3;

/// A connection of cubic, as far as it matters.
#[derive(Debug, Clone)]
struct Flow {
    window: f64,
    threshold: f64,
    under_way: f64,
    most: f64,
    sent: f64,
    arrived: f64,
    lost: f64,
    rtt: f64,
    lowest: f64,
    /// Of the round trip that is counted: where it ends, its lowest round trip, and how many there were.
    round: (f64, f64, u32),
    /// When growth by time began, from which window, and when the window of before is reached.
    epoch: Option<(f64, f64, f64)>,
    cut: f64,
    paced: bool,
    /// Slow start ends with a loss only, as without HyStart.
    eager: bool,
}

impl Flow {
    fn new(segments: f64, rtt: f64) -> Self {
        Self {
            window: segments * SEGMENT,
            threshold: f64::MAX,
            under_way: 0.0,
            most: 0.0,
            sent: 0.0,
            arrived: 0.0,
            lost: 0.0,
            rtt,
            lowest: rtt,
            round: (0.0, f64::MAX, 0),
            epoch: None,
            cut: f64::MIN,
            paced: false,
            eager: false,
        }
    }

    /// What it may send in a step, with a limit of its own.
    fn wants(&mut self, limit: Option<f64>) -> f64 {
        self.paced |= limit.is_some();
        let room = (self.window - self.under_way).max(0.0);
        if !self.paced {
            return room;
        }
        let times = if self.window < self.threshold { 2.0 } else { 1.2 };
        room.min((times * self.window / self.rtt).min(limit.unwrap_or(f64::MAX)) * STEP)
    }

    fn send(&mut self, bytes: f64) {
        self.sent += bytes;
        self.under_way += bytes;
        self.most = self.most.max(self.under_way);
    }

    fn acknowledge(&mut self, bytes: f64, rtt: f64, now: f64) {
        self.under_way -= bytes;
        self.arrived += bytes;
        let weight = 0.875_f64.powf((bytes / SEGMENT / 2.0).max(0.2));
        self.rtt = self.rtt * weight + rtt * (1.0 - weight);
        if self.arrived >= self.round.0 {
            self.round = (self.sent, f64::MAX, 0);
        }
        self.round = (self.round.0, self.round.1.min(rtt), self.round.2 + 1);
        if self.window >= self.threshold {
            self.grow_by_time(bytes, now);
            return;
        }
        if self.window < 2.0 * self.most {
            self.window += bytes;
        }
        let queued = self.round.1 > self.lowest + (self.lowest / 8.0).clamp(0.004, 0.016);
        if queued && !self.eager && self.round.2 >= 8 && self.window >= 16.0 * SEGMENT {
            self.threshold = self.window;
        }
    }

    fn grow_by_time(&mut self, bytes: f64, now: f64) {
        let (began, window, back) = *self.epoch.get_or_insert((now, self.window, 0.0));
        let target = window + 0.4 * SEGMENT * ((now - began - back).powi(3) + back.powi(3));
        // Before the first loss cubic grows by a twentieth in a round trip at least.
        let least = if self.cut == f64::MIN { bytes / 20.0 } else { 0.0 };
        if self.under_way + bytes >= 0.9 * self.window {
            self.window += (target - self.window).clamp(least, bytes / 2.0);
        }
    }

    fn lose(&mut self, bytes: f64, now: f64) {
        self.lost += bytes;
        self.under_way -= bytes;
        if now - self.cut > self.rtt {
            let back = (0.3 * self.window / SEGMENT / 0.4).cbrt();
            self.window *= 0.7;
            (self.cut, self.threshold, self.epoch) = (now, self.window, Some((now, self.window, back)));
        }
    }
}

/// A path: bytes a second, seconds, and round trips of queue.
#[derive(Debug, Clone, Copy)]
struct Shape {
    rate: f64,
    rtt: f64,
    queue: f64,
}

/// What becomes known of a flow a round trip later.
#[derive(Debug, Clone, Copy)]
enum News {
    Arrived { flow: usize, bytes: f64, rtt: f64 },
    Lost { flow: usize, bytes: f64 },
}

#[derive(Debug)]
struct World {
    shape: Shape,
    now: f64,
    flows: Vec<Flow>,
    /// Flow, bytes, sent when.
    queue: VecDeque<(usize, f64, f64)>,
    queued: f64,
    longest: f64,
    news: Vec<VecDeque<(f64, News)>>,
    sharer: Option<Sharer>,
    start: Instant,
    /// Of each stream: looked at when, next when, and what had arrived.
    looks: Vec<(f64, f64, f64)>,
    /// Looks come late by up to so many seconds.
    late: f64,
    /// Bytes a second that the host gives the streams, and what of it waits.
    host: (f64, f64),
    seed: u64,
    searched: f64,
}

impl World {
    fn new(shape: Shape, searches: bool, seed: u64) -> Self {
        let start = Instant::now();
        let mut world = Self {
            shape,
            now: 0.0,
            flows: vec![Flow::new(100.0, shape.rtt); STREAMS],
            queue: VecDeque::new(),
            queued: 0.0,
            longest: 0.0,
            news: vec![VecDeque::new(); 2],
            sharer: searches.then(|| Sharer::new(start)),
            start,
            looks: Vec::new(),
            late: 0.000_5,
            host: (f64::MAX, 0.0),
            seed: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1,
            searched: 0.0,
        };
        let first = world.random() * LOOK;
        world.looks = (0..STREAMS).map(|at| (0.0, first + at as f64 * 0.002, 0.0)).collect();
        world
    }

    /// With somebody else, who has plain buffers.
    fn shared(mut self) -> Self {
        self.flows.push(Flow::new(10.0, self.shape.rtt));
        self
    }

    /// From 0 to 1 (xorshift).
    fn random(&mut self) -> f64 {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        (self.seed >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn pass(&mut self, seconds: f64) {
        let end = self.now + seconds;
        while self.now < end {
            self.now += STEP;
            self.hear();
            if self.now >= BEGIN {
                self.send();
                self.serve();
            }
            (0..STREAMS).for_each(|at| self.look(at));
        }
    }

    fn hear(&mut self) {
        for kind in 0..self.news.len() {
            while self.news[kind].front().is_some_and(|(at, _)| *at <= self.now) {
                match self.news[kind].pop_front().unwrap().1 {
                    News::Arrived { flow, bytes, rtt } => self.flows[flow].acknowledge(bytes, rtt, self.now),
                    News::Lost { flow, bytes } => self.flows[flow].lose(bytes, self.now),
                }
            }
        }
    }

    fn send(&mut self) {
        let limit = self.sharer.as_ref().and_then(Sharer::limit).map(|limit| limit / STREAMS as f64);
        let first = (self.random() * self.flows.len() as f64) as usize;
        self.host.1 = (self.host.1 + self.host.0 * STEP).min(1e6);
        for at in 0..self.flows.len() {
            let flow = (first + at) % self.flows.len();
            let own = flow < STREAMS;
            let mut bytes = self.flows[flow].wants(limit.filter(|_| own));
            if own {
                bytes = bytes.min(self.host.1);
                self.host.1 -= bytes;
            } else {
                bytes = bytes.min((3e6 - self.flows[flow].under_way).max(0.0));
            }
            self.enqueue(flow, bytes);
        }
    }

    fn enqueue(&mut self, flow: usize, bytes: f64) {
        if bytes <= 0.0 {
            return;
        }
        let Shape { rate, rtt, queue } = self.shape;
        self.flows[flow].send(bytes);
        let fits = (rate * rtt * queue + rate * STEP * 2.0 - self.queued).clamp(0.0, bytes);
        if bytes > fits {
            let at = self.now + rtt + self.queued / rate;
            self.news[1].push_back((at, News::Lost { flow, bytes: bytes - fits }));
        }
        if fits > 0.0 {
            self.queue.push_back((flow, fits, self.now));
            self.queued += fits;
            self.longest = self.longest.max(self.queued / rate);
        }
    }

    fn serve(&mut self) {
        let mut left = self.shape.rate * STEP;
        while let Some((flow, waiting, sent)) = self.queue.front_mut().filter(|_| left > 0.0) {
            let bytes = waiting.min(left);
            let rtt = self.shape.rtt + self.now - *sent;
            let news = News::Arrived { flow: *flow, bytes, rtt };
            self.news[0].push_back((self.now + self.shape.rtt, news));
            *waiting -= bytes;
            if *waiting < 1e-6 {
                self.queue.pop_front();
            }
            (left, self.queued) = (left - bytes, self.queued - bytes);
        }
    }

    fn look(&mut self, at: usize) {
        let (before, due, had) = self.looks[at];
        let late = self.random() * self.late;
        let Some(sharer) = self.sharer.as_mut().filter(|_| self.now >= due) else { return };
        let flow = &self.flows[at];
        let look = Look {
            bytes: (flow.arrived - had) as u64,
            elapsed: Duration::from_secs_f64(self.now - before),
            rtt: Duration::from_secs_f64(flow.rtt),
            min_rtt: Duration::from_secs_f64(flow.lowest),
            under_way: flow.under_way as u64,
            window: if flow.window < flow.threshold { u64::MAX } else { flow.window as u64 },
        };
        let searched = sharer.pause().is_some();
        sharer.observe(at as u64, look, self.start + Duration::from_secs_f64(self.now));
        let pause = sharer.pause().map_or(LOOK, |pause| pause.as_secs_f64());
        self.looks[at] = (self.now, self.now + pause + late, flow.arrived);
        if sharer.pause().is_some() {
            self.searched = self.now - BEGIN;
            if !searched {
                self.looks.iter_mut().for_each(|look| look.1 = look.1.min(self.now + STEP));
            }
        }
    }

    /// Megabits a second that have arrived since the beginning, by the streams.
    fn megabits(&self) -> f64 {
        self.flows[..STREAMS].iter().map(|flow| flow.arrived).sum::<f64>() / MEGABIT / (self.now - BEGIN)
    }

    /// And by somebody else.
    fn others(&self) -> f64 {
        self.flows[STREAMS].arrived / MEGABIT / (self.now - BEGIN)
    }

    fn limit(&self) -> Option<f64> {
        self.sharer.as_ref()?.limit().map(|limit| limit / MEGABIT)
    }
}

fn shape(megabits: f64, rtt: f64) -> Shape {
    Shape { rate: megabits * MEGABIT, rtt, queue: 1.0 }
}

const SHAPES: [(f64, f64); 6] =
    [(1000.0, 0.059), (1000.0, 0.164), (500.0, 0.1), (200.0, 0.054), (200.0, 0.16), (100.0, 0.1)];

#[test]
fn the_rate_is_found_before_the_queue_runs_over() {
    let mut found = 0;
    let shapes = SHAPES.into_iter().flat_map(|shape| [(shape, 1), (shape, 2), (shape, 3), (shape, 4)]);
    for ((megabits, rtt), seed) in shapes {
        let mut world = World::new(shape(megabits, rtt), true, seed);
        world.flows.iter_mut().for_each(|flow| flow.eager = seed % 2 == 0);
        world.pass(BEGIN);
        while world.limit().is_none() {
            world.pass(0.001);
        }
        // What slow start had sent in bursts has gone.
        world.pass(rtt * 2.0);
        world.longest = 0.0;
        while world.sharer.as_ref().unwrap().pause().is_some() {
            world.pass(0.001);
        }
        assert!(world.longest < rtt * 0.25, "{megabits} at {rtt}: {}", world.longest / rtt);
        let lost: f64 = world.flows.iter().map(|flow| flow.lost).sum();
        assert!(lost < 1.0, "{megabits} at {rtt}: {lost}");
        // Windows that stopped doubling too early hold it below the rate: then there is nothing to find, and nothing to run over.
        let Some(limit) = world.limit() else { continue };
        found += 1;
        let rate = limit / 0.8;
        assert!((0.93..1.07).contains(&(rate / megabits)), "{megabits} at {rtt}: {rate}");
    }
    assert!(found >= 18, "{found} of 24");
}

#[test]
fn somebody_else_who_begins_then_gets_more_than_beside_slow_start() {
    for seed in 1..=6 {
        let run = |searches| {
            let mut world = World::new(shape(1000.0, 0.059), searches, seed).shared();
            world.pass(20.0);
            world.others()
        };
        let (without, with) = (run(false), run(true));
        assert!(with > 200.0 && with > without * 3.0, "{seed}: {without}, {with}");
    }
}

#[test]
fn a_host_that_is_slow_is_not_the_rate_of_the_path() {
    for seed in 1..=4 {
        let mut world = World::new(shape(1000.0, 0.059), true, seed);
        world.host = (300.0 * MEGABIT, 0.0);
        world.pass(5.0);
        assert_eq!(world.limit(), None);
        assert!(world.megabits() > 270.0, "{}", world.megabits());
    }
}

#[test]
fn looks_that_come_late_end_the_search_without_a_rate() {
    let mut world = World::new(shape(1000.0, 0.059), true, 1);
    world.late = 0.1;
    world.pass(3.0);
    assert!(world.searched < 1.6, "{}", world.searched);
    assert!(world.megabits() > 700.0, "{}", world.megabits());
}

/// It comes to an end, and costs little, wherever it is.
#[test]
fn a_search_ends_and_costs_little() {
    for seed in 1..=40 {
        let mut dice = World::new(shape(1.0, 1.0), false, seed);
        let mut between = |least: f64, most: f64| least * (most / least).powf(dice.random());
        let rate = between(5.0, 1000.0) * MEGABIT;
        let (rtt, queue, late) = (between(0.002, 0.25), between(0.3, 2.0), between(0.000_1, 0.01));
        let run = |searches| {
            let mut world = World::new(Shape { rate, rtt, queue }, searches, seed);
            world.late = late;
            world.pass(8.0);
            world
        };
        let (without, with) = (run(false), run(true));
        let what = format!("{seed}: {} at {rtt}, {queue}, {late}", rate / MEGABIT);
        assert!(with.searched <= 1.2 + 26.0 * rtt, "{what}: {}", with.searched);
        assert!(
            with.megabits() >= 0.9 * without.megabits(),
            "{what}: {} {}",
            with.megabits(),
            without.megabits()
        );
    }
}
