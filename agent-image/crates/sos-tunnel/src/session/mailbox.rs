//! Mailbox of a session's task: frames, and changes of its streams.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};

use sos_relay::StreamId;
use sos_wire::{Body, EndReason};

use crate::lock;
use crate::stream::Stream;

/// Maximum number of frames in one mailbox, besides the limit on their bytes: a peer that follows the protocol stays far below.
const MAX_FRAMES: usize = 65_536;

/// A message to a session, in the order of events.
#[derive(Debug)]
pub(crate) enum Mail {
    Frame(Body),
    StreamUp(Arc<Stream>),
    StreamClosed(StreamId),
    PeerLost,
    /// State of the connection to the session's host.
    Host(HostNotice),
    Abort(EndReason),
}

/// Notice about a session's host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HostNotice {
    /// The host is about to send a keepalive probe.
    Expected,
    /// The host's probe was left unanswered.
    Unanswered,
    /// The host leaves data unacknowledged.
    Silent,
    /// The host has resumed acknowledging.
    Answers,
    /// The host's packets have marks that differ from those known to the session.
    Marked,
}

#[derive(Debug, Default)]
struct Inbox {
    mail: VecDeque<Mail>,
    frames: usize,
    bytes: usize,
    waker: Option<Waker>,
    overflowed: bool,
}

/// One session's mailbox, bounded by the credit that the session has granted; if the peer sends more, the session is aborted.
#[derive(Debug)]
pub(crate) struct Mailbox {
    inbox: Mutex<Inbox>,
    max_bytes: usize,
    /// The session waits at the peer for buffer space on a stream.
    waiting: AtomicBool,
    /// The session uses every stream, including reserved ones.
    all_streams: AtomicBool,
    /// The session is over.
    closed: AtomicBool,
}

impl Mailbox {
    pub(crate) fn new(max_bytes: usize) -> Arc<Self> {
        Arc::new(Self {
            inbox: Mutex::default(),
            max_bytes,
            waiting: AtomicBool::new(false),
            all_streams: AtomicBool::new(true),
            closed: AtomicBool::new(false),
        })
    }

    pub(crate) fn push(&self, mail: Mail) {
        let mut inbox = lock(&self.inbox);
        if let Mail::Frame(body) = &mail {
            let payload = carried(body);
            if inbox.overflowed || inbox.frames >= MAX_FRAMES || inbox.bytes + payload > self.max_bytes {
                inbox.overflowed = true;
            } else {
                inbox.frames += 1;
                inbox.bytes += payload;
                inbox.mail.push_back(mail);
            }
        } else {
            inbox.mail.push_back(mail);
        }
        let waker = inbox.waker.take();
        drop(inbox);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Wakes the session's task.
    pub(crate) fn wake(&self) {
        let waker = lock(&self.inbox).waker.take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Takes the mail, and registers the waker. `Err` if the peer has sent more than allowed.
    pub(crate) fn take(&self, into: &mut VecDeque<Mail>, cx: &Context<'_>) -> Result<(), Overflow> {
        let mut inbox = lock(&self.inbox);
        into.append(&mut inbox.mail);
        (inbox.frames, inbox.bytes) = (0, 0);
        if inbox.waker.as_ref().is_none_or(|waker| !waker.will_wake(cx.waker())) {
            inbox.waker = Some(cx.waker().clone());
        }
        if inbox.overflowed { Err(Overflow) } else { Ok(()) }
    }

    /// Starts waiting for buffer space; returns true if the session was not waiting before. `all_streams`: the session now uses every
    /// stream.
    pub(crate) fn start_waiting(&self, all_streams: bool) -> bool {
        self.all_streams.store(all_streams, Ordering::Release);
        !self.waiting.swap(true, Ordering::AcqRel)
    }

    /// True if the session used every stream when it last started to wait.
    pub(crate) fn uses_all_streams(&self) -> bool {
        self.all_streams.load(Ordering::Acquire)
    }

    pub(crate) fn stop_waiting(&self) {
        self.waiting.store(false, Ordering::Release);
    }

    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
}

/// Payload bytes of a frame; compressed bytes count with their original length, as for the credit.
fn carried(body: &Body) -> usize {
    match body {
        Body::Data { payload, .. } => payload.len(),
        Body::Compressed { length, .. } => usize::try_from(*length).unwrap_or(usize::MAX),
        _ => 0,
    }
}

/// The peer has sent more frames than the protocol allows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Overflow;
