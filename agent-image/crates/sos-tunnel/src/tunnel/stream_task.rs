//! Runs one stream: reads, writes, pings, tunes its transport, and delivers its frames.

use std::convert::Infallible;
use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use sos_wire::{Body, Frame};
use tokio::task::JoinHandle;

use crate::callbacks::OpenInfo;
use crate::config::Timing;
use crate::stream::reader::Reader;
use crate::stream::{Stream, StreamEnd};
use crate::transport::channel::Channel;
use crate::tunnel::context::TunnelContext;
use crate::tunnel::migration;
use crate::tunnel::open_session::begin_egress;
use crate::tunnel::peer::{Delivery, Peer};
use crate::tunnel::registration::{Registration, StartedStream};

/// Runs a stream to its end; returns the registered stream that replaces it, if any.
pub(crate) async fn run(
    StartedStream { channel, registration }: StartedStream,
    slot: Option<usize>,
) -> (StreamEnd, Option<StartedStream>) {
    let Registration { context, peer, stream } = &registration;
    let (label, timing) = (stream.label, &context.config.timing);
    let tended = tend(context, &channel, stream);
    let (read, write) = channel.into_split();
    let mut writer = Writer(tokio::spawn({
        let (stream, peer) = (Arc::clone(stream), Arc::clone(peer));
        async move {
            let end = stream.write(write, || _ = peer.wake_next(stream.label)).await;
            stream.close();
            end
        }
    }));
    let mut next = None;
    let end = tokio::select! {
        end = stream.read(Reader::new(read, &context.buffers, &context.pipes, context.epoch), |frames| deliver(context, peer, stream, frames)) => end,
        end = stream.watch(timing) => end,
        end = unwanted(peer, label, slot, timing) => end,
        started = migration::replacement(context, peer, stream, slot) => {
            next = Some(started);
            StreamEnd::Closed
        }
        () = migration::overdue(peer, stream, timing) => StreamEnd::Closed,
        never = tended => match never {},
    };
    drop(registration);
    writer.0.abort();
    // If the writer failed first, its reason is more precise.
    match (end, (&mut writer.0).await) {
        (StreamEnd::Closed, Ok(end)) | (end, _) => (end, next),
    }
}

/// Lets the process control the transport. A failure of the control does not end the stream.
fn tend(
    context: &TunnelContext,
    channel: &Channel,
    stream: &Stream,
) -> impl Future<Output = Infallible> + use<> {
    let tended = match (channel.handle(), channel.peer().map(|peer| peer.to_canonical())) {
        (Ok(handle), Ok(IpAddr::V4(peer))) => {
            let handle = handle.telling(stream.parallelism());
            Some(context.config.sockets.tend(handle, peer, stream.label))
        }
        _ => None,
    };
    async move {
        if let Some(tended) = tended {
            tended.await;
        }
        std::future::pending().await
    }
}

/// A stream's writing task, aborted together with the reading task.
struct Writer(JoinHandle<StreamEnd>);

impl Drop for Writer {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Returns when a dialed stream is no longer wanted.
async fn unwanted(peer: &Peer, label: u8, slot: Option<usize>, timing: &Timing) -> StreamEnd {
    loop {
        tokio::time::sleep(timing.ping).await;
        if slot.is_some_and(|slot| !peer.wants(label, slot)) {
            return StreamEnd::Closed;
        }
    }
}

/// Handles frames about the peer and delivers all other frames to their sessions.
fn deliver(
    context: &Arc<TunnelContext>,
    peer: &Arc<Peer>,
    stream: &Stream,
    frames: Vec<Frame>,
) -> Result<(), StreamEnd> {
    let now = Instant::now();
    for frame in frames {
        match frame.body {
            Body::GoAway => peer.handle_go_away(),
            Body::Willing { changes } => peer.handle_willing(changes),
            Body::Connect { .. } | Body::Connected { .. } | Body::Release { .. } => {
                take_ahead(context, peer, &frame.body);
                continue;
            }
            _ => {
                hand_over(context, peer, stream, frame, now)?;
                continue;
            }
        }
        context.publish_willing();
    }
    Ok(())
}

/// Handles a frame about a session that has not begun.
fn take_ahead(context: &TunnelContext, peer: &Peer, body: &Body) {
    let egress = &context.config.egress;
    match *body {
        Body::Connect { open } => egress.connect_ahead(OpenInfo { peer: peer.agent, open }),
        Body::Connected { session, refused } => egress.connected_ahead(peer.agent, session, refused),
        Body::Release { session } => egress.release(peer.agent, session),
        _ => {}
    }
}

/// Delivers a frame to its session.
fn hand_over(
    context: &Arc<TunnelContext>,
    peer: &Arc<Peer>,
    stream: &Stream,
    frame: Frame,
    now: Instant,
) -> Result<(), StreamEnd> {
    match peer.deliver(stream, frame, now, |open| begin_egress(context, peer, open, stream.rtt())) {
        Delivery::Done => {}
        Delivery::Unknown => context.counters.frames_unknown.add(1),
        Delivery::WrongSide => return Err(StreamEnd::WrongSide),
    }
    Ok(())
}
