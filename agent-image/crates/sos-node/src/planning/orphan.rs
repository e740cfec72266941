//! Decision at SIGTERM: leave the bridge, or remove it because its site has no operator any more. Pure.
//!
//! The node process has no access to the API server, so it cannot see that its site was deleted. It sees two things: the operator's polls
//! of its status, and SIGTERM, which its pod gets when it is replaced, and when it is deleted together with the site. While there is an
//! operator, the operator has the bridge removed before it lets the pod be deleted, so SIGTERM means a replacement, which must not
//! interrupt plain traffic. If no operator has polled for a long time, no other program will have the bridge removed: this process is the last
//! program that can do so.

use std::time::{Duration, Instant};

/// Time without a poll after which the operator counts as gone. A running operator polls every 5 s (`ASK_AGAIN_S` of the operator); with a
/// thousand nodes, every 80 s.
pub const SILENCE: Duration = Duration::from_secs(120);
/// After SIGTERM, another poll is awaited for this part of the silence (20 s): an operator that was down starts with polls, and polls a
/// stopping pod every 2 s.
const LISTENED_PART: u32 = 6;
/// Maximum duration of a removal. It takes two passes, each less than a second unless Open vSwitch hangs.
pub const REMOVAL: Duration = Duration::from_secs(20);

/// The operator, as far as its polls show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operator {
    /// True if an operator has polled this node at any time. An operator that cannot reach the node is no reason to remove anything.
    known: bool,
    /// Time of the last poll, or of the start of this process.
    last: Instant,
}

impl Operator {
    /// The operator at the start of this process. `known`: an earlier process was polled.
    #[must_use]
    pub fn new(known: bool, now: Instant) -> Self {
        Self { known, last: now }
    }

    /// Record a poll.
    pub fn polled(&mut self, at: Instant) {
        *self = Self { known: true, last: self.last.max(at) };
    }

    /// True if the operator was there, and has not polled for the time `silence`.
    #[must_use]
    pub fn is_silent(&self, silence: Duration, now: Instant) -> bool {
        self.known && now.duration_since(self.last) >= silence
    }
}

/// Next step after SIGTERM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Exit; the switch stays as it is.
    Leave,
    /// As [`Step::Leave`], although the operator is gone: the node itself uses the bridge, and would be cut off.
    LeaveInUse,
    /// Wait for another poll.
    Listen,
    /// Remove the bridge and everything else, then exit.
    Remove,
}

/// A stop of this process by SIGTERM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stop {
    /// Time of the signal.
    pub since: Instant,
    /// True if the operator was silent at that time. The start script of Open vSwitch was then told to wait.
    pub silent: bool,
}

impl Stop {
    /// The next step. `in_use`: the bridge's local port has addresses of the node.
    #[must_use]
    pub fn step(&self, operator: &Operator, silence: Duration, in_use: bool, now: Instant) -> Step {
        if !self.silent || operator.last > self.since {
            return Step::Leave;
        }
        if now.duration_since(self.since) < silence / LISTENED_PART {
            return Step::Listen;
        }
        if in_use { Step::LeaveInUse } else { Step::Remove }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTENED: Duration = Duration::from_secs(20);
    const SECOND: Duration = Duration::from_secs(1);

    /// A process that starts, is polled at once if `polled`, and gets SIGTERM after `age`.
    fn stopped(known: bool, polled: bool, age: Duration) -> (Operator, Stop) {
        let start = Instant::now();
        let mut operator = Operator::new(known, start);
        if polled {
            operator.polled(start);
        }
        let since = start + age;
        (operator, Stop { since, silent: operator.is_silent(SILENCE, since) })
    }

    fn steps(operator: &Operator, stop: &Stop, in_use: bool) -> [Step; 3] {
        [Duration::ZERO, LISTENED.saturating_sub(SECOND), LISTENED]
            .map(|after| stop.step(operator, SILENCE, in_use, stop.since + after))
    }

    #[test]
    fn a_replaced_process_leaves_the_bridge_at_once() {
        let (operator, stop) = stopped(true, true, SILENCE - SECOND);
        assert_eq!(steps(&operator, &stop, false), [Step::Leave; 3]);
    }

    #[test]
    fn without_an_operator_the_bridge_is_removed_after_waiting_for_a_poll() {
        for (known, polled) in [(false, true), (true, false), (true, true)] {
            let (operator, stop) = stopped(known, polled, SILENCE);
            assert_eq!(steps(&operator, &stop, false), [Step::Listen, Step::Listen, Step::Remove]);
        }
    }

    #[test]
    fn a_poll_after_sigterm_keeps_the_bridge() {
        let (mut operator, stop) = stopped(true, true, SILENCE);
        operator.polled(stop.since + SECOND);
        assert_eq!(steps(&operator, &stop, false), [Step::Leave; 3]);
    }

    #[test]
    fn a_process_that_was_never_polled_keeps_the_bridge() {
        let (operator, stop) = stopped(false, false, SILENCE * 100);
        assert_eq!(steps(&operator, &stop, false), [Step::Leave; 3]);
    }

    #[test]
    fn a_restarted_process_counts_from_its_start() {
        let (operator, stop) = stopped(true, false, SECOND);
        assert_eq!(steps(&operator, &stop, false), [Step::Leave; 3]);
    }

    #[test]
    fn a_bridge_that_the_node_itself_uses_stays() {
        let (operator, stop) = stopped(true, true, SILENCE);
        assert_eq!(steps(&operator, &stop, true), [Step::Listen, Step::Listen, Step::LeaveInUse]);
    }

    #[test]
    fn a_late_report_of_an_earlier_poll_changes_nothing() {
        let start = Instant::now();
        let mut operator = Operator::new(true, start);
        operator.polled(start + SECOND);
        operator.polled(start);
        assert!(operator.is_silent(SILENCE, start + SECOND + SILENCE));
        assert!(!operator.is_silent(SILENCE, start + SILENCE));
    }
}
