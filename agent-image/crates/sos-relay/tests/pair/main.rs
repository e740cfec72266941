//! Whole sessions in virtual time: for any behavior of streams and hosts, bytes arrive in order and both ends finish.
#![allow(clippy::unwrap_used, missing_docs)]

mod chaos;
mod script;
mod world;

use std::time::Duration;

use proptest::prelude::*;
use script::{AgentScript, HostScript, Leaving, Script, StreamScript};
use sos_relay::{Cause, Compressed};
use sos_wire::EndReason;
use world::{MS, World};

const LIMIT: Duration = Duration::from_secs(120);

fn host() -> impl Strategy<Value = HostScript> {
    let size = prop_oneof![Just(0usize), 1usize..3000, 3000usize..1_500_000];
    let step = prop_oneof![1_000usize..5_000, 50_000usize..400_000];
    (size, step.clone(), step, prop_oneof![3 => Just(0u64), 1 => 0u64..3000]).prop_map(
        |(bytes, write_step, read_step, read_from_ms)| HostScript {
            // A slow host with much data would only prolong the test.
            bytes: bytes.min(write_step.min(read_step) * 2000),
            write_step,
            read_step,
            read_from_ms,
            ..HostScript::default()
        },
    )
}

fn stream(dies: impl Strategy<Value = Option<u64>>) -> impl Strategy<Value = StreamScript> {
    let delay = prop_oneof![0u64..5, 5u64..200];
    (0u64..300, dies, delay, 500usize..100_000, [0u64..3000, 0u64..3000], any::<bool>()).prop_map(
        |(born_ms, dies, delay_ms, rate, notice_ms, lossy)| StreamScript {
            lossy,
            born_ms,
            dies_ms: dies.map(|after| born_ms + after),
            delay_ms,
            rate,
            notice_ms,
            ..StreamScript::default()
        },
    )
}

fn mortal() -> impl Strategy<Value = StreamScript> {
    stream((1u64..4000).prop_map(Some))
}

fn immortal() -> impl Strategy<Value = StreamScript> {
    // These streams may start up to 8 s late, because sessions wait 10 s for a stream.
    (stream(Just(None)), 0u64..8000).prop_map(|(s, born_ms)| StreamScript { born_ms, ..s })
}

fn script(streams: impl Strategy<Value = Vec<StreamScript>>) -> impl Strategy<Value = Script> {
    let block = prop_oneof![Just(0usize), Just(4096), Just(262_144)];
    let budget = prop_oneof![Just(1usize << 30), Just(600 << 10), 2usize << 20..16 << 20];
    ([host(), host()], streams, 0u64..500, block, budget, any::<[bool; 2]>()).prop_map(
        |(hosts, streams, connect_ms, block, budget, compress)| Script {
            compress,
            hosts,
            streams,
            connect_ms,
            block,
            budget,
            ..Script::default()
        },
    )
}

fn surviving() -> impl Strategy<Value = Vec<StreamScript>> {
    (prop::collection::vec(mortal(), 0..5), prop::collection::vec(immortal(), 1..4))
        .prop_map(|(a, b)| a.into_iter().chain(b).collect())
}

proptest! {
    #![proptest_config(ProptestConfig::default())]

    #[test]
    fn everything_arrives_if_a_stream_survives(script in script(surviving())) {
        let (up, down) = (script.hosts[0].bytes, script.hosts[1].bytes);
        let mut world = World::new(script);
        let finished = world.run(LIMIT);
        prop_assert!(finished, "both ends finish: {}", world.describe());
        for end in 0..2 {
            prop_assert_eq!(world.closed(end), Some(EndReason::Finished), "{}", world.describe());
            prop_assert!(world.saw_end(end) && !world.saw_reset(end));
        }
        prop_assert_eq!((world.received(1), world.received(0)), (up, down));
        prop_assert_eq!(world.budget_used(), 0);
    }

    #[test]
    fn a_reset_closes_both_ends(script in script(surviving()), who in 0usize..2, at in 0u64..3000) {
        let mut script = script;
        script.hosts[who].reset_at_ms = Some(at);
        let mut world = World::new(script);
        let finished = world.run(LIMIT);
        // The session at the server may never have started. Then only the client's session ends.
        prop_assert!(finished || (who == 0 && world.closed(1).is_none()));
        let reset = [EndReason::ClientReset, EndReason::ServerReset][who];
        let here = world.closed(who);
        prop_assert!(here == Some(reset) || here == Some(EndReason::Finished) || (who == 1 && here.is_none()), "{:?}", here);
        if here == Some(reset) {
            // The other end may have finished before the reset; otherwise it sees the reset.
            let there = world.closed(1 - who);
            prop_assert!(there.is_none() || there == Some(EndReason::Finished) || world.saw_reset(1 - who), "{:?}", there);
        }
        prop_assert!(!finished || world.budget_used() == 0);
    }

    #[test]
    fn the_loss_of_all_streams_closes_both_ends(script in script(prop::collection::vec(mortal(), 1..5))) {
        let mut script = script;
        // More bytes than the host reads before the last stream fails.
        let host = HostScript { bytes: 300_000, write_step: 300_000, read_step: 1000, read_from_ms: 60_000, ..HostScript::default() };
        script.hosts = [host.clone(), host];
        let mut world = World::new(script);
        let finished = world.run(LIMIT);
        prop_assert_eq!(world.closed(0), Some(EndReason::PeerLost));
        prop_assert!(world.saw_reset(0));
        prop_assert!(finished || world.closed(1).is_none());
        prop_assert!(world.closed(1).is_none() || world.saw_reset(1));
        prop_assert!(world.elapsed() < Duration::from_secs(25));
    }
}

/// A path of a long transfer: one-way delay in milliseconds, and bytes per millisecond.
fn lasting() -> impl Strategy<Value = StreamScript> {
    (1u64..200, 500usize..50_000).prop_map(|(delay_ms, rate)| path(delay_ms, rate, None))
}

/// Duration of a download over these streams, with `memory` bytes for the session at each end.
fn taken(bytes: usize, streams: &[StreamScript], memory: usize) -> Duration {
    let hosts = [fast_host(bytes), fast_host(0)];
    let script =
        Script { hosts, streams: streams.to_vec(), connect_ms: 1, budget: 1 << 30, ..Script::default() };
    let mut world = World::with_memory(script, memory);
    assert!(world.run(LIMIT), "{}", world.describe());
    assert_eq!(world.received(1), bytes);
    world.elapsed()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases / 8, ..ProptestConfig::default() })]

    #[test]
    fn two_paths_are_never_slower_than_the_better_one(
        (a, b) in (lasting(), lasting()), bytes in 100_000usize..8_000_000, memory in prop_oneof![Just(512usize << 10), Just(2 << 20), Just(32 << 20)]
    ) {
        let alone = [&a, &b].map(|s| taken(bytes, std::slice::from_ref(s), memory));
        let (better, both) = (alone[0].min(alone[1]), taken(bytes, &[a.clone(), b.clone()], memory));
        // Opening takes one round trip on each path, and the last acknowledgements may use either path.
        let opening = MS * u32::try_from(2 * (a.delay_ms + b.delay_ms)).unwrap();
        prop_assert!(both <= better * 105 / 100 + opening, "{both:?} with both, {better:?} with the better");
    }

    #[test]
    fn two_paths_carry_the_sum_when_memory_allows((a, b) in (lasting(), lasting())) {
        let bytes = 4000 * (a.rate + b.rate).min(5_000);
        let both = taken(bytes, &[a.clone(), b.clone()], 64 << 20);
        let sum = Duration::from_millis((bytes / (a.rate + b.rate)) as u64);
        let ramp = MS * u32::try_from(12 * a.delay_ms.max(b.delay_ms)).unwrap();
        prop_assert!(both <= sum * 115 / 100 + ramp, "{both:?} with both, {sum:?} at the sum of their rates");
    }
}

#[test]
fn a_black_hole_delays_a_transfer_only_until_its_stall_is_detected() {
    // The failure is reported after 60 s, long after the transfer. Blocks on the dead path move to the other path as soon as the dead path
    // stalls.
    let black = StreamScript { notice_ms: [60_000, 60_000], ..path(30, 10_000, Some(500)) };
    let streams = [black, path(30, 10_000, None)];
    let (alone, both) = (taken(10_000_000, &streams[1..], 32 << 20), taken(10_000_000, &streams, 32 << 20));
    assert!(both < alone + 500 * MS, "{both:?} with a path that turns black, {alone:?} without it");
}

fn fast_host(bytes: usize) -> HostScript {
    HostScript { bytes, write_step: 1 << 20, read_step: 1 << 20, ..HostScript::default() }
}

fn path(delay_ms: u64, rate: usize, dies_ms: Option<u64>) -> StreamScript {
    StreamScript { born_ms: 0, dies_ms, delay_ms, rate, notice_ms: [5, 9], ..StreamScript::default() }
}

/// Duration of a download of 20 MB over two streams of 5 MB/s each, and its compressed part.
fn compressed(noise: bool) -> (Duration, Compressed) {
    let hosts = [HostScript { noise, ..fast_host(20_000_000) }, fast_host(0)];
    let streams = vec![path(20, 5_000, None); 2];
    let compress = [true, false];
    let mut world =
        World::new(Script { hosts, streams, connect_ms: 1, budget: 1 << 30, compress, ..Script::default() });
    assert!(world.run(LIMIT), "{}", world.describe());
    assert_eq!(world.received(1), 20_000_000);
    (world.elapsed(), world.compressed[0])
}

#[test]
fn compressible_data_exceeds_the_rate_of_its_streams() {
    let (took, done) = compressed(false);
    assert!(took < Duration::from_millis(1200), "{took:?}, 2 s without: {done:?}");
    assert!(done.original > 15_000_000 && done.wire < done.original / 2, "{done:?}");
}

#[test]
fn incompressible_data_costs_few_trials() {
    let (took, done) = compressed(true);
    assert!(took < Duration::from_millis(2300), "{took:?}");
    assert!(done.original == 0 && done.cpu < Duration::from_millis(2), "{done:?}");
}

#[test]
fn blocks_on_a_dead_stream_are_retransmitted() {
    let hosts = [fast_host(3_000_000), fast_host(0)];
    let streams = vec![path(40, 10_000, Some(100)), path(40, 10_000, None)];
    let mut world =
        World::new(Script { hosts, streams, connect_ms: 1, budget: 1 << 30, ..Script::default() });
    assert!(world.run(LIMIT));
    assert_eq!(world.received(1), 3_000_000);
    assert!(world.retransmitted[Cause::Died] > 0);
}

#[test]
fn bursts_are_not_sent_over_both_paths() {
    // 150 Mbit/s in bursts every 40 ms, over one path of 200 Mbit/s and 60 ms and another of 200 Mbit/s and 160 ms, with agents that poll
    // at intervals.
    for turn_ms in [0, 20, 60] {
        let host = HostScript { write_step: 750_000, write_every_ms: 40, ..fast_host(60_000_000) };
        let streams = vec![path(30, 25_000, None), path(80, 25_000, None)];
        let hosts = [host, fast_host(0)];
        let script = Script { hosts, streams, connect_ms: 1, budget: 1 << 30, turn_ms, ..Script::default() };
        let mut world = World::with_memory(script, 32 << 20);
        assert!(world.run(LIMIT));
        let late = world.retransmitted[Cause::Late];
        assert!(late <= 60_000_000 / 16 + (2 << 20), "{late} bytes sent twice, polling every {turn_ms} ms");
    }
}

#[test]
fn windows_open_fast_enough_for_a_long_path() {
    // 8 streams of 8 MB/s with 82 ms one-way delay: 10.5 MB in flight. 40 MB take 625 ms at full rate; the ramp may cost as much again.
    let hosts = [fast_host(40_000_000), fast_host(0)];
    let mut script = Script {
        hosts,
        streams: vec![path(82, 8_000, None); 8],
        connect_ms: 1,
        budget: 1 << 30,
        ..Script::default()
    };
    script.hosts[1].read_step = 4 << 20;
    let mut world = World::with_memory(script, 32 << 20);
    assert!(world.run(LIMIT));
    assert!(world.elapsed() < Duration::from_millis(1600), "{:?}", world.elapsed());
}

#[test]
fn a_small_exchange_takes_one_round_trip_and_the_server() {
    let hosts = [fast_host(100), fast_host(1000)];
    let streams = vec![path(50, 100_000, None); 8];
    let mut world =
        World::new(Script { hosts, streams, connect_ms: 1, budget: 1 << 30, ..Script::default() });
    assert!(world.run(LIMIT));
    assert!(world.elapsed() < Duration::from_millis(160), "{:?}", world.elapsed());
}

/// A client that ends its request and reads the answer of 100 kB from `read_from_ms` on. The path's first stream fails, and a second starts
/// later.
fn slow_reader(read_from_ms: u64, agent: Option<AgentScript>) -> World {
    let hosts = [HostScript { read_from_ms, ..fast_host(1000) }, fast_host(100_000)];
    let later = StreamScript { born_ms: 1000, ..path(20, 10_000, None) };
    let streams = vec![path(20, 10_000, Some(900)), later];
    World::new(Script { hosts, streams, connect_ms: 1, budget: 1 << 30, agent, ..Script::default() })
}

#[test]
fn a_slow_host_gets_all_data_after_the_peer_finished_and_restarted() {
    let through = AgentScript { end: 1, at_ms: 500, leaving: Leaving::Through };
    for (read_from_ms, agent) in [(3_000, Some(through)), (25_000, Some(through)), (25_000, None)] {
        let mut world = slow_reader(read_from_ms, agent);
        assert!(world.run(LIMIT), "{}", world.describe());
        assert_eq!(world.closed(0), Some(EndReason::Finished), "{}", world.describe());
        assert_eq!((world.received(0), world.received(1)), (100_000, 1000));
        assert!(world.saw_end(0) && !world.saw_reset(0));
    }
}

#[test]
fn a_slow_host_is_reset_if_the_peer_dies_before_finishing() {
    let mut world = slow_reader(3_000, Some(AgentScript { end: 1, at_ms: 30, leaving: Leaving::Killed }));
    assert!(world.run(LIMIT), "{}", world.describe());
    assert!(world.saw_reset(0) && !world.saw_end(0));
}
