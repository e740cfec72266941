//! Foundation of the two daemons, `sos-agent` and `sos-node`: parts that do not depend on what a daemon does.
//!
//! 1. [`log::start`] and [`bugs::count_panics`] are called first in `main`.
//! 2. [`files`] reads the configuration file, within a bound, and replaces files atomically.
//! 3. [`document`] parses a configuration document strictly, names the JSON path of an error, and checks the document's hash.
//! 4. [`parts`] merges the parts that documents have in common.
//! 5. [`bugs::fence`] confines a panic to one document, session or message.
//!
//! [`document`], [`parts`], [`canonical`] and [`error`] are pure; the other modules are edges.
#![forbid(unsafe_code)]

pub mod bugs;
pub mod canonical;
pub mod document;
pub mod error;
pub mod files;
pub mod log;
pub mod parts;
