//! Pods of the node: enters the network namespaces of configured pods, and leaves the namespaces of all other pods.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};
use tracing::{debug, info, warn};

use crate::context::AgentContext;
use crate::documents::config::{self, AgentConfig, MAX_PODS};
use crate::netns::namespace::{Namespace, NamespaceFile, Scanner};
use crate::netns::pod::{Pod, PodError, PodSockets};
use crate::segments::syn_hold::injector::Writers;
use crate::tasks::held_syns;
use crate::tasks::ingress::{self, Arrival};

/// Interval at which the folder of namespaces is read. Connections of a new pod are plain until the next read.
const SCAN_INTERVAL: Duration = Duration::from_secs(1);
/// Minimum time for which a pod's table stays after the pod has left the configuration, because connections that are being set up are not sessions
/// yet. Equals the lease of a connection that was opened ahead of its session ([`crate::tasks::connect_ahead`]).
const LEAVE_AFTER: Duration = Duration::from_secs(12);
/// Maximum time for which sessions keep the namespace of a pod that has ended.
const DEPARTURE: Duration = Duration::from_secs(60);

/// A pod that the agent has entered.
struct Entered {
    pod: Arc<Pod>,
    writers: Arc<Writers>,
    file: NamespaceFile,
    departs: Option<Instant>,
    /// Tasks of the listener and of the copies of held SYNs. They end when the value is dropped.
    _tasks: JoinSet<()>,
}

/// Updates the intercepted pods after each change of the configuration or of the node's namespaces, forever.
pub async fn intercept(context: Arc<AgentContext>, folder: PathBuf) {
    let mut ticks = interval(SCAN_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut scanner, mut pods) = (Scanner::new(folder.clone()), Pods::default());
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = context.pods().changed() => {}
        }
        let scanned = tokio::task::spawn_blocking(move || {
            let files = scanner.scan();
            (scanner, files)
        });
        let Ok((same, files)) = scanned.await else {
            // The scanner has panicked: start with a new scanner, which reads all namespaces again.
            scanner = Scanner::new(folder.clone());
            continue;
        };
        scanner = same;
        pods.update(&context, &files).await;
        context.pods().note_ready();
        context.metrics.pods.set(i64::try_from(pods.entered.len()).unwrap_or(i64::MAX));
    }
}

/// Pods that the agent has entered.
#[derive(Default)]
struct Pods {
    entered: BTreeMap<Ipv4Addr, Entered>,
    /// Pods that are no longer wanted, until their sessions are over. Their nft tables stay, because running connections would break
    /// without them.
    departing: Vec<Entered>,
    /// Errors already logged, by address. The agent tries again at each tick, but logs the same error only once.
    failures: BTreeMap<Ipv4Addr, String>,
}

impl Pods {
    async fn update(&mut self, context: &Arc<AgentContext>, files: &BTreeMap<Ipv4Addr, NamespaceFile>) {
        let pods = wanted(&context.config(), files);
        let wanted = |address: &Ipv4Addr| pods.contains_key(address);
        let stays =
            |address: &Ipv4Addr, pod: &Entered| wanted(address) && files.get(address) == Some(&pod.file);
        let gone = take_where(&mut self.entered, |address, pod| !stays(address, pod));
        for (_, pod) in gone {
            pod.disarm(context);
            self.departing.push(pod);
        }
        let departing = std::mem::take(&mut self.departing);
        for mut pod in departing {
            if pod.may_leave(context) {
                pod.leave(context).await;
            } else {
                self.departing.push(pod);
            }
        }
        self.failures.retain(|address, _| wanted(address));
        for (address, name) in pods {
            if let Some(file) = files.get(&address).filter(|_| !self.entered.contains_key(&address)) {
                self.enter(context, &config::Pod { name, address }, file).await;
            }
        }
    }

    async fn enter(&mut self, context: &Arc<AgentContext>, pod: &config::Pod, file: &NamespaceFile) {
        let same = |departing: &Entered| departing.file == *file && departing.pod.address() == pod.address;
        if let Some(index) = self.departing.iter().position(same) {
            let mut same = self.departing.swap_remove(index);
            same.departs = None;
            same.arm(context);
            self.entered.insert(pod.address, same);
            return;
        }
        match enter(context, file.clone(), pod.address).await {
            Ok(entered) => {
                info!(pod = pod.name, address = %pod.address, "pod intercepted");
                self.failures.remove(&pod.address);
                entered.arm(context);
                self.entered.insert(pod.address, entered);
            }
            Err(error) => {
                let words = error.to_string();
                if self.failures.insert(pod.address, words.clone()).as_ref() != Some(&words) {
                    warn!(pod = pod.name, address = %pod.address, error = words, "pod not intercepted");
                }
            }
        }
    }
}

/// Addresses and names of the pods to intercept: the configured pods, or else all pods of the site with a namespace on this node.
fn wanted(config: &AgentConfig, files: &BTreeMap<Ipv4Addr, NamespaceFile>) -> BTreeMap<Ipv4Addr, String> {
    if let Some(pods) = &config.pods {
        return pods.iter().map(|pod| (pod.address, pod.name.clone())).collect();
    }
    let of_site = |address: &Ipv4Addr| config.site.prefixes.iter().any(|prefix| prefix.contains(address));
    let addresses = files.keys().filter(|address| of_site(address) && !config.wan.contains(address));
    addresses.take(MAX_PODS).map(|address| (*address, address.to_string())).collect()
}

/// Removes and returns the pods for which `holds` is true.
fn take_where(
    pods: &mut BTreeMap<Ipv4Addr, Entered>,
    mut holds: impl FnMut(&Ipv4Addr, &mut Entered) -> bool,
) -> Vec<(Ipv4Addr, Entered)> {
    let addresses = pods.iter_mut().filter_map(|(address, pod)| holds(address, pod).then_some(*address));
    let addresses: Vec<_> = addresses.collect();
    addresses.into_iter().filter_map(|address| pods.remove_entry(&address)).collect()
}

impl Entered {
    /// Permits interception of the pod's new connections, and connections to servers in the pod.
    fn arm(&self, context: &AgentContext) {
        // Permission cannot fail.
        let _ = self.pod.permit(true);
        context.hold().set_pod(self.pod.address(), Some(Arc::clone(&self.writers)));
        context.pods().insert(Arc::clone(&self.pod));
        context.rearm.notify_one();
    }

    /// Makes the pod's new connections plain.
    fn disarm(&self, context: &AgentContext) {
        let address = self.pod.address();
        debug!(%address, "pod disarmed");
        context.hold().set_pod(address, None);
        context.pods().depart(address);
        // If this fails, the heartbeat expires by itself.
        if let Err(error) = self.pod.permit(false) {
            debug!(%address, %error, "heartbeat of a pod that is no longer wanted");
        }
    }

    /// True if no session needs the table any more, or if the pod ended more than [`DEPARTURE`] ago. The programs of such a pod have closed their
    /// sockets, so only sessions with a silent peer remain.
    fn may_leave(&mut self, context: &AgentContext) -> bool {
        let since = self.departs.get_or_insert_with(Instant::now).elapsed();
        if !self.file.path.exists() && since > DEPARTURE {
            return true;
        }
        let address = self.pod.address();
        let ahead = context.with_server_legs(|legs| legs.has_server(address));
        since > LEAVE_AFTER && !ahead && !context.pods().has_sessions(address)
    }

    async fn leave(self, context: &AgentContext) {
        let pod = Arc::clone(&self.pod);
        context.pods().forget(&pod);
        debug!(address = %pod.address(), "pod left");
        // Remove the table before the listener closes, so that no client is redirected to a closed listener.
        if let Err(error) = tokio::task::spawn_blocking(move || pod.leave()).await {
            debug!(%error, "leaving a pod");
        }
    }
}

async fn enter(
    context: &Arc<AgentContext>,
    file: NamespaceFile,
    address: Ipv4Addr,
) -> Result<Entered, PodError> {
    let (opened, marks) = (file.path.clone(), context.segment_marks.clone());
    let entering = tokio::task::spawn_blocking(move || {
        let namespace = Namespace::open(&opened).map_err(PodError::Namespace)?;
        Pod::enter(namespace, address, marks.as_deref())
    });
    let (pod, PodSockets { clients, copies, writers, check_port }) =
        entering.await.map_err(|error| PodError::Namespace(error.into()))??;
    let clients = TcpListener::from_std(clients).map_err(PodError::Namespace)?;
    let mut tasks = JoinSet::new();
    tasks.spawn(ingress::accept_clients(Arc::clone(context), clients, Arrival::Pod(address)));
    let held = held_syns::HeldPod { address, check_port };
    tasks.spawn(held_syns::hold_syns(Arc::clone(context), copies, Some(held)));
    Ok(Entered { pod: Arc::new(pod), writers, file, departs: None, _tasks: tasks })
}

/// Leaves all pods before the process exits.
pub async fn leave_all(context: &AgentContext) {
    let pods = context.pods().entered();
    let leaving = tokio::task::spawn_blocking(move || pods.iter().for_each(|pod| pod.leave()));
    if let Err(error) = leaving.await {
        debug!(%error, "leaving pods");
    }
}
