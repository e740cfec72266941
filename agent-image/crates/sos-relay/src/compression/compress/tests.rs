#![allow(clippy::disallowed_methods)] // The start of virtual time; only differences are used.

use super::*;

const MS: Duration = Duration::from_millis(1);
const BLOCK: usize = 64 << 10;

/// A session over streams of `rate` bytes per millisecond. Its blocks shrink to the fraction `share`, and `speed` bytes are compressed per
/// second of CPU time.
struct Run {
    adaptive: Adaptive,
    now: Instant,
    rate: usize,
    share: f64,
    speed: f64,
    /// The host has a backlog.
    eager: bool,
    /// Number of blocks compressed or tried, and of all blocks.
    tried: usize,
    sent: usize,
}

impl Run {
    fn new(share: f64) -> Self {
        let now = Instant::now();
        let adaptive = Adaptive::new(now);
        Self { adaptive, now, rate: 10_000, share, speed: 300e6, eager: true, tried: 0, sent: 0 }
    }

    /// Sends one block after the other.
    fn send(&mut self, blocks: usize) -> &mut Self {
        for _ in 0..blocks {
            let wire = if self.adaptive.wants(BLOCK, self.now) {
                self.tried += 1;
                let wire = (BLOCK as f64 * self.share) as usize;
                let cpu = Duration::from_secs_f64(BLOCK as f64 / self.speed);
                self.adaptive.handle_outcome(Outcome { original: BLOCK, wire, cpu }, self.now);
                wire
            } else {
                self.adaptive.handle_plain(BLOCK);
                BLOCK
            };
            self.sent += 1;
            if self.eager {
                self.adaptive.handle_waiting();
            }
            self.now += Duration::from_secs_f64(wire as f64 / self.rate as f64 / 1e3);
        }
        self
    }
}

#[test]
fn compression_starts_if_streams_are_slow_and_blocks_shrink() {
    let mut run = Run::new(0.3);
    assert!(run.send(100).adaptive.is_on());
    assert!(run.tried >= 80, "after the first window: {}", run.tried);
}

#[test]
fn a_short_block_is_not_tried_and_the_next_full_one_is() {
    let mut run = Run::new(0.3);
    run.adaptive.handle_plain(BLOCK);
    run.adaptive.handle_waiting();
    let later = run.now + 60 * MS;
    assert!(!run.adaptive.wants(MIN_BLOCK, later) && !run.adaptive.wants(LEAST_TRIED - 1, later));
    assert!(run.adaptive.wants(LEAST_TRIED, later));
}

#[test]
fn trials_become_rarer_if_blocks_do_not_shrink() {
    let mut run = Run::new(1.0);
    run.rate = 100_000;
    run.send(100_000);
    assert!(!run.adaptive.is_on());
    assert!((3..100).contains(&run.tried), "{} of {}", run.tried, run.sent);
    let before = run.tried;
    run.rate = 100;
    run.send(1000);
    assert!(run.tried - before < 40, "a slow path: one trial in half a minute, {}", run.tried - before);
}

#[test]
fn a_cpu_slower_than_the_streams_does_not_compress() {
    let mut run = Run::new(0.3);
    run.rate = 200_000;
    assert!(!run.send(10_000).adaptive.is_on());
    assert!(run.tried < 20, "{}", run.tried);
}

#[test]
fn streams_without_a_backlog_get_uncompressed_blocks() {
    let mut run = Run::new(0.3);
    run.eager = false;
    assert_eq!(run.send(10_000).tried, 0);
}

#[test]
fn compression_stops_and_restarts_as_the_data_changes() {
    let mut run = Run::new(0.3);
    run.send(100).share = 1.0;
    assert!(!run.send(50).adaptive.is_on());
    run.share = 0.3;
    assert!(run.send(600).adaptive.is_on(), "after 32 MiB at most");
    run.share = 0.9;
    assert!(run.send(100).adaptive.is_on(), "too small a gain to start, enough to continue");
}

#[test]
fn compression_stops_if_the_host_sends_less_than_streams_carry() {
    let mut run = Run::new(0.3);
    run.send(100).eager = false;
    assert!(run.adaptive.is_on());
    for _ in 0..100 {
        run.send(1).now += 20 * MS;
    }
    assert!(!run.adaptive.is_on());
    run.eager = true;
    assert!(run.send(50).adaptive.is_on(), "restarts immediately when the backlog returns");
}

#[test]
fn compression_stops_when_the_cpu_becomes_slow() {
    let mut run = Run::new(0.3);
    run.send(100).speed = 5e6;
    assert!(!run.send(50).adaptive.is_on());
}

#[test]
fn small_blocks_and_incapable_peers_get_uncompressed_data() {
    let now = Instant::now();
    let mut compression = Compression::new(now);
    let data = |len| Body::Data { offset: 0, payload: vec![7; len].into() };
    compression.adaptive.mode = Mode::On;
    let cpu = || Duration::ZERO;
    assert_eq!(compression.pack(data(500), true, now, cpu), data(500));
    assert_eq!(compression.pack(data(5000), false, now, cpu), data(5000));
    assert_eq!(compression.pack(Body::Fin { offset: 7 }, true, now, cpu), Body::Fin { offset: 7 });
    let packed = compression.pack(data(5000), true, now, cpu);
    assert!(matches!(packed, Body::Compressed { offset: 0, length: 5000, .. }), "{packed:?}");
    let done = compression.take_done();
    assert!(done.original == 5000 && done.wire < 100);
    assert_eq!(compression.take_done(), Compressed::default());
}
