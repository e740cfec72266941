//! Wall-clock time, which appears in messages and in the boot id only.

use std::time::{SystemTime, UNIX_EPOCH};

use sos_wire::BootId;

/// Milliseconds since 1970.
#[must_use]
pub fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Boot id of a process that starts now (spec/README.md clause 7).
#[must_use]
pub fn boot_id() -> BootId {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    BootId(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}
