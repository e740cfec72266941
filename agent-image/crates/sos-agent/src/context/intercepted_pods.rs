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
    /// Pods that are no longer intercepted but still have the agent's nft table.
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

    /// True if the agent does not intercept pods, or has scanned the node's namespaces and entered their pods. Before this scan, the agent
    /// cannot connect to servers in pods.
    #[must_use]
    pub fn is_ready(&self, in_pods: bool) -> bool {
        !in_pods || self.ready.load(Ordering::Relaxed)
    }

    /// Notes that the first scan has ended, and that its pods have been entered.
    pub fn note_ready(&self) {
        self.ready.store(true, Ordering::Relaxed);
    }

    /// All pods that have the agent's table, including departing pods.
    #[must_use]
    pub fn entered(&self) -> Vec<Arc<Pod>> {
        [self.all(), lock(&self.departing).clone()].concat()
    }

    /// Adds a pod.
    pub fn insert(&self, pod: Arc<Pod>) {
        self.forget(&pod);
        lock(&self.pods).insert(pod.address(), pod);
    }

    /// Marks the pod at an address as departing.
    pub fn depart(&self, address: Ipv4Addr) {
        if let Some(pod) = lock(&self.pods).remove(&address) {
            lock(&self.departing).push(pod);
        }
    }

    /// Forgets a departing pod, whose table is about to be removed or used again.
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

/// Locks a mutex, even if it is poisoned: every method leaves the map or list in a valid state.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
