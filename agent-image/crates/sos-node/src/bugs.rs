//! Panics: each is logged and counted, and ends what it was about, never the process (docs/adr/0048): a document or a look at the node.

use std::panic::{self, AssertUnwindSafe};
use std::sync::LazyLock;

use prometheus_client::metrics::counter::Counter;
use tracing::error;

/// Of the process, as panics are.
static BUGS: LazyLock<Counter> = LazyLock::new(Counter::default);

/// Panics where a test asks for it, in its thread.
#[cfg(test)]
pub(crate) mod provoked {
    use std::cell::Cell;

    thread_local!(pub(crate) static AT: Cell<Option<&'static str>> = const { Cell::new(None) });

    pub(crate) fn at(place: &'static str) {
        assert!(AT.get() != Some(place), "a bug that the test asks for");
    }
}

/// Count of panics, for the registry of metrics.
#[must_use]
pub fn counter() -> Counter {
    BUGS.clone()
}

/// Has panics logged and counted, in whatever task or thread they happen.
pub fn count_panics() {
    panic::set_hook(Box::new(|panic| {
        BUGS.inc();
        let trace = std::backtrace::Backtrace::force_capture();
        error!(%trace, "a bug: {panic}");
    }));
}

/// The value of `act`; `None` after a panic. Whatever is shared must be whole at each step of `act`, as behind locks that are poisoned.
pub fn fence<T>(act: impl FnOnce() -> T) -> Option<T> {
    panic::catch_unwind(AssertUnwindSafe(act)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_counted_and_what_follows_goes_on() {
        count_panics();
        let before = counter().get();
        assert_eq!(fence(|| 7), Some(7));
        assert_eq!(fence(|| panic!("a document that no rule covers")), None::<u8>);
        assert!(std::thread::spawn(|| panic!("in a thread")).join().is_err());
        assert!(counter().get() >= before + 2);
    }
}
