//! Panics: each panic is logged and counted, and ends only the handling of its document or pass, never the process (docs/adr/0048).

use std::panic::{self, AssertUnwindSafe};
use std::sync::LazyLock;

use prometheus_client::metrics::counter::Counter;
use tracing::error;

/// Count of panics in the whole process.
static BUGS: LazyLock<Counter> = LazyLock::new(Counter::default);

/// Panics at a place that the test selects, in the test's thread.
#[cfg(test)]
pub(crate) mod provoked {
    use std::cell::Cell;

    thread_local!(pub(crate) static AT: Cell<Option<&'static str>> = const { Cell::new(None) });

    pub(crate) fn at(place: &'static str) {
        assert!(AT.get() != Some(place), "a bug that the test asks for");
    }
}

/// Counter of panics, for the metrics registry.
#[must_use]
pub fn counter() -> Counter {
    BUGS.clone()
}

/// Log and count panics of all tasks and threads.
pub fn count_panics() {
    panic::set_hook(Box::new(|panic| {
        BUGS.inc();
        let trace = std::backtrace::Backtrace::force_capture();
        error!(%trace, "a bug: {panic}");
    }));
}

/// Run `act` and return its value; `None` after a panic. State shared with `act` must be consistent after each step of `act`, since any
/// step may panic.
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
        assert_eq!(fence(|| panic!("a document that no rule covers")), None::<u8>);
        assert!(std::thread::spawn(|| panic!("in a thread")).join().is_err());
        assert!(counter().get() >= before + 2);
    }
}
