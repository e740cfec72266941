//! Intercepted pods of the node, by address.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sos_wire::SessionUuid;
use tokio::sync::Notify;

use crate::netns::pod::Pod;

/// Intercepted pods. Bounded by the configuration.
#[derive(Debug, Default)]
pub struct InterceptedPods {
    pods: Mutex<BTreeMap<Ipv4Addr, Arc<Pod>>>,
    /// Pods that are no longer intercepted, but still have a table.
    departing: Mutex<Vec<Arc<Pod>>>,
    /// Address of each session's pod. Bounded by the limit of sessions.
    sessions: Mutex<BTreeMap<SessionUuid, Ipv4Addr>>,
    changed: Notify,
    ready: AtomicBool,
}

impl InterceptedPods {
    /// The pod at an address.
    #[must_use]
    pub fn at(&self, address: Ipv4Addr) -> Option<Arc<Pod>> {
        lock(&self.pods).get(&address).cloned()
    }

    /// All pods.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<Pod>> {
        lock(&self.pods).values().cloned().collect()
    }

    /// True once all pods that were there at the start have been entered, or if the agent has no pods: servers in pods cannot be reached earlier.
    #[must_use]
    pub fn is_ready(&self, in_pods: bool) -> bool {
        !in_pods || self.ready.load(Ordering::Relaxed)
    }

    /// Notes that all pods have been entered.
    pub fn note_ready(&self) {
        self.ready.store(true, Ordering::Relaxed);
    }

    /// All pods that have a table.
    #[must_use]
    pub fn entered(&self) -> Vec<Arc<Pod>> {
        [self.all(), lock(&self.departing).clone()].concat()
    }

    /// Adds a pod.
    pub fn insert(&self, pod: Arc<Pod>) {
        self.forget(&pod);
        lock(&self.pods).insert(pod.address(), pod);
    }

    /// Makes a pod one that departs.
    pub fn depart(&self, address: Ipv4Addr) {
        if let Some(pod) = lock(&self.pods).remove(&address) {
            lock(&self.departing).push(pod);
        }
    }

    /// Forgets a pod that has departed.
    pub fn forget(&self, pod: &Arc<Pod>) {
        lock(&self.departing).retain(|departing| !Arc::ptr_eq(departing, pod));
    }

    /// Notes a session of a pod.
    pub fn begin(&self, session: SessionUuid, address: Ipv4Addr) {
        lock(&self.sessions).insert(session, address);
    }

    /// Notes the end of a session.
    pub fn finish(&self, session: SessionUuid) {
        lock(&self.sessions).remove(&session);
    }

    /// True while a session of the pod at an address is open.
    #[must_use]
    pub fn has_sessions(&self, address: Ipv4Addr) -> bool {
        lock(&self.sessions).values().any(|of| *of == address)
    }

    /// Notes that the configuration has changed.
    pub fn note_change(&self) {
        self.changed.notify_one();
    }

    /// Returns after the next change of the configuration.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }
}

/// Locks a mutex, poisoned or not: each method leaves its table usable.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
