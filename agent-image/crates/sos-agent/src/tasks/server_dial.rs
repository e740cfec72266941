//! Connects to servers, with the client's address as source unless the service has `source: Agent`.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;
use std::time::Duration;

use sos_tunnel::OpenInfo;
use sos_wire::{AgentId, Marks};
use tokio::net::{TcpSocket, TcpStream};

use crate::config::{Intake, Source};
use crate::context::AgentContext;
use crate::netns::namespace::is_own_address;
use crate::netns::pod::Pod;
use crate::netns::sockets;
use crate::policy::flow_key::FlowKey;
use crate::policy::flow_policy;

/// Maximum time for a server, which is at the agent's own site, to accept or refuse. After one second, the client and this kernel retransmit the SYN
/// (RFC 6298) and the controller times out. This timeout is shorter, so that the agent's connection is closed before the client's retransmitted
/// SYN reaches the server as plain TCP.
pub(crate) const SILENT_AFTER: Duration = Duration::from_millis(700);

pub(crate) fn flow(info: &OpenInfo) -> FlowKey {
    FlowKey { client: info.open.client, server: info.open.server }
}

/// Origin of the connection to a server.
enum Origin {
    /// The agent's own address.
    Agent,
    /// The client's address and port, from the agent's namespace. If the site's switches rewrite, the agent's own address (the value) with the
    /// client's port.
    Client(Option<Ipv4Addr>),
    /// The client's address and port, from inside the server's pod.
    Pod(Arc<Pod>),
}

/// Origin of a flow's connection to its server.
///
/// # Errors
/// `AddrNotAvailable` if the server's replies to the client's address would not reach this agent.
fn origin(context: &AgentContext, flow: FlowKey, peer: AgentId) -> io::Result<Origin> {
    let config = context.config();
    let server = *flow.server.ip();
    let unavailable = || io::Error::from(io::ErrorKind::AddrNotAvailable);
    match &config.intake {
        _ if flow_policy::egress_source(&config, flow, peer) == Source::Agent => Ok(Origin::Agent),
        Some(Intake::Pods { .. }) => context.pods().at(server).map(Origin::Pod).ok_or_else(unavailable),
        // Replies of a program on the router itself do not pass the table's `prerouting` chain, so they would not reach the agent.
        Some(Intake::Routed { .. }) if is_own_address(server) => Err(unavailable()),
        _ => Ok(Origin::Client(flow_policy::own_address(&config))),
    }
}

impl Origin {
    fn socket(&self, client: SocketAddrV4, marks: Marks) -> io::Result<std::net::TcpStream> {
        match self {
            Self::Agent => sockets::from_agent(marks),
            Self::Client(own) => sockets::towards_server(client, *own, marks),
            Self::Pod(pod) => pod.towards_server(client, marks),
        }
    }
}

/// True if a connection to the server can be made now. Checked before the client is accepted: after that, only a reset is possible. For a server
/// in a pod, no socket is tried, since entering the pod would block; an error of the later connection attempt also refuses the session.
pub(crate) fn can_bind(context: &AgentContext, flow: FlowKey, peer: AgentId) -> bool {
    match origin(context, flow, peer) {
        Ok(Origin::Pod(_)) => true,
        Ok(origin) => {
            let tried = origin.socket(flow.client, Marks::default());
            tried.map_or_else(|error| error.kind() != io::ErrorKind::AddrInUse, |_| true)
        }
        Err(_) => false,
    }
}

/// Connects to a server. As for any program, the kernel times out after 127 s without an answer.
pub(crate) async fn dial(
    context: &AgentContext,
    flow: FlowKey,
    peer: AgentId,
    marks: Marks,
) -> io::Result<TcpStream> {
    let marks = marks.behind(flow_policy::routers(&context.config(), *flow.client.ip()));
    let origin = origin(context, flow, peer)?;
    let socket = match origin {
        // Entering a pod blocks a thread, which must not be one of the runtime's async threads.
        Origin::Pod(_) => tokio::task::spawn_blocking(move || origin.socket(flow.client, marks)).await??,
        origin => origin.socket(flow.client, marks)?,
    };
    // Attach the filter before connecting: the server's SYN-ACK also has marks.
    if let Some(filters) = &context.segment_marks {
        filters.watch(&socket)?;
    }
    let socket = TcpSocket::from_std_stream(socket);
    socket.connect(flow.server.into()).await
}
