//! The agent's sockets and nft table inside the network namespace of one pod (docs/adr/0057).

use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sos_tunnel::SegmentMarks;
use sos_wire::Marks;
use tokio::runtime::Handle;

use crate::netns::namespace::Namespace;
use crate::netns::nf_tables::Heartbeat;
use crate::netns::nflog::Copies;
use crate::netns::{self, NetError, nft, plan, sockets};
use crate::segments::syn_hold::injector::Writers;

/// Reason why a pod is not intercepted.
#[derive(Debug, thiserror::Error)]
pub enum PodError {
    /// The namespace cannot be opened or entered.
    #[error("network namespace: {0}")]
    Namespace(io::Error),
    /// A socket cannot be opened in the namespace.
    #[error("{what}: {error}")]
    Socket {
        /// Socket.
        what: &'static str,
        /// Error.
        error: io::Error,
    },
    /// The nft table, a rule or the route cannot be set up.
    #[error(transparent)]
    Net(#[from] NetError),
}

/// An intercepted pod. Dropping the value leaves the namespace as it is: see [`Pod::leave`].
#[derive(Debug)]
pub struct Pod {
    address: Ipv4Addr,
    namespace: Namespace,
    heartbeat: Heartbeat,
    /// Ports of the transparent listener and of checks.
    ports: (u16, u16),
    /// True if the table is missing or incomplete, for example because a program of the pod has flushed nftables.
    damaged: AtomicBool,
    /// False while the pod departs: its table stays disarmed.
    armable: AtomicBool,
}

/// Sockets of a pod that tasks serve.
#[derive(Debug)]
pub struct PodSockets {
    /// Accepts the pod's intercepted connections, at their servers' addresses.
    pub clients: std::net::TcpListener,
    /// Copies of held SYNs.
    pub copies: Copies,
    /// Raw sockets that reinject held SYNs and send checks.
    pub writers: Arc<Writers>,
    /// Port from which checks are sent.
    pub check_port: u16,
}

impl Pod {
    /// Enters a namespace: opens the sockets, then creates the table, with nothing armed. Must be called inside a runtime.
    ///
    /// # Errors
    /// Reason why the pod cannot be intercepted. Objects created so far are removed.
    pub fn enter(
        namespace: Namespace,
        address: Ipv4Addr,
        segment_marks: Option<&SegmentMarks>,
    ) -> Result<(Self, PodSockets), PodError> {
        let runtime = Handle::current();
        let made = namespace.inside(|| {
            // Netlink sockets register with the runtime when they are opened.
            let _entered = runtime.enter();
            open(address, segment_marks)
        });
        match made.map_err(PodError::Namespace)? {
            Ok((heartbeat, ports, made)) => Ok((
                Self {
                    address,
                    namespace,
                    heartbeat,
                    ports,
                    damaged: AtomicBool::new(false),
                    armable: AtomicBool::new(true),
                },
                made,
            )),
            Err(error) => {
                // If a socket cannot be opened, another agent may serve this pod, and that agent's table must stay. Otherwise, remove the remains
                // as best effort, so that the next attempt starts afresh.
                if matches!(error, PodError::Net(_)) {
                    let _ = namespace.inside(netns::detach);
                }
                Err(error)
            }
        }
    }

    /// The pod's address.
    #[must_use]
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// Permits the arming task to arm the table, or disarms the table until the next call.
    ///
    /// # Errors
    /// Error of the kernel about disarming. The heartbeat then expires by itself.
    pub fn permit(&self, armable: bool) -> io::Result<()> {
        self.armable.store(armable, Ordering::SeqCst);
        if armable { Ok(()) } else { self.heartbeat.set(false) }
    }

    /// Renews the heartbeat of the pod's table, or removes it.
    ///
    /// # Errors
    /// Error of the kernel, for example `NotFound` if the table has been deleted.
    pub fn beat(&self, beats: bool) -> io::Result<()> {
        let set = self.heartbeat.set(beats && self.armable.load(Ordering::SeqCst));
        if set.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            self.damaged.store(true, Ordering::SeqCst);
        }
        set
    }

    /// Applies a script that arms the pod's table; without effect while the pod departs.
    ///
    /// # Errors
    /// The namespace cannot be entered, or nft refuses the script.
    pub fn arm(&self, script: &str) -> Result<(), PodError> {
        if !self.armable.load(Ordering::SeqCst) {
            return Ok(());
        }
        if self.damaged.load(Ordering::SeqCst) {
            self.repair()?;
        }
        let armed = self.namespace.inside(|| netns::nft(script)).map_err(PodError::Namespace)?;
        if armed.is_err() {
            self.damaged.store(true, Ordering::SeqCst);
        }
        Ok(armed?)
    }

    /// Recreates table, rules and route. The conntrack entries keep the marks of running sessions.
    fn repair(&self) -> Result<(), PodError> {
        let (address, ports) = (self.address, self.ports);
        self.namespace.inside(|| set_up(address, ports)).map_err(PodError::Namespace)??;
        self.damaged.store(false, Ordering::SeqCst);
        Ok(())
    }

    /// Socket for a connection to a server in this pod, with the client's address as source. The socket is inside the pod's namespace.
    ///
    /// # Errors
    /// Error of the kernel, as [`sockets::towards_server`].
    pub fn towards_server(
        &self,
        client: std::net::SocketAddrV4,
        marks: Marks,
    ) -> io::Result<std::net::TcpStream> {
        self.namespace.inside(|| {
            let socket = sockets::towards_server(client, None, marks)?;
            socket2::SockRef::from(&socket).set_mark(nft::DIALED)?;
            Ok(socket)
        })?
    }

    /// Removes table, rules and route from the namespace.
    pub fn leave(&self) {
        // An error is ignored: if the namespace is gone, its table, rules and route are gone, too.
        let _ = self.namespace.inside(netns::detach);
    }
}

fn set_up(address: Ipv4Addr, (listener, check): (u16, u16)) -> Result<(), NetError> {
    plan::delivery().iter().try_for_each(netns::run)?;
    netns::nft(&nft::setup_pod(address, listener, check))
}

fn open(
    address: Ipv4Addr,
    segment_marks: Option<&SegmentMarks>,
) -> Result<(Heartbeat, (u16, u16), PodSockets), PodError> {
    let failed = |what| move |error| PodError::Socket { what, error };
    let clients = sockets::transparent_listener().map_err(failed("transparent listener"))?;
    if let Some(filters) = segment_marks {
        filters.watch(&clients).map_err(failed("filter of the transparent listener"))?;
    }
    let port = clients.local_addr().map_err(failed("transparent listener"))?.port();
    let copies = Copies::open(nft::COPIES).map_err(failed("copies of SYNs (nfnetlink_log)"))?;
    let (writers, check_port) = Writers::in_pod(address).map_err(failed("raw sockets"))?;
    let writers = Arc::new(writers);
    let heartbeat = Heartbeat::open().map_err(failed("netlink"))?;
    set_up(address, (port, check_port))?;
    Ok((heartbeat, (port, check_port), PodSockets { clients, copies, writers, check_port }))
}
