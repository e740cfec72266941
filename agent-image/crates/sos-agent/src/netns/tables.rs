//! nft tables that hold the armed flows: the agent's own, or one in each pod's namespace.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::debug;

use crate::netns::{self, nft, pod::Pod};
use crate::policy::arming::Armed;

/// Time in one pass for rewriting pods' tables: the next heartbeat is due soon after.
const REWRITE_WITHIN: Duration = Duration::from_millis(nft::POD_HEARTBEAT_MS / 4);

/// Content of a table; the outer `None` if it is unknown, the inner one if nothing is armed.
type InForce = Option<Option<Arc<Armed>>>;

/// The tables and their contents.
#[derive(Debug)]
pub enum Tables {
    /// The table in the agent's namespace.
    Own(InForce),
    /// Tables in pods' namespaces, and the address of the last one that was rewritten.
    Pods(BTreeMap<Ipv4Addr, (Arc<Pod>, InForce)>, Ipv4Addr),
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

    /// Takes the content of all tables as unknown.
    pub fn forget(&mut self) {
        match self {
            Self::Own(in_force) => *in_force = None,
            Self::Pods(pods, _) => pods.values_mut().for_each(|(_, in_force)| *in_force = None),
        }
    }

    /// Arms the tables and renews their heartbeats, or disarms them. Blocks for as long as nft runs. Returns false if tables of pods are still to be
    /// rewritten: that takes an nft process for each, and heartbeats must not wait for all of them. Such a table keeps its content meanwhile.
    ///
    /// # Errors
    /// nft's, about the agent's own table: its content is unknown then. A pod whose table cannot be changed, for example because the pod has ended,
    /// is plain when its heartbeat expires, and is tried again next time.
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
                let same = |known: &mut BTreeMap<_, (Arc<Pod>, InForce)>, pod: Arc<Pod>| {
                    let before = known.remove(&pod.address()).filter(|(before, _)| Arc::ptr_eq(before, &pod));
                    (pod.address(), before.unwrap_or((pod, None)))
                };
                let mut now: BTreeMap<_, _> = pods.into_iter().map(|pod| same(known, pod)).collect();
                // Heartbeats first: scripts of other pods take longer than a heartbeat may be late.
                now.values_mut().for_each(|(pod, in_force)| renew(pod, in_force, wanted.as_deref()));
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
                    if let Some((pod, in_force)) = now.get_mut(&address) {
                        rewrite(pod, in_force, wanted.as_ref());
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

/// Renews the heartbeat of an armed table, or removes it. A table that waits for new content is renewed with the present one.
fn renew(pod: &Pod, in_force: &mut InForce, wanted: Option<&Armed>) {
    let beats = match change(in_force.as_ref(), wanted) {
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

/// Rewrites a table whose content is not as wanted.
fn rewrite(pod: &Pod, in_force: &mut InForce, wanted: Option<&Arc<Armed>>) {
    let Change::Script(script) = change(in_force.as_ref(), wanted.map(Arc::as_ref)) else { return };
    *in_force = match pod.arm(&script) {
        Ok(()) => Some(wanted.cloned()),
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
