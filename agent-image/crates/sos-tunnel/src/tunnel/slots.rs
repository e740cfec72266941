//! Bookkeeping of the tasks that keep streams open, and of pending handshakes.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;

use sos_wire::AgentId;
use tokio::task::AbortHandle;

use crate::lock;

/// Maximum number of pending handshakes; above that the oldest is aborted (frame.md clause 3).
pub(crate) const MAX_PENDING: usize = 64;

/// Tasks that keep streams open, one per peer, label and slot.
#[derive(Debug, Default)]
pub(crate) struct StreamSlots(pub(super) Mutex<BTreeMap<(AgentId, u8, usize), AbortHandle>>);

impl StreamSlots {
    pub(crate) fn abort(&self, agent: AgentId) {
        lock(&self.0).retain(|(peer, ..), task| {
            let kept = *peer != agent;
            if !kept {
                task.abort();
            }
            kept
        });
    }

    pub(crate) fn abort_all(&self) {
        std::mem::take(&mut *lock(&self.0)).values().for_each(AbortHandle::abort);
    }
}

/// Pending handshakes with dialers.
#[derive(Debug, Default)]
pub(crate) struct PendingHandshakes {
    tasks: Mutex<VecDeque<(u64, AbortHandle)>>,
    pub(super) next: AtomicU64,
}

impl PendingHandshakes {
    pub(super) fn insert(&self, id: u64, task: AbortHandle) {
        let mut tasks = lock(&self.tasks);
        tasks.push_back((id, task));
        if tasks.len() > MAX_PENDING
            && let Some((_, oldest)) = tasks.pop_front()
        {
            oldest.abort();
        }
    }

    /// Number of pending handshakes.
    pub(crate) fn len(&self) -> usize {
        lock(&self.tasks).len()
    }

    /// Removes an ended handshake. Returns true if its result is still wanted.
    pub(super) fn remove(&self, id: u64) -> bool {
        let mut tasks = lock(&self.tasks);
        let before = tasks.len();
        tasks.retain(|(known, _)| *known != id);
        tasks.len() < before
    }
}
