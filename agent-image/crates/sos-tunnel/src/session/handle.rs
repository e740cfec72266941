//! Handle of a session: end, progress and abort.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use sos_wire::EndReason;
use tokio::sync::oneshot;

use crate::session::mailbox::{Mail, Mailbox};
use crate::types::SessionEnd;

/// Bytes relayed so far.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    pub(crate) up: AtomicU64,
    pub(crate) down: AtomicU64,
}

/// A session opened by this agent: a future that resolves to the result of the session. Dropping the handle does not end the session.
#[derive(Debug)]
pub struct SessionHandle {
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) progress: Arc<Progress>,
    pub(crate) end: oneshot::Receiver<SessionEnd>,
}

impl SessionHandle {
    /// Ends the session: both hosts are reset.
    pub fn abort(&self, reason: EndReason) {
        self.mailbox.push(Mail::Abort(reason));
    }

    /// Returns an object that can abort the session without the handle.
    pub fn aborter(&self) -> Aborter {
        Aborter(Arc::clone(&self.mailbox))
    }

    /// Bytes relayed so far, client to server and back.
    pub fn progress(&self) -> (u64, u64) {
        self.relayed().bytes()
    }

    /// Returns an object that reads the relayed bytes without the handle.
    pub fn relayed(&self) -> Relayed {
        Relayed(Arc::clone(&self.progress))
    }
}

/// Aborts a session, without keeping it alive.
#[derive(Debug, Clone)]
pub struct Aborter(Arc<Mailbox>);

impl Aborter {
    /// Ends the session: both hosts are reset.
    pub fn abort(&self, reason: EndReason) {
        self.0.push(Mail::Abort(reason));
    }
}

/// Bytes that a session has relayed; this value does not keep the session alive.
#[derive(Debug, Clone, Default)]
pub struct Relayed(Arc<Progress>);

impl Relayed {
    /// Bytes relayed so far, client to server and back.
    pub fn bytes(&self) -> (u64, u64) {
        (self.0.up.load(Ordering::Relaxed), self.0.down.load(Ordering::Relaxed))
    }
}

impl Future for SessionHandle {
    type Output = SessionEnd;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<SessionEnd> {
        Pin::new(&mut self.end).poll(cx).map(|end| {
            // The task reports its end even if it panics, unless the runtime itself has shut down.
            let (bytes_up, bytes_down) = self.progress();
            let reason = EndReason::InternalLimit;
            end.unwrap_or(SessionEnd { reason, bytes_up, bytes_down, duration: Duration::ZERO })
        })
    }
}
