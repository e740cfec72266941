//! Replaces streams of the wrong kind: plain streams if the configuration now requires encryption, TCP streams if it selects QUIC, or the
//! reverse. Also replaces TCP streams after QUIC has failed, because QUIC may work by now.
//!
//! The dialer establishes the new stream first, then closes the old one; sessions retransmit the bytes in flight on the old stream. If the
//! dialer does not do this (because its configuration is older, or it does not support encryption), the acceptor closes plain streams after
//! a while, a few at a time. Either end alone can enforce encryption. An encrypted stream is replaced by a plain one only once both ends'
//! configurations allow plain streams.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sos_wire::WelcomeStatus;
use tokio::time::sleep;
use tracing::{debug, info};

use crate::config::{PeerConfig, Timing};
use crate::stream::Stream;
use crate::stream::handshake::HandshakeError;
use crate::transport::channel::Kind;
use crate::tunnel::context::TunnelContext;
use crate::tunnel::dial::{configured, dial_as, give_up_quic, over_tcp};
use crate::tunnel::peer::Peer;
use crate::tunnel::registration::{StartedStream, register};

/// The kind that should replace a stream's kind, if any.
fn wished(peer: &Peer, config: &PeerConfig, stream: &Stream) -> Option<Kind> {
    let best = configured(config);
    let next = if best == Kind::Quic && !peer.may_try_quic(stream.label, Instant::now()) {
        over_tcp(config)
    } else {
        best
    };
    // A QUIC stream stays even if the next stream would use TCP.
    (stream.kind != best && stream.kind != next).then_some(next)
}

/// Waits until this stream is of the wrong kind, and returns its replacement. Only dialed streams are replaced.
pub(crate) async fn replacement(
    context: &Arc<TunnelContext>,
    peer: &Arc<Peer>,
    stream: &Stream,
    slot: Option<usize>,
) -> StartedStream {
    let timing = &context.config.timing;
    if slot.is_none() {
        std::future::pending::<()>().await;
    }
    loop {
        sleep(timing.ping).await;
        let (config, label) = (peer.config(), stream.label);
        let Some(wished) = wished(peer, &config, stream) else { continue };
        let dialed = dial_as(context, &config, label, wished).await;
        match dialed.and_then(|ready| register(context, peer, ready, label)) {
            Ok(started) => {
                info!(peer = %peer.agent, label, is = ?wished, "stream replaced by one of another kind");
                return started;
            }
            Err(error) => {
                context.counters.handshakes_failed.add(1);
                if wished == Kind::Quic {
                    give_up_quic(context, peer, label, &error);
                }
                debug!(peer = %peer.agent, label, %error, "cannot replace a stream of the wrong kind");
                sleep(pause(&error, timing)).await;
            }
        }
    }
}

/// Pause before the next attempt to replace a stream. A peer that refuses plain streams will do so for a while, so the pause is longer
/// then.
fn pause(error: &HandshakeError, timing: &Timing) -> Duration {
    match error {
        HandshakeError::TurnedAway(WelcomeStatus::EncryptedOnly) => timing.switch,
        _ => timing.backoff_max,
    }
}

/// Returns when a plain stream has existed for too long although encryption is required.
pub(crate) async fn overdue(peer: &Arc<Peer>, stream: &Stream, timing: &Timing) {
    let mut since = None;
    loop {
        sleep(timing.ping).await;
        if stream.kind.is_encrypted() || !peer.config().encrypted {
            since = None;
            continue;
        }
        let since = *since.get_or_insert_with(Instant::now);
        let before = u32::try_from(peer.plain_before(stream.id)).unwrap_or(u32::MAX);
        if since.elapsed() >= patience(timing, before) {
            info!(peer = %peer.agent, label = stream.label, "a plain stream ends: this pair of sites is encrypted");
            return;
        }
    }
}

/// Deadline of a plain stream with `before` older plain streams. Streams close one after the other, so that there is time to replace them.
/// Each stream that closes lowers `before` of the younger streams and so shortens their time, so streams close faster and faster.
fn patience(timing: &Timing, before: u32) -> Duration {
    timing.switch.saturating_add(timing.ping.saturating_mul(before))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_streams_are_closed_one_after_the_other_within_a_bounded_time() {
        let timing = Timing::default();
        let (mut left, mut seconds) = (2_048u32, 0u32);
        while left > 0 {
            let now = timing.switch + timing.ping * seconds;
            let ended = (0..left).filter(|before| patience(&timing, *before) <= now).count();
            assert!(seconds > 0 || ended == 1, "the first stream closes alone");
            left -= u32::try_from(ended).unwrap();
            seconds += 1;
        }
        assert!(seconds <= 64, "{seconds}");
    }

    #[test]
    fn a_peer_that_requires_encryption_is_retried_rarely() {
        let timing = Timing::default();
        let turned_away = HandshakeError::TurnedAway(WelcomeStatus::EncryptedOnly);
        assert_eq!(pause(&turned_away, &timing), timing.switch);
        assert_eq!(pause(&HandshakeError::Timeout, &timing), timing.backoff_max);
    }
}
