//! Registers an established stream with the peer, and removes the stream when its task ends for any reason.

use std::sync::Arc;
use std::time::Instant;

use sos_wire::{Body, WelcomeStatus, Willingness};
use tracing::info;

use crate::stream::handshake::HandshakeError;
use crate::stream::{Stream, of_stream};
use crate::transport::channel::{Channel, Kind};
use crate::tunnel::context::TunnelContext;
use crate::tunnel::dial::Ready;
use crate::tunnel::peer::{Peer, Rejected};

/// A registered stream that is about to run.
pub(crate) struct StartedStream {
    pub(super) channel: Channel,
    pub(super) registration: Registration,
}

/// Registers a stream: sessions may use it from now on.
pub(crate) fn register(
    context: &Arc<TunnelContext>,
    peer: &Arc<Peer>,
    (channel, established): Ready,
    label: u8,
) -> Result<StartedStream, HandshakeError> {
    let (id, now, handle) = ((context.name_stream(), channel.kind()), Instant::now(), channel.handle().ok());
    let stream = Arc::new(Stream::new(id, (label, peer.meter(label, now)), established, handle, now));
    peer.add_stream(Arc::clone(&stream), established.boot).map_err(|unwanted| match unwanted {
        Rejected::OldBoot => HandshakeError::OldBoot,
        Rejected::Plain => HandshakeError::TurnedAway(WelcomeStatus::EncryptedOnly),
    })?;
    context.counters.streams.add(1);
    context.counters.streams_begun.add(1);
    context.counters.streams_encrypted.add(u64::from(stream.kind.is_encrypted()));
    context.counters.streams_quic.add(u64::from(stream.kind == Kind::Quic));
    let registration = Registration { context: Arc::clone(context), peer: Arc::clone(peer), stream };
    context.publish_willing();
    let kind = registration.stream.kind;
    info!(peer = %peer.agent, label, ?kind, rtt = ?established.rtt, "stream established");
    if context.is_draining() {
        registration.stream.push(of_stream(Body::GoAway));
    }
    // Send Willing on each new stream after the first change (spec/frame.md clause 26), even if this agent is willing again: the frames
    // that announced the change on earlier streams may have been lost.
    let changes = context.willingness();
    if changes != Willingness::default() {
        registration.stream.say_willing(changes);
    }
    Ok(StartedStream { channel, registration })
}

/// A registered stream; dropping this removes it from its peer.
pub(crate) struct Registration {
    pub(super) context: Arc<TunnelContext>,
    pub(super) peer: Arc<Peer>,
    pub(super) stream: Arc<Stream>,
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.stream.close();
        self.peer.remove_stream(self.stream.id);
        self.context.counters.streams.sub(1);
        self.context.counters.streams_encrypted.sub(u64::from(self.stream.kind.is_encrypted()));
        self.context.counters.streams_quic.sub(u64::from(self.stream.kind == Kind::Quic));
        self.context.counters.streams_lost.add(1);
        self.context.publish_willing();
    }
}
