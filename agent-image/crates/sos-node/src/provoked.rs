//! Panics that tests provoke, to show that a bug is confined.

use std::cell::Cell;

thread_local!(pub(crate) static AT: Cell<Option<&'static str>> = const { Cell::new(None) });

/// Panics if the test has selected this place in its thread.
pub(crate) fn at(place: &'static str) {
    assert!(AT.get() != Some(place), "a bug that the test asks for");
}
