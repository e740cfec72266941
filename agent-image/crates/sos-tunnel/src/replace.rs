//! Streams that are plain and should be encrypted, over TCP and should be over QUIC, or the other way round: because the configuration has
//! changed under them, or because QUIC did not come about and may by now.
//!
//! The dialer dials another one first and lets go of the old one when it stands; sessions send again what was on that. Where the dialer does not
//! (its configuration is older, or it knows no encryption) the acceptor ends plain streams after a while, a few at a time. That one must
//! not be plain does not depend on the other end; that it need not be encrypted does: then it stays as it is.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sos_wire::WelcomeStatus;
use tokio::time::sleep;
use tracing::{debug, info};

use crate::channel::Kind;
use crate::config::{PeerConfig, Protocol, Timing};
use crate::exchange::ExchangeError;
use crate::peer::Peer;
use crate::pool::{Begun, begin, dial_as};
use crate::stream::Stream;
use crate::tunnel::Shared;

/// What a stream towards a peer is to be, unless QUIC has just failed.
pub(crate) fn configured(peer: &PeerConfig) -> Kind {
    match peer.protocol {
        Protocol::Quic => Kind::Quic,
        Protocol::Tcp => over_tcp(peer),
    }
}

/// What a stream over TCP is to be.
pub(crate) fn over_tcp(peer: &PeerConfig) -> Kind {
    if peer.encrypted { Kind::Encrypted } else { Kind::Plain }
}

/// What a stream should be instead of what it is.
fn wished(peer: &Peer, config: &PeerConfig, stream: &Stream) -> Option<Kind> {
    let best = configured(config);
    let next = if best == Kind::Quic && !peer.may_try_quic(stream.label, Instant::now()) {
        over_tcp(config)
    } else {
        best
    };
    // One over QUIC stays although the next one would not be.
    (stream.kind != best && stream.kind != next).then_some(next)
}

/// Comes with a stream that stands in the place of this one, once that is of the wrong kind. Only streams that were dialed are replaced.
pub(crate) async fn replacement(
    shared: &Arc<Shared>,
    peer: &Arc<Peer>,
    stream: &Stream,
    slot: Option<usize>,
) -> Begun {
    let timing = &shared.config.timing;
    if slot.is_none() {
        std::future::pending::<()>().await;
    }
    loop {
        sleep(timing.ping).await;
        let (config, label) = (peer.config(), stream.label);
        let Some(wished) = wished(peer, &config, stream) else { continue };
        let dialed = dial_as(shared, &config, label, wished).await;
        match dialed.and_then(|ready| begin(shared, peer, ready, label)) {
            Ok(begun) => {
                info!(peer = %peer.agent, label, is = ?wished, "a stream takes the place of one of the other kind");
                return begun;
            }
            Err(error) => {
                shared.counters.handshakes_failed.add(1);
                if wished == Kind::Quic {
                    give_up_quic(shared, peer, label, &error);
                }
                debug!(peer = %peer.agent, label, %error, "no stream to take the place of one of the wrong kind");
                sleep(pause(&error, timing)).await;
            }
        }
    }
}

/// QUIC did not come about over a label: its streams are over TCP for a while.
pub(crate) fn give_up_quic(shared: &Shared, peer: &Peer, label: u8, error: &ExchangeError) {
    let timing = &shared.config.timing;
    if let Some(pause) = peer.give_up_quic(label, Instant::now(), (timing.quic, timing.switch)) {
        shared.counters.quic_fallbacks.add(1);
        info!(peer = %peer.agent, label, %error, ?pause, "no stream over QUIC: TCP for now");
    }
}

/// A peer that still wants encryption will want it for a while.
fn pause(error: &ExchangeError, timing: &Timing) -> Duration {
    match error {
        ExchangeError::TurnedAway(WelcomeStatus::EncryptedOnly) => timing.switch,
        _ => timing.backoff_max,
    }
}

/// Comes to an end when a plain stream has stood long enough where there must be none.
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

/// One after the other, so that there is time for others to take their places. As the first go those behind move up, so more and more go at
/// once.
fn patience(timing: &Timing, before: u32) -> Duration {
    timing.switch.saturating_add(timing.ping.saturating_mul(before))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_streams_end_one_after_the_other_and_soon_all_have() {
        let timing = Timing::default();
        let (mut left, mut seconds) = (2_048u32, 0u32);
        while left > 0 {
            let now = timing.switch + timing.ping * seconds;
            let ended = (0..left).filter(|before| patience(&timing, *before) <= now).count();
            assert!(seconds > 0 || ended == 1, "the first goes alone");
            left -= u32::try_from(ended).unwrap();
            seconds += 1;
        }
        assert!(seconds <= 64, "{seconds}");
    }

    #[test]
    fn who_wants_encryption_is_not_asked_often() {
        let timing = Timing::default();
        let turned_away = ExchangeError::TurnedAway(WelcomeStatus::EncryptedOnly);
        assert_eq!(pause(&turned_away, &timing), timing.switch);
        assert_eq!(pause(&ExchangeError::Timeout, &timing), timing.backoff_max);
    }
}
