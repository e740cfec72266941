//! Connects to servers, with the client's address as source unless the service has `source: Agent`. A header of the PROXY protocol is written
//! here, so that it precedes all bytes of the session, whichever way the session moves its bytes.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;
use std::time::Duration;

use sos_tunnel::OpenInfo;
use sos_wire::{AgentId, Marks};
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpSocket, TcpStream};

use crate::context::AgentContext;
use crate::documents::config::{Intake, ProxyProtocol, Source};
use crate::netns::namespace::is_own_address;
use crate::netns::pod::Pod;
use crate::netns::sockets;
use crate::policy::flow_key::FlowKey;
use crate::policy::{flow_policy, proxy_protocol};

/// Maximum time for a server, which is at the agent's own site, to accept or refuse. After one second, the client and this kernel retransmit the SYN
/// (RFC 6298) and the controller times out. This timeout is shorter, so that the agent's connection is closed before the client's retransmitted
/// SYN reaches the server as plain TCP.
pub(crate) const SILENT_AFTER: Duration = Duration::from_millis(700);

pub(crate) fn flow(info: &OpenInfo) -> FlowKey {
    FlowKey { client: info.open.client, server: info.open.server }
}

/// Origin of the connection to a server.
enum Origin {
    /// The agent's own address, with a header that names the client, or without.
    Agent(ProxyProtocol),
    /// The client's address and port, from the agent's namespace. If the site's switches rewrite, the agent's own address (the value) with the
    /// client's port.
    Client(Option<Ipv4Addr>),
    /// The client's address and port, from inside the server's pod.
    Pod(Arc<Pod>),
}

/// Origin of a flow's connection to its server.
///
/// # Errors
/// `AddrNotAvailable` if the server's replies to the client's address would not reach this agent, or if the server is a program on the agent's
/// own machine: the machine's firewall would take the agent's connection for a local one.
fn origin(context: &AgentContext, flow: FlowKey, peer: AgentId) -> io::Result<Origin> {
    let config = context.config();
    let server = *flow.server.ip();
    let identity = flow_policy::client_identity(&config, flow, peer);
    let unavailable = || io::Error::from(io::ErrorKind::AddrNotAvailable);
    match &config.intake {
        _ if identity.source == Source::Agent && is_own_address(server) => Err(unavailable()),
        _ if identity.source == Source::Agent => Ok(Origin::Agent(identity.proxy_protocol)),
        Some(Intake::Pods { .. }) => context.pods().at(server).map(Origin::Pod).ok_or_else(unavailable),
        // Replies of a program on the router itself do not pass the table's `prerouting` chain, so they would not reach the agent.
        Some(Intake::Routed { .. }) if is_own_address(server) => Err(unavailable()),
        _ => Ok(Origin::Client(flow_policy::own_address(&config))),
    }
}

impl Origin {
    fn socket(&self, client: SocketAddrV4, marks: Marks) -> io::Result<std::net::TcpStream> {
        match self {
            Self::Agent(_) => sockets::from_agent(marks),
            Self::Client(own) => sockets::towards_server(client, *own, marks),
            Self::Pod(pod) => pod.towards_server(client, marks),
        }
    }

    /// Bytes that precede the session's own bytes.
    fn preamble(&self, flow: FlowKey) -> Option<[u8; proxy_protocol::HEADER_LEN]> {
        matches!(self, Self::Agent(ProxyProtocol::V2)).then(|| proxy_protocol::header(flow))
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
    let preamble = origin.preamble(flow);
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
    let mut server = socket.connect(flow.server.into()).await?;
    if let Some(preamble) = preamble {
        // A new connection's send buffer has room for the header, so this write does not wait for the server.
        server.write_all(&preamble).await?;
    }
    Ok(server)
}
