//! Tests of `share`.

use super::*;

const RTT: Duration = Duration::from_millis(60);
const LOOK: Duration = Duration::from_millis(100);
const MEGABIT: f64 = 125_000.0;

/// A path and four streams that are looked at by turns, beside one that carries next to nothing and knows of no queue.
struct World {
    sharer: Sharer,
    now: Instant,
}

impl World {
    fn new() -> Self {
        let now = Instant::now();
        Self { sharer: Sharer::new(now), now }
    }

    /// A path on which a transfer had 900 Mbit/s, and which is idle again.
    fn known() -> Self {
        let mut world = Self::new();
        world.pass(3.0, 900.0, true);
        world.pass(3.0, 0.0, false);
        world
    }

    /// Time passes in which all streams together have so many Mbit/s.
    fn pass(&mut self, seconds: f64, megabits: f64, queued: bool) {
        let end = self.now + Duration::from_secs_f64(seconds);
        while self.now < end {
            self.now += LOOK;
            let bytes = (megabits * MEGABIT / 4.0 * LOOK.as_secs_f64()) as u64;
            let rtt = if queued { RTT * 2 } else { RTT };
            for stream in 0..4 {
                self.sharer.observe(
                    stream,
                    Look { bytes, elapsed: LOOK, rtt, min_rtt: RTT, under_way: 0, window: 0 },
                    self.now,
                );
            }
            // Its last round trip is from another time.
            let ping = Look {
                bytes: 1448,
                elapsed: LOOK,
                rtt: if queued { RTT } else { RTT * 2 },
                min_rtt: RTT,
                under_way: 0,
                window: 0,
            };
            self.sharer.observe(4, ping, self.now);
        }
    }

    fn limit(&self) -> Option<u64> {
        self.sharer.limit().map(|limit| (limit / MEGABIT).round() as u64)
    }
}

#[test]
fn nothing_is_left_on_a_path_that_is_not_known() {
    let mut world = World::new();
    assert_eq!(world.limit(), None);
    world.pass(0.3, 900.0, true);
    assert_eq!(world.limit(), None);
    world.pass(5.0, 700.0, false);
    assert_eq!(world.limit(), None);
}

#[test]
fn a_transfer_begins_with_a_part_of_what_the_path_had() {
    let mut world = World::known();
    assert_eq!(world.limit(), Some(720), "before its first byte");
    world.pass(0.7, 720.0, false);
    assert_eq!(world.limit(), Some(720));
    world.pass(0.3, 720.0, false);
    assert_eq!(world.limit(), None, "nobody else was there");
}

#[test]
fn what_queues_in_a_beginning_is_somebody_else_who_keeps_a_part() {
    let mut world = World::known();
    world.pass(0.2, 720.0, false);
    world.pass(10.0, 720.0, true);
    assert_eq!(world.limit(), Some(720));
    world.pass(4.0, 720.0, false);
    assert_eq!(world.limit(), Some(720), "it may have lost something");
    world.pass(2.0, 720.0, false);
    assert_eq!(world.limit(), None, "it has gone");
}

#[test]
fn a_full_path_that_carries_less_is_shared() {
    let mut world = World::known();
    world.pass(1.0, 720.0, false);
    world.pass(3.0, 900.0, true);
    assert_eq!(world.limit(), None);
    world.pass(1.0, 840.0, true);
    assert_eq!(world.limit(), None, "it may be an accident");
    world.pass(1.0, 840.0, true);
    assert_eq!(world.limit(), Some(720));
}

#[test]
fn a_host_that_is_slow_is_no_sign_of_others() {
    let mut world = World::known();
    world.pass(1.0, 720.0, false);
    world.pass(10.0, 300.0, false);
    assert_eq!(world.limit(), None);
}

#[test]
fn an_alarm_for_nothing_is_not_repeated_at_once() {
    let mut world = World::known();
    world.pass(1.0, 720.0, false);
    world.pass(2.0, 840.0, true);
    assert_eq!(world.limit(), Some(720));
    world.pass(7.0, 720.0, false);
    assert_eq!(world.limit(), None);
    world.pass(15.0, 840.0, true);
    assert_eq!(world.limit(), None, "twenty seconds");
    world.pass(10.0, 840.0, true);
    assert_eq!(world.limit(), Some(720));
}

#[test]
fn a_path_that_carries_more_is_known_for_more_and_forgotten_after_ten_minutes() {
    let mut world = World::known();
    world.pass(2.0, 950.0, true);
    world.pass(2.0, 0.0, false);
    assert_eq!(world.limit(), Some(760));
    world.pass(600.0, 1.0, false);
    assert_eq!(world.limit(), None);
}

#[test]
fn segments_that_were_held_up_are_not_the_rate_of_a_path() {
    let mut world = World::new();
    world.pass(10.0, 5.0, true);
    world.pass(2.0, 0.0, false);
    assert_eq!(world.limit(), None);
}

#[test]
fn a_path_that_is_shared_for_long_is_looked_at_anew() {
    let mut world = World::known();
    world.pass(30.0, 720.0, true);
    assert_eq!(world.limit(), Some(720));
    world.pass(1.5, 950.0, true);
    assert_eq!(world.limit(), None);
    world.pass(2.0, 840.0, true);
    assert_eq!(world.limit(), Some(760));
}

#[test]
fn a_stream_that_ends_is_forgotten() {
    let mut world = World::known();
    for stream in 0..5 {
        world.sharer.forget(stream);
    }
    assert!(world.sharer.queued_looks.is_empty() && world.sharer.window.streams.is_empty());
}
