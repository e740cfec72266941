//! nft tables with the armed flows: the table in the agent's own namespace, or one table in the namespace of each pod.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::debug;

use crate::netns::{self, nft, pod::Pod};
use crate::policy::arming::Armed;

/// Maximum time for rewriting pods' tables in one pass, because the next heartbeat is due soon afterwards.
const REWRITE_WITHIN: Duration = Duration::from_millis(nft::POD_HEARTBEAT_MS / 4);

/// Content of a table. The outer `None` means that the content is unknown, the inner `None` that nothing is armed.
type InForce = Option<Option<Arc<Armed>>>;

/// The tables and their contents.
#[derive(Debug)]
pub enum Tables {
    /// The table in the agent's namespace.
    Own(InForce),
    /// Tables in pods' namespaces, and the pod address of the table that was rewritten last.
    Pods(BTreeMap<Ipv4Addr, PodTable>, Ipv4Addr),
}

/// The table in a pod's namespace.
#[derive(Debug)]
pub struct PodTable {
    pod: Arc<Pod>,
    in_force: InForce,
    /// Flows of all pods, and those of this pod.
    narrowed: Option<(Arc<Armed>, Arc<Armed>)>,
}

impl PodTable {
    fn new(pod: Arc<Pod>) -> Self {
        Self { pod, in_force: None, narrowed: None }
    }

    /// Armed flows of this pod. The table holds no others, so that it need not be rewritten when a service selects or leaves another pod.
    fn narrow(&mut self, armed: &Arc<Armed>) -> Arc<Armed> {
        if let Some((of, narrowed)) = &self.narrowed
            && of == armed
        {
            return Arc::clone(narrowed);
        }
        let narrowed = Arc::new(armed.of_client(self.pod.address()));
        self.narrowed = Some((Arc::clone(armed), Arc::clone(&narrowed)));
        narrowed
    }
}

/// A change of one table.
enum Change {
    None,
    Heartbeat(bool),
    Script(String),
}

impl Tables {
    /// Tables of unknown content.
    #[must_use]
    pub fn new(in_pods: bool) -> Self {
        if in_pods { Self::Pods(BTreeMap::new(), Ipv4Addr::UNSPECIFIED) } else { Self::Own(None) }
    }

    /// Marks the content of all tables as unknown.
    pub fn forget(&mut self) {
        match self {
            Self::Own(in_force) => *in_force = None,
            Self::Pods(pods, _) => pods.values_mut().for_each(|table| table.in_force = None),
        }
    }

    /// Arms the tables and renews their heartbeats, or disarms them. Blocks while nft runs. Returns false if some pods' tables have not been
    /// rewritten yet: each table takes an nft process, and heartbeats must not wait for all these processes. Until then, such a table keeps its
    /// content.
    ///
    /// # Errors
    /// Error of nft about the agent's own table, whose content is then unknown. If a pod's table cannot be changed, for example because the pod has
    /// ended, the pod's connections go plain when the heartbeat expires, and the next pass tries again.
    pub fn apply(&mut self, wanted: Option<Arc<Armed>>, pods: Vec<Arc<Pod>>) -> Result<bool, String> {
        match self {
            Self::Own(in_force) => {
                let script = match change(in_force.as_ref(), wanted.as_deref()) {
                    Change::None => return Ok(true),
                    Change::Heartbeat(true) => nft::heartbeat(),
                    Change::Heartbeat(false) => nft::disarm(),
                    Change::Script(script) => script,
                };
                *in_force = None;
                netns::nft(&script).map_err(|error| error.to_string())?;
                *in_force = Some(wanted);
            }
            Self::Pods(known, last) => {
                let same = |known: &mut BTreeMap<_, PodTable>, pod: Arc<Pod>| {
                    let before = known.remove(&pod.address()).filter(|table| Arc::ptr_eq(&table.pod, &pod));
                    (pod.address(), before.unwrap_or_else(|| PodTable::new(pod)))
                };
                let mut now: BTreeMap<_, _> = pods.into_iter().map(|pod| same(known, pod)).collect();
                // Renew heartbeats first: the scripts of other pods may take longer than the lifetime of a heartbeat.
                now.values_mut().for_each(|table| renew(table, wanted.as_ref()));
                let began = Instant::now();
                let after: Vec<_> =
                    now.range((Excluded(*last), Unbounded)).map(|(address, _)| *address).collect();
                let before = now.range(..=*last).map(|(address, _)| *address);
                let order: Vec<_> = after.into_iter().chain(before).collect();
                let mut complete = true;
                for address in order {
                    if began.elapsed() > REWRITE_WITHIN {
                        complete = false;
                        break;
                    }
                    if let Some(table) = now.get_mut(&address) {
                        rewrite(table, wanted.as_ref());
                        *last = address;
                    }
                }
                *known = now;
                return Ok(complete);
            }
        }
        Ok(true)
    }
}

/// Renews the heartbeat of an armed table, or removes the heartbeat. A table that waits for new content is renewed with its present content.
fn renew(table: &mut PodTable, wanted: Option<&Arc<Armed>>) {
    let wanted = wanted.map(|armed| table.narrow(armed));
    let PodTable { pod, in_force, .. } = table;
    let beats = match change(in_force.as_ref(), wanted.as_deref()) {
        Change::Heartbeat(beats) => Some(beats),
        Change::Script(_) if in_force.as_ref().is_some_and(Option::is_some) => Some(true),
        Change::Script(_) | Change::None => None,
    };
    if let Some(beats) = beats {
        *in_force = match pod.beat(beats) {
            Ok(()) if beats => in_force.take(),
            Ok(()) => Some(None),
            Err(error) => {
                debug!(address = %pod.address(), %error, "heartbeat of a pod");
                None
            }
        };
    }
}

/// Rewrites a table if its content differs from the desired content.
fn rewrite(table: &mut PodTable, wanted: Option<&Arc<Armed>>) {
    let wanted = wanted.map(|armed| table.narrow(armed));
    let PodTable { pod, in_force, .. } = table;
    let Change::Script(script) = change(in_force.as_ref(), wanted.as_deref()) else { return };
    *in_force = match pod.arm(&script) {
        Ok(()) => Some(wanted),
        Err(error) => {
            debug!(address = %pod.address(), %error, "table of a pod");
            None
        }
    };
}

fn change(in_force: Option<&Option<Arc<Armed>>>, wanted: Option<&Armed>) -> Change {
    let before = in_force.and_then(Option::as_deref);
    match (in_force, wanted) {
        (Some(None), None) => Change::None,
        (_, None) => Change::Heartbeat(false),
        (_, Some(armed)) if before == Some(armed) => Change::Heartbeat(true),
        (_, Some(armed)) => Change::Script(nft::arm(armed, before)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_written_once_and_then_renewed() {
        let armed = Arc::new(Armed::default());
        let other = Armed { unreachable: vec!["10.0.0.139:5003".parse().unwrap()], ..Armed::default() };
        assert!(matches!(change(None, Some(&armed)), Change::Script(_)));
        assert!(matches!(change(Some(&Some(Arc::clone(&armed))), Some(&armed)), Change::Heartbeat(true)));
        assert!(matches!(change(Some(&Some(Arc::clone(&armed))), Some(&other)), Change::Script(_)));
        assert!(matches!(change(Some(&Some(armed)), None), Change::Heartbeat(false)));
        assert!(matches!(change(None, None), Change::Heartbeat(false)), "its content is unknown");
        assert!(matches!(change(Some(&None), None), Change::None));
    }
}
