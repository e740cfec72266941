//! Panics: each one is logged and counted, and ends only the affected document, session or message, never the process (docs/adr/0048).
//!
//! A panic in a task of its own ends that task. Code that serves many documents or sessions uses a [`fence`].

use std::panic::{self, AssertUnwindSafe};
use std::sync::LazyLock;

use prometheus_client::metrics::counter::Counter;
use tracing::error;

/// Count of panics in the whole process.
static BUGS: LazyLock<Counter> = LazyLock::new(Counter::default);

/// Count of panics, for the registry of metrics.
#[must_use]
pub fn counter() -> Counter {
    BUGS.clone()
}

/// Logs and counts the panics of all tasks and threads.
pub fn count_panics() {
    panic::set_hook(Box::new(|panic| {
        BUGS.inc();
        let trace = std::backtrace::Backtrace::force_capture();
        error!(%trace, "a bug: {panic}");
    }));
}

/// Returns the value of `act`, or `None` after a panic. Shared state must be consistent after each step of `act`, since any step may panic.
pub fn fence<T>(act: impl FnOnce() -> T) -> Option<T> {
    panic::catch_unwind(AssertUnwindSafe(act)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_counted_and_the_process_continues() {
        count_panics();
        let before = counter().get();
        assert_eq!(fence(|| 7), Some(7));
        assert_eq!(fence(|| panic!("a frame that no rule covers")), None::<u8>);
        assert!(std::thread::spawn(|| panic!("in a thread")).join().is_err());
        assert!(counter().get() >= before + 2);
    }
}
