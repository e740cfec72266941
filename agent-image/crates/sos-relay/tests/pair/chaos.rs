//! Chaos tests: streams and paths are cut, with and without notice; hosts stall, end early or reset; agents leave; other sessions reserve
//! memory. Every session ends with the right bytes or with a reset that both ends see.
//!
//! Each run has a seed. A failing run prints its seed and the smallest script that fails in the same way. `SOS_CHAOS_SEED=<seed> cargo test
//! -p sos-relay chaos` repeats it; `SOS_CHAOS_RUNS` sets the number of runs.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{FileFailurePersistence, RngAlgorithm, TestCaseResult, TestRng, TestRunner};
use sos_wire::EndReason;

use crate::script::{AgentScript, HostScript, Leaving, Neighbour, Script, Span, StreamScript};
use crate::world::World;

const RUNS: u64 = 256;
/// Faults start before this time.
const BUSY_MS: u64 = 2000;
/// Silence after which a stream is dead (frame.md clause 12).
const SILENT_MS: u64 = 5000;
/// Time without a stream that sessions survive in any state: they wait 10 s for a stream (frame.md clause 11).
const SURVIVED_MS: u64 = 9000;
/// Maximum time from the last fault to the end. It covers one wait for a stream and the slowest hosts and streams.
const AFTERMATH: Duration = Duration::from_secs(30);
const NEVER: u64 = u64::MAX;

/// A fault of all streams of a path, or of one stream.
#[derive(Debug, Clone)]
struct Cut {
    at_ms: u64,
    /// Both ends are notified immediately. Otherwise they detect the fault themselves, unless the fault ends before they do.
    told: bool,
    lasts_ms: u64,
    notice_ms: [u64; 2],
    /// The fault affects only this stream of the path.
    only: Option<usize>,
}

#[derive(Debug, Clone)]
struct Path {
    delay_ms: u64,
    rate: usize,
    born_ms: u64,
    streams: usize,
    lossy: bool,
    cuts: Vec<Cut>,
}

fn span(from: impl Strategy<Value = u64>, len: impl Strategy<Value = u64>) -> impl Strategy<Value = Span> {
    (from, len).prop_map(|(from_ms, len)| Span { from_ms, until_ms: from_ms + len })
}

fn host() -> impl Strategy<Value = HostScript> {
    let bytes = prop_oneof![1 => Just(0usize), 1 => 1usize..3000, 5 => 3000usize..3_000_000];
    let step = || prop_oneof![1_000usize..5_000, 50_000usize..400_000];
    let stalls = prop::collection::vec(span(0u64..BUSY_MS, 1u64..3000), 0..3);
    let eof = prop_oneof![3 => Just(0u64), 1 => 0u64..BUSY_MS];
    let reset = prop_oneof![5 => Just(None), 1 => (0u64..BUSY_MS).prop_map(Some)];
    (bytes, any::<bool>(), step(), step(), stalls, eof, reset).prop_map(
        |(bytes, noise, write_step, read_step, read_pauses, eof_at_ms, reset_at_ms)| HostScript {
            noise,
            // A slow host with much data would only prolong the test.
            bytes: bytes.min(write_step.min(read_step) * 1000),
            write_step,
            read_step,
            read_pauses,
            eof_at_ms,
            reset_at_ms,
            ..HostScript::default()
        },
    )
}

fn cut() -> impl Strategy<Value = Cut> {
    let lasts = prop_oneof![2 => 20u64..1500, 2 => 1500u64..9000, 1 => Just(NEVER)];
    let only = prop_oneof![1 => Just(None), 1 => (0usize..4).prop_map(Some)];
    (0u64..BUSY_MS, any::<bool>(), lasts, [0u64..300, 0u64..300], only)
        .prop_map(|(at_ms, told, lasts_ms, notice_ms, only)| Cut { at_ms, told, lasts_ms, notice_ms, only })
}

fn path() -> impl Strategy<Value = Path> {
    let born = prop_oneof![2 => 0u64..50, 1 => 0u64..BUSY_MS];
    let cuts = prop::collection::vec(cut(), 0..4);
    (0u64..150, prop_oneof![500usize..3000, 3000usize..30_000], born, 1usize..5, any::<bool>(), cuts)
        .prop_map(|(delay_ms, rate, born_ms, streams, lossy, mut cuts)| {
            cuts.sort_by_key(|cut| cut.at_ms);
            Path { delay_ms, rate, born_ms, streams, lossy, cuts }
        })
}

fn agent() -> impl Strategy<Value = Option<AgentScript>> {
    let leaving = prop_oneof![Just(Leaving::Drained), Just(Leaving::Killed), Just(Leaving::Through)];
    let agent = (0usize..2, 0u64..BUSY_MS, leaving)
        .prop_map(|(end, at_ms, leaving)| Some(AgentScript { end, at_ms, leaving }));
    prop_oneof![4 => Just(None), 1 => agent]
}

fn neighbour() -> impl Strategy<Value = Neighbour> {
    (0usize..2, span(0u64..BUSY_MS, 1u64..BUSY_MS), 1usize..100).prop_map(|(end, lives, percent)| Neighbour {
        end,
        lives,
        percent,
    })
}

fn chaos() -> impl Strategy<Value = Script> {
    let block = prop_oneof![Just(0usize), Just(4096), Just(262_144)];
    let budget = prop_oneof![Just(1usize << 30), Just(600 << 10), 2usize << 20..16 << 20];
    let paths = prop::collection::vec(path(), 1..4);
    let neighbours = prop_oneof![2 => Just(vec![]), 1 => prop::collection::vec(neighbour(), 1..5)];
    ([host(), host()], paths, 0u64..500, block, budget, any::<[bool; 2]>(), agent(), neighbours).prop_map(
        |(hosts, paths, connect_ms, block, budget, compress, agent, neighbours)| Script {
            compress,
            hosts,
            streams: paths.iter().flat_map(streams).collect(),
            connect_ms,
            block,
            budget,
            agent,
            neighbours,
            ..Script::default()
        },
    )
}

fn streams(path: &Path) -> impl Iterator<Item = StreamScript> {
    (0..path.streams).flat_map(|number| lives(path, number))
}

/// Consecutive streams of one stream slot.
fn lives(path: &Path, number: usize) -> Vec<StreamScript> {
    let begin = |born_ms| StreamScript {
        born_ms,
        delay_ms: path.delay_ms,
        rate: path.rate,
        lossy: path.lossy,
        ..StreamScript::default()
    };
    let (mut found, mut now) = (Vec::new(), begin(path.born_ms));
    for cut in path.cuts.iter().filter(|cut| cut.only.is_none_or(|only| only == number)) {
        let busy_until = now.pauses.last().map_or(now.born_ms, |pause| pause.until_ms);
        if cut.at_ms < busy_until {
            continue;
        }
        if !cut.told && cut.lasts_ms < SILENT_MS {
            now.pauses.push(Span { from_ms: cut.at_ms, until_ms: cut.at_ms + cut.lasts_ms });
            continue;
        }
        let untold_ms = if cut.told { 0 } else { SILENT_MS };
        now.dies_ms = Some(cut.at_ms);
        now.notice_ms = cut.notice_ms.map(|late| untold_ms + late);
        found.push(now);
        let Some(again_ms) = cut.at_ms.checked_add(cut.lasts_ms.max(untold_ms)) else { return found };
        now = begin(again_ms);
    }
    found.push(now);
    found
}

/// True if the script has no reset, no leaving agent and no neighbor, and neither end lacks a stream for long.
fn survives(script: &Script) -> bool {
    let peaceful = script.agent.is_none() && script.hosts.iter().all(|host| host.reset_at_ms.is_none());
    peaceful && script.neighbours.is_empty() && (0..2).all(|end| covered(&script.streams, end))
}

fn covered(streams: &[StreamScript], end: usize) -> bool {
    let mut lives: Vec<_> = streams
        .iter()
        .map(|s| (s.born_ms, s.dies_ms.map_or(NEVER, |dies| dies + s.notice_ms[end])))
        .collect();
    lives.sort_unstable();
    let mut until = 0;
    for (born, known_until) in lives {
        if born > until + SURVIVED_MS {
            return false;
        }
        until = until.max(known_until);
        if until == NEVER {
            return true;
        }
    }
    false
}

/// End of the last fault.
fn troubles_end(script: &Script) -> Duration {
    let pauses = |spans: &[Span]| spans.iter().map(|span| span.until_ms).max().unwrap_or(0);
    let hosts = script.hosts.iter().map(|h| pauses(&h.read_pauses).max(h.eof_at_ms));
    let streams = script.streams.iter().map(|s| {
        let death = s.dies_ms.map_or(0, |dies| dies + s.notice_ms.iter().max().unwrap());
        death.max(s.born_ms).max(pauses(&s.pauses))
    });
    let neighbours = script.neighbours.iter().map(|n| n.lives.until_ms);
    Duration::from_millis(hosts.chain(streams).chain(neighbours).max().unwrap().max(BUSY_MS))
}

fn play(script: Script) -> TestCaseResult {
    let (limit, whole) = (troubles_end(&script) + AFTERMATH, survives(&script));
    let bytes = [script.hosts[1].bytes, script.hosts[0].bytes];
    let mut world = World::new(script);
    let ended = world.run_to_rest(limit + AFTERMATH);
    prop_assert!(ended <= limit, "over after {ended:?}, not within {limit:?}: {}", world.describe());
    prop_assert!(!world.runs(0) && !world.runs(1), "no session is left: {}", world.describe());
    prop_assert_eq!(world.budget_used(), 0, "all memory is released");
    for (end, expected) in bytes.into_iter().enumerate() {
        check_end(&world, end, expected)?;
        prop_assert!(!whole || world.closed(end) == Some(EndReason::Finished), "{}", world.describe());
    }
    Ok(())
}

/// Checks that a clean end follows all bytes, and that a reset is seen at both ends.
fn check_end(world: &World, end: usize, expected: usize) -> TestCaseResult {
    let (there, tale) = (1 - end, world.describe());
    prop_assert!(
        !world.saw_end(end) || world.received(end) == expected,
        "a clean end, but bytes are missing: {tale}"
    );
    match world.closed(end) {
        Some(EndReason::Finished) => {
            prop_assert!(
                world.saw_end(end) && !world.saw_reset(end),
                "closed as Finished, but the host saw no end of stream or saw a reset: {tale}"
            );
        }
        Some(_) => {
            let knows = |end| world.saw_reset(end) || world.has_reset(end);
            prop_assert!(knows(end), "the session was reset, but its own host did not see a reset: {tale}");
            // The other end may have finished before the reset, after it received all bytes of this end. At the server, the session may never have
            // started.
            let through = world.closed(there) == Some(EndReason::Finished) && world.said_all(end);
            let unborn = there == 1 && world.closed(there).is_none();
            prop_assert!(
                knows(there) || through || unborn,
                "the session was reset, but the host at the other end did not see a reset: {tale}"
            );
        }
        None => prop_assert!(end == 1 && world.received(1) == 0, "the client's session never ended: {tale}"),
    }
    Ok(())
}

fn run(seed: u64) {
    let config = ProptestConfig {
        cases: 1,
        max_shrink_iters: 500,
        // No file of failures is needed: the seed is printed and determines the whole run.
        failure_persistence: None::<Box<FileFailurePersistence>>.map(|none| none as _),
        ..ProptestConfig::default()
    };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    if let Err(error) = TestRunner::new_with_rng(config, rng).run(&chaos(), play) {
        panic!("{error}\nSOS_CHAOS_SEED={seed} repeats this run");
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

#[test]
fn chaos_ends_with_the_right_bytes_or_a_reset_that_both_see() {
    if let Some(seed) = number("SOS_CHAOS_SEED") {
        return run(seed);
    }
    let first = RandomState::new().hash_one(0);
    (0..number("SOS_CHAOS_RUNS").unwrap_or(RUNS)).for_each(|i| run(first.wrapping_add(i)));
}
