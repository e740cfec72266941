//! Load figures of a beacon (spec/beacon.md clause 2): bytes per second and CPU over the last interval.

use std::time::{Duration, Instant};

/// Cumulative counters at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// Time.
    pub at: Instant,
    /// Bytes relayed since start.
    pub bytes: u64,
    /// CPU time used since start.
    pub cpu: Duration,
}

/// Means over the time between two samples.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Load {
    /// Bytes per second.
    pub bytes_per_second: u64,
    /// Thousandths of one core.
    pub cpu_permille: u16,
}

/// The means between two samples; zero if no time has passed.
#[must_use]
pub fn between(earlier: Sample, later: Sample) -> Load {
    let micros = later.at.saturating_duration_since(earlier.at).as_micros();
    if micros == 0 {
        return Load::default();
    }
    let bytes = u128::from(later.bytes.saturating_sub(earlier.bytes));
    let cpu = later.cpu.saturating_sub(earlier.cpu).as_micros();
    Load {
        bytes_per_second: u64::try_from(bytes * 1_000_000 / micros).unwrap_or(u64::MAX),
        cpu_permille: u16::try_from(cpu * 1_000 / micros).unwrap_or(u16::MAX),
    }
}

/// User and system time from `/proc/self/stat` (proc(5)): fields 14 and 15, in ticks. Fields are counted from the last parenthesis, because
/// the second field, the process name, may itself contain spaces and parentheses.
#[must_use]
pub fn parse_cpu(stat: &str, ticks_per_second: u32) -> Option<Duration> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    let ticks = user.checked_add(system)?;
    Some(Duration::from_micros(ticks.checked_mul(1_000_000)? / u64::from(ticks_per_second.max(1))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const STAT: &str = "7 (sos) agent (x) S 1 7 7 0 -1 4194560 1 0 0 0 250 50 0 0 20 0 4 0 9 1 1";

    #[test]
    fn finds_the_times_behind_any_name() {
        assert_eq!(parse_cpu(STAT, 100), Some(Duration::from_secs(3)));
        assert_eq!(parse_cpu("7 (x) S 1", 100), None);
    }

    #[test]
    fn means_are_per_second() {
        let at = Instant::now();
        let one = Sample { at, bytes: 1_000, cpu: Duration::from_millis(10) };
        let two =
            Sample { at: at + Duration::from_millis(500), bytes: 6_000, cpu: Duration::from_millis(510) };
        assert_eq!(between(one, two), Load { bytes_per_second: 10_000, cpu_permille: 1_000 });
        assert_eq!(between(one, one), Load::default());
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_without_a_panic(text in "\\PC{0,80}") {
            let _ = parse_cpu(&text, 100);
        }

        #[test]
        fn never_overflows(bytes: u64, millis in 0u64..1_000_000, cpu in 0u64..1_000_000_000) {
            let at = Instant::now();
            let one = Sample { at, bytes: 0, cpu: Duration::ZERO };
            let two = Sample { at: at + Duration::from_millis(millis), bytes, cpu: Duration::from_millis(cpu) };
            let _ = between(one, two);
        }
    }
}
