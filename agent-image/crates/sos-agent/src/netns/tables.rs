//! nft tables that hold the armed flows: the agent's own, or one in each pod's namespace.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;

use tracing::debug;

use crate::netns::{self, nft, pod::Pod};
use crate::policy::arming::Armed;

/// Content of a table; the outer `None` if it is unknown, the inner one if nothing is armed.
type InForce = Option<Option<Arc<Armed>>>;

/// The tables and their contents.
#[derive(Debug)]
pub enum Tables {
    /// The table in the agent's namespace.
    Own(InForce),
    /// Tables in pods' namespaces.
    Pods(BTreeMap<Ipv4Addr, (Arc<Pod>, InForce)>),
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
        if in_pods { Self::Pods(BTreeMap::new()) } else { Self::Own(None) }
    }

    /// Takes the content of all tables as unknown.
    pub fn forget(&mut self) {
        match self {
            Self::Own(in_force) => *in_force = None,
            Self::Pods(pods) => pods.values_mut().for_each(|(_, in_force)| *in_force = None),
        }
    }

    /// Arms the tables and renews their heartbeats, or disarms them. Blocks for as long as nft runs.
    ///
    /// # Errors
    /// nft's, about the agent's own table: its content is unknown then. A pod whose table cannot be changed, for example because the pod has ended,
    /// is plain when its heartbeat expires, and is tried again next time.
    pub fn apply(&mut self, wanted: Option<Arc<Armed>>, pods: Vec<Arc<Pod>>) -> Result<(), String> {
        match self {
            Self::Own(in_force) => {
                let script = match change(in_force.as_ref(), wanted.as_deref()) {
                    Change::None => return Ok(()),
                    Change::Heartbeat(true) => nft::heartbeat(),
                    Change::Heartbeat(false) => nft::disarm(),
                    Change::Script(script) => script,
                };
                *in_force = None;
                netns::nft(&script).map_err(|error| error.to_string())?;
                *in_force = Some(wanted);
            }
            Self::Pods(known) => {
                let same = |known: &mut BTreeMap<_, (Arc<Pod>, InForce)>, pod: Arc<Pod>| {
                    let before = known.remove(&pod.address()).filter(|(before, _)| Arc::ptr_eq(before, &pod));
                    (pod.address(), before.unwrap_or((pod, None)))
                };
                let mut now: BTreeMap<_, _> = pods.into_iter().map(|pod| same(known, pod)).collect();
                // Heartbeats first: scripts of other pods take longer than a heartbeat may be late.
                now.values_mut().for_each(|(pod, in_force)| renew(pod, in_force, wanted.as_deref()));
                now.values_mut().for_each(|(pod, in_force)| rewrite(pod, in_force, wanted.as_ref()));
                *known = now;
            }
        }
        Ok(())
    }
}

/// Renews the heartbeat of a table whose content is as wanted, or removes it.
fn renew(pod: &Pod, in_force: &mut InForce, wanted: Option<&Armed>) {
    if let Change::Heartbeat(beats) = change(in_force.as_ref(), wanted) {
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
