//! One direction in virtual time: rate, delay, order, loss, queue, memory.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{Stream, frame, opaque};
use proptest::collection::vec;
use proptest::prelude::*;
use sos_linkemu::frames::frame::{Frame, wire_bytes};
use sos_linkemu::shaper::{Limits, Shape, Shaper};
use sos_linkemu::units::{MILLISECOND, Nanos, SECOND};

const LIMITS: Limits = Limits {
    run_time: MILLISECOND,
    coalesce: true,
    max_held_bytes: 64 << 20,
};

/// Largest wire packet in these tests.
const MAX_PACKET: u64 = 1538;

fn shape(rate_bps: u64, delay: Nanos, loss: f64, queue_bytes: u64) -> Shape {
    Shape {
        rate_bps,
        delay,
        loss,
        queue_bytes,
    }
}

/// A TCP frame with source port `mark`, or a frame that starts with `mark`.
fn marked(mark: usize, packets: usize) -> Frame {
    if packets == 0 {
        return opaque(mark as u64, 200);
    }
    let mut stream = Stream::tcp4(vec![3; packets * 1448], 1448);
    stream.source_port = mark as u16;
    frame(stream.super_frame())
}

fn mark_of(bytes: &[u8]) -> u64 {
    if bytes[12..14] == [8, 0] {
        return u64::from(u16::from_be_bytes([bytes[34], bytes[35]]));
    }
    u64::from_be_bytes(bytes[..8].try_into().unwrap())
}

#[derive(Debug, Default)]
struct Outcome {
    /// Time, wire bytes and mark of each delivery.
    deliveries: Vec<(Nanos, u64, u64)>,
    packets: u64,
}

/// Takes all deliveries due up to `until`, each at its due time.
fn advance(shaper: &mut Shaper, until: Nanos, outcome: &mut Outcome) {
    while let Some(at) = shaper.next_due().filter(|at| *at <= until) {
        for delivery in shaper.due(at) {
            let mark = mark_of(&delivery.to_bytes());
            outcome.deliveries.push((at, delivery.wire_bytes(), mark));
            outcome.packets += delivery.packets() as u64;
        }
    }
}

fn assert_rate(rate_bps: u64, run_time: Nanos, deliveries: &[(Nanos, u64, u64)]) {
    let burst = (rate_bps * run_time / 8 / SECOND).max(MAX_PACKET) + MAX_PACKET;
    for (i, first) in deliveries.iter().enumerate() {
        let mut sum = 0;
        for last in &deliveries[i..] {
            sum += last.1;
            let allowed =
                u128::from(rate_bps) * u128::from(last.0 - first.0) / 8 / u128::from(SECOND);
            assert!(
                u128::from(sum) <= allowed + u128::from(burst),
                "{sum} bytes in {} ns",
                last.0 - first.0
            );
        }
    }
}

fn assert_all_accounted(shaper: &Shaper, outcome: &Outcome) {
    let stats = shaper.stats(u64::MAX / 2);
    let dropped =
        stats.dropped.queue + stats.dropped.loss + stats.dropped.down + stats.dropped.memory;
    assert_eq!(stats.received.packets, outcome.packets + dropped);
    assert_eq!(stats.delivered.packets, outcome.packets);
    assert_eq!(
        stats.late_max_us, 0,
        "each delivery was taken at its due time"
    );
    assert_eq!(
        stats.held_bytes, 0,
        "no memory is held without packets in transit"
    );
}

prop_compose! {
    fn shapes()(
        rate in prop_oneof![Just(1_000_000u64), 100_000u64..10_000_000_000],
        delay in 0u64..200 * MILLISECOND,
        loss in prop_oneof![Just(0.0), 0.0..0.5f64],
        queue in 0u64..3_000_000,
    ) -> Shape {
        shape(rate, delay, loss, queue)
    }
}

/// Gaps between arrivals, and packets per frame (0 for a frame that is not IP).
fn arrivals() -> impl Strategy<Value = Vec<(Nanos, usize)>> {
    vec(
        (prop_oneof![Just(0), 0u64..3 * MILLISECOND], 0usize..45),
        1..60,
    )
}

proptest! {
    #[test]
    fn rate_order_and_queue_limit_hold_and_all_packets_are_counted(shape in shapes(), arrivals in arrivals(), seed: u64, run_ms in 0u64..3) {
        let limits = Limits { run_time: run_ms * MILLISECOND, ..LIMITS };
        let mut shaper = Shaper::new(shape, limits, seed);
        let mut outcome = Outcome::default();
        let mut now = 0;
        for (mark, (gap, packets)) in arrivals.into_iter().enumerate() {
            now += gap;
            advance(&mut shaper, now, &mut outcome);
            shaper.enqueue(now, marked(mark, packets));
            let stats = shaper.stats(now);
            prop_assert!(stats.queue_bytes <= shape.queue_bytes.max(MAX_PACKET) + 1);
        }
        advance(&mut shaper, Nanos::MAX, &mut outcome);
        prop_assert!(outcome.deliveries.is_sorted_by_key(|d| d.0));
        prop_assert!(outcome.deliveries.is_sorted_by_key(|d| d.2));
        assert_rate(shape.rate_bps, limits.run_time, &outcome.deliveries);
        assert_all_accounted(&shaper, &outcome);
    }

    #[test]
    fn an_idle_link_delays_by_serialisation_and_delay(rate in 1_000_000u64..1_000_000_000, delay in 0..SECOND, len in 14usize..1514, now in 0..SECOND) {
        let mut shaper = Shaper::new(shape(rate, delay, 0.0, 10_000), LIMITS, 1);
        shaper.enqueue(now, opaque(1, len));
        let on_wire = (wire_bytes(len) * 8 * SECOND).div_ceil(rate);
        let due = shaper.next_due().unwrap();
        // The shaper counts in picoseconds and rounds once more than this formula.
        prop_assert!(due.abs_diff(now + on_wire + delay) <= 1, "{due}");
        prop_assert!(shaper.due(due - 1).is_empty());
        prop_assert_eq!(shaper.due(due).len(), 1);
    }

    #[test]
    fn changing_a_link_loses_and_reorders_no_packet(
        shapes in vec(shapes(), 2..6),
        arrivals in arrivals(),
        seed: u64,
    ) {
        let mut shaper = Shaper::new(shapes[0], LIMITS, seed);
        let mut outcome = Outcome::default();
        let mut now = 0;
        for (mark, (gap, packets)) in arrivals.into_iter().enumerate() {
            now += gap;
            advance(&mut shaper, now, &mut outcome);
            shaper.enqueue(now, marked(mark, packets));
            shaper.reshape(now, shapes[mark % shapes.len()]);
        }
        advance(&mut shaper, Nanos::MAX, &mut outcome);
        prop_assert!(outcome.deliveries.is_sorted_by_key(|d| d.0));
        prop_assert!(outcome.deliveries.is_sorted_by_key(|d| d.2));
        assert_all_accounted(&shaper, &outcome);
    }

    #[test]
    fn memory_is_bounded(shape in shapes(), arrivals in arrivals(), max_kib in 1u64..2000) {
        let limits = Limits { max_held_bytes: max_kib * 1024, ..LIMITS };
        let mut shaper = Shaper::new(shape, limits, 1);
        let mut outcome = Outcome::default();
        for (mark, (_, packets)) in arrivals.into_iter().enumerate() {
            shaper.enqueue(0, marked(mark, packets));
            prop_assert!(shaper.stats(0).held_bytes <= limits.max_held_bytes);
        }
        advance(&mut shaper, Nanos::MAX, &mut outcome);
        assert_all_accounted(&shaper, &outcome);
    }

    #[test]
    fn the_setting_determines_the_loss_rate_and_the_seed_the_lost_packets(seed: u64, percent in 1u32..60) {
        let loss = f64::from(percent) / 100.0;
        let run = |seed| {
            let mut shaper = Shaper::new(shape(1_000_000_000, 0, loss, u64::MAX), LIMITS, seed);
            let mut outcome = Outcome::default();
            for i in 0..250u64 {
                shaper.enqueue(i * MILLISECOND, marked(0, 40));
                advance(&mut shaper, i * MILLISECOND, &mut outcome);
            }
            (shaper.stats(0).dropped.loss, outcome.deliveries)
        };
        let (lost, deliveries) = run(seed);
        let packets = 10_000.0;
        // Six standard deviations of a binomial distribution: one false alarm in 10^9 runs.
        let margin = 6.0 * (packets * loss * (1.0 - loss)).sqrt();
        prop_assert!((lost as f64 - packets * loss).abs() < margin, "{} of {}", lost, packets);
        prop_assert_eq!(run(seed).1, deliveries.clone());
        prop_assert_ne!(run(seed ^ 1).1, deliveries);
    }
}

#[test]
fn a_saturated_link_carries_tcp_at_1448_of_1538() {
    let rate = 500_000_000;
    let mut shaper = Shaper::new(shape(rate, 30 * MILLISECOND, 0.0, 3_000_000), LIMITS, 1);
    let mut outcome = Outcome::default();
    let rounds = 2_000;
    for i in 0..rounds {
        shaper.enqueue(i * MILLISECOND, marked(0, 44));
        advance(&mut shaper, i * MILLISECOND, &mut outcome);
    }
    advance(&mut shaper, rounds * MILLISECOND, &mut outcome);
    let seconds = (rounds - 30) as f64 / 1000.0;
    let goodput = (outcome.packets * 1448 * 8) as f64 / seconds;
    let expected = rate as f64 * 1448.0 / 1538.0;
    assert!(
        (goodput / expected - 1.0).abs() < 0.002,
        "{goodput} of {expected}"
    );
}

#[test]
fn queued_packets_are_sent_at_the_new_rate() {
    // 100 packets of 1538 bytes at 1 Gbit/s take 1230400 ns; after half of them the rate is quartered.
    let mut shaper = Shaper::new(shape(1_000_000_000, 0, 0.0, 1_000_000), LIMITS, 1);
    for mark in 0..100 {
        shaper.enqueue(0, opaque(mark, 1514));
    }
    let half = 50 * 12_304;
    shaper.reshape(half, shape(250_000_000, MILLISECOND, 0.0, 1_000_000));
    let mut outcome = Outcome::default();
    advance(&mut shaper, Nanos::MAX, &mut outcome);
    let at = |i: usize| outcome.deliveries[i].0;
    assert_eq!(at(49), half, "a packet on the line keeps the old delay");
    assert_eq!(at(50), half + 4 * 12_304 + MILLISECOND);
    assert_eq!(at(99), half + 50 * 4 * 12_304 + MILLISECOND);
}

#[test]
fn packets_around_a_loss_are_delivered_as_separate_runs() {
    let mut shaper = Shaper::new(shape(1_000_000_000, 0, 0.1, u64::MAX), LIMITS, 3);
    shaper.enqueue(0, marked(1, 40));
    let lost = shaper.stats(0).dropped.loss;
    assert!(lost > 0);
    let pieces = shaper.due(SECOND);
    assert!(pieces.len() as u64 <= lost + 1);
    assert_eq!(
        pieces.iter().map(|p| p.packets() as u64).sum::<u64>(),
        40 - lost
    );
    assert!(pieces.iter().any(|p| p.packets() > 1));
}

#[test]
fn runs_are_limited_by_the_burst() {
    let run = |run_time| {
        let limits = Limits { run_time, ..LIMITS };
        let mut shaper = Shaper::new(shape(100_000_000, 0, 0.0, u64::MAX), limits, 1);
        shaper.enqueue(0, marked(1, 40));
        let sizes: Vec<usize> = shaper.due(SECOND).iter().map(|d| d.packets()).collect();
        sizes
    };
    assert_eq!(run(MILLISECOND), vec![8; 5]);
    assert_eq!(run(0), vec![1; 40]);
}

#[test]
fn a_cut_line_drops_packets_in_transit_and_new_packets() {
    let mut shaper = Shaper::new(shape(1_000_000_000, SECOND, 0.0, 1_000_000), LIMITS, 1);
    shaper.enqueue(0, marked(1, 10));
    shaper.set_down(true);
    shaper.enqueue(1, marked(2, 5));
    assert_eq!(shaper.next_due(), None);
    assert_eq!(shaper.stats(1).dropped.down, 15);
    assert_eq!(shaper.stats(1).held_bytes, 0);
    shaper.set_down(false);
    shaper.enqueue(2, marked(3, 5));
    let deliveries = shaper.due(2 * SECOND);
    assert_eq!(deliveries.iter().map(|d| d.packets()).sum::<usize>(), 5);
}

#[test]
fn a_flooded_short_queue_does_not_hold_whole_super_frames() {
    let queue = 20 * MAX_PACKET;
    let mut shaper = Shaper::new(shape(10_000_000, 0, 0.0, queue), LIMITS, 1);
    for step in 0..1_000 {
        shaper.enqueue(step * MILLISECOND / 2, marked(1, 44));
        shaper.due(step * MILLISECOND / 2);
    }
    let stats = shaper.stats(500 * MILLISECOND);
    assert!(
        stats.held_bytes < 3 * queue,
        "{} bytes held",
        stats.held_bytes
    );
}
