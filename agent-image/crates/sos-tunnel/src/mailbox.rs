//! How streams and the tunnel reach the task that owns a session.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};

use sos_relay::StreamId;
use sos_wire::{Body, EndReason};

use crate::liveness::Notice;
use crate::lock;
use crate::stream::Stream;

/// Frames that may wait in one mailbox besides their bytes: a peer within the protocol never gets near it.
const MAX_FRAMES: usize = 65_536;

/// What a session is told, in the order in which it happened.
#[derive(Debug)]
pub(crate) enum Mail {
    Frame(Body),
    StreamUp(Arc<Stream>),
    StreamClosed(StreamId),
    PeerLost,
    /// What its host's connection shows.
    Host(Notice),
    Abort(EndReason),
}

#[derive(Debug, Default)]
struct Inbox {
    mail: VecDeque<Mail>,
    frames: usize,
    bytes: usize,
    waker: Option<Waker>,
    overflowed: bool,
}

/// One session's mailbox. What may wait in it is bounded by the credit the session has granted; a peer that sends more is cut off.
#[derive(Debug)]
pub(crate) struct Mailbox {
    inbox: Mutex<Inbox>,
    max_bytes: usize,
    /// In the peer's line for room on a stream.
    waiting: AtomicBool,
    /// The session uses every stream there is, also those that sessions with much to say leave to others.
    light: AtomicBool,
    /// The session is over.
    closed: AtomicBool,
}

impl Mailbox {
    pub(crate) fn new(max_bytes: usize) -> Arc<Self> {
        Arc::new(Self {
            inbox: Mutex::default(),
            max_bytes,
            waiting: AtomicBool::new(false),
            light: AtomicBool::new(true),
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

    /// Moves the mail out, and arranges to be woken by the next. `Err` if the peer has sent more than it may.
    pub(crate) fn take(&self, into: &mut VecDeque<Mail>, cx: &Context<'_>) -> Result<(), Overflow> {
        let mut inbox = lock(&self.inbox);
        into.append(&mut inbox.mail);
        (inbox.frames, inbox.bytes) = (0, 0);
        if inbox.waker.as_ref().is_none_or(|waker| !waker.will_wake(cx.waker())) {
            inbox.waker = Some(cx.waker().clone());
        }
        if inbox.overflowed { Err(Overflow) } else { Ok(()) }
    }

    /// Enters the line for room; says whether it was not in it. `light` = the session uses every stream there is now.
    pub(crate) fn start_waiting(&self, light: bool) -> bool {
        self.light.store(light, Ordering::Release);
        !self.waiting.swap(true, Ordering::AcqRel)
    }

    /// Whether the session used every stream when it last began to wait.
    pub(crate) fn is_light(&self) -> bool {
        self.light.load(Ordering::Acquire)
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

/// Bytes of the direction that a frame carries: what is compressed counts as what it becomes, as it does for the credit.
fn carried(body: &Body) -> usize {
    match body {
        Body::Data { payload, .. } => payload.len(),
        Body::Compressed { length, .. } => usize::try_from(*length).unwrap_or(usize::MAX),
        _ => 0,
    }
}

/// More frames than any peer within the protocol sends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Overflow;
