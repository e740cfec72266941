//! Metrics `sos_node_*`.

use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::status::{PortState, Status};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Kind {
    kind: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByState {
    state: String,
}

/// The metrics of one process.
#[derive(Debug, Default)]
pub struct Metrics {
    passes: Counter,
    failures: Counter,
    changes: Family<Kind, Counter>,
    applied: Gauge,
    generation: Gauge,
    controllers: Gauge,
    ports: Family<ByState, Gauge>,
    pass_seconds: Gauge<f64, AtomicU64>,
    rejected: Counter,
    rejected_segments: Counter,
}

impl Metrics {
    /// Create the metrics and their registry.
    #[must_use]
    pub fn new() -> (Self, Registry) {
        let metrics = Self::default();
        let mut registry = Registry::with_prefix("sos_node");
        registry.register("passes", "Passes over the node", metrics.passes.clone());
        registry.register("failures", "Passes in which something failed", metrics.failures.clone());
        registry.register(
            "bugs",
            "Panics, each confined to one document or pass",
            sos_daemon::bugs::counter(),
        );
        registry.register("changes", "Changes made to the node", metrics.changes.clone());
        registry.register("applied", "1 if the config in force is applied", metrics.applied.clone());
        registry.register(
            "config_generation",
            "Generation of the config in force",
            metrics.generation.clone(),
        );
        registry.register(
            "controllers_connected",
            "Controllers the bridge is connected to",
            metrics.controllers.clone(),
        );
        registry.register("ports", "Ports of the config by state", metrics.ports.clone());
        registry.register(
            "rejected_connections",
            "First packets reset by the node because their service requires more than plain TCP",
            metrics.rejected.clone(),
        );
        registry.register(
            "rejected_segments",
            "Other segments of such connections reset by the node",
            metrics.rejected_segments.clone(),
        );
        registry.register("pass_seconds", "Duration of the last pass", metrics.pass_seconds.clone());
        (metrics, registry)
    }

    /// Count a pass and its duration in seconds.
    pub fn count_pass(&self, made: &[&'static str], failed: bool, seconds: f64) {
        self.passes.inc();
        if failed {
            self.failures.inc();
        }
        for kind in made {
            self.changes.get_or_create(&Kind { kind: (*kind).to_owned() }).inc();
        }
        self.pass_seconds.set(seconds);
    }

    /// Export a status.
    pub fn show(&self, status: &Status) {
        self.applied.set(i64::from(status.applied));
        self.rejected.inner().store(status.rejected.connections, Ordering::Relaxed);
        self.rejected_segments.inner().store(status.rejected.segments, Ordering::Relaxed);
        self.generation.set(i64::try_from(status.generation).unwrap_or(i64::MAX));
        let connected = status.controllers.iter().filter(|controller| controller.connected).count();
        self.controllers.set(i64::try_from(connected).unwrap_or(i64::MAX));
        for state in PortState::ALL {
            let count = status.ports.iter().filter(|port| port.state == state).count();
            let label = ByState { state: format!("{state:?}") };
            self.ports.get_or_create(&label).set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }
}
