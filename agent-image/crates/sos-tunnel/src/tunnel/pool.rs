//! Pool of streams: a task for every configured slot dials its stream, runs it, and redials.

use std::sync::Arc;
use std::time::Instant;

use tokio::task::JoinSet;
use tracing::debug;

use crate::lock;
use crate::tunnel::context::TunnelContext;
use crate::tunnel::dial::dial;
use crate::tunnel::peer::Peer;
use crate::tunnel::registration::register;
use crate::tunnel::stream_task::run;

/// Starts a task for every slot of a peer that has no task yet.
pub(crate) fn keep_streams(context: &Arc<TunnelContext>, peer: &Arc<Peer>) {
    let mut slots = lock(&context.slots.0);
    for (label, count) in peer.config().streams {
        for slot in 0..count {
            slots.entry((peer.agent, label, slot)).or_insert_with(|| {
                context
                    .runtime
                    .spawn(keep_slot(Arc::clone(context), Arc::clone(peer), label, slot))
                    .abort_handle()
            });
        }
    }
}

/// Keeps a slot's stream open. A panic ends that stream only, not the slot.
async fn keep_slot(context: Arc<TunnelContext>, peer: Arc<Peer>, label: u8, slot: usize) {
    loop {
        // The inner task is aborted together with this one.
        let mut kept = JoinSet::new();
        kept.spawn(keep_stream(Arc::clone(&context), Arc::clone(&peer), label, slot));
        kept.join_next().await;
        tokio::time::sleep(context.config.timing.backoff_max).await;
    }
}

/// Keeps one stream open while it is wanted, until the task is aborted.
async fn keep_stream(context: Arc<TunnelContext>, peer: Arc<Peer>, label: u8, slot: usize) {
    let timing = context.config.timing;
    let mut backoff = timing.backoff_min;
    loop {
        if !peer.wants(label, slot) {
            tokio::time::sleep(timing.backoff_max).await;
            continue;
        }
        let begun = Instant::now();
        let dialed = dial(&context, &peer, label).await;
        match dialed.and_then(|ready| register(&context, &peer, ready, label)) {
            Ok(mut stream) => {
                let end = loop {
                    match run(stream, Some(slot)).await {
                        (_, Some(next)) => stream = next,
                        (end, None) => break end,
                    }
                };
                debug!(peer = %peer.agent, label, slot, %end, "stream ended");
            }
            Err(error) => {
                context.counters.handshakes_failed.add(1);
                debug!(peer = %peer.agent, label, slot, %error, "no stream");
            }
        }
        // A stream that existed for a while is not a dial failure: redial promptly.
        if begun.elapsed() > timing.backoff_max {
            backoff = timing.backoff_min;
        }
        tokio::time::sleep(backoff.mul_f64(rand::random_range(0.5..1.0))).await;
        backoff = (backoff * 2).min(timing.backoff_max);
    }
}
