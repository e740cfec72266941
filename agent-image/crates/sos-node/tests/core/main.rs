//! Tests of the core, on values and on a node in memory: `config_vectors` (documents), `parsers`, `plan_properties`, `plan_examples`, `metrics_table`.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails, in its helpers too")]

#[path = "../support/mod.rs"]
mod support;

mod config_vectors;
mod metrics_table;
mod parsers;
mod passes;
mod plan_examples;
mod plan_properties;
