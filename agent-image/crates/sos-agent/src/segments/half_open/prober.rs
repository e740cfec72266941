//! Sends the segments that detect half-open connections. Edge.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sos_daemon::bugs::fence;
use tokio::time::sleep_until;

use crate::context::AgentContext;

/// Maximum sleep while there is nothing to send.
const IDLE: Duration = Duration::from_secs(1);

/// Sends due segments, forever.
pub async fn probe(context: Arc<AgentContext>) {
    loop {
        let next = context.with_probes(|probes| probes.next_timeout());
        tokio::select! {
            () = sleep_until(next.unwrap_or_else(|| Instant::now() + IDLE).into()) => {}
            () = context.probes_changed.notified() => {}
        }
        fence(|| send_due(&context));
    }
}

fn send_due(context: &AgentContext) {
    while let Some((ends, packet)) = context.with_probes(|probes| probes.poll(Instant::now())) {
        context.hold().write(*ends.own.ip(), |writers| writers.forward(&packet));
    }
}
