//! Dials servers in their clients' names.

use std::io;
use std::time::Duration;

use sos_tunnel::OpenInfo;
use sos_wire::Marks;
use tokio::net::{TcpSocket, TcpStream};

use crate::config::{Intake, Source};
use crate::context::AgentContext;
use crate::netns::sockets;
use crate::policy::flow_key::FlowKey;
use crate::policy::flow_policy;

/// Maximum time for a server, which is at the agent's own site, to answer. After one second, the client and this kernel retransmit the SYN
/// (RFC 6298) and the controller times out. The shorter time here ensures that this connection is closed before the client's own SYN
/// passes.
pub(crate) const SILENT_AFTER: Duration = Duration::from_millis(700);

pub(crate) fn flow(info: &OpenInfo) -> FlowKey {
    FlowKey { client: info.open.client, server: info.open.server }
}

/// Socket that will connect to a server: in the client's name, from inside the server's pod if it is a pod of this node, or from the agent's own
/// address.
///
/// # Errors
/// Error of the kernel, or `AddrNotAvailable` if the client's name cannot be used at this server.
pub(crate) fn socket(context: &AgentContext, flow: FlowKey, marks: Marks) -> io::Result<std::net::TcpStream> {
    let config = context.config();
    if flow_policy::egress_source(&config, flow) == Source::Agent {
        return sockets::from_agent(marks);
    }
    if config.intake == Some(Intake::Pods {}) {
        // Elsewhere the server's answers to the client's address would not lead here.
        let pod = context.pods().at(*flow.server.ip()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        return pod.towards_server(flow.client, marks);
    }
    sockets::towards_server(flow.client, flow_policy::own_address(&config), marks)
}

/// True if [`socket`] can be made now. Checked before the client is answered: after that, only a reset is possible.
pub(crate) fn can_bind(context: &AgentContext, flow: FlowKey) -> bool {
    let unable = [io::ErrorKind::AddrInUse, io::ErrorKind::AddrNotAvailable];
    socket(context, flow, Marks::default()).map_or_else(|error| !unable.contains(&error.kind()), |_| true)
}

/// Connects to a server in its client's name. The kernel gives up as for any program, after 127 s of silence.
pub(crate) async fn dial(context: &AgentContext, flow: FlowKey, marks: Marks) -> io::Result<TcpStream> {
    let config = context.config();
    let marks = marks.behind(flow_policy::routers(&config, *flow.client.ip()));
    let socket = socket(context, flow, marks)?;
    // Attach the filter before connecting: the server's SYN-ACK also has marks.
    if let Some(filters) = &context.segment_marks {
        filters.watch(&socket)?;
    }
    let socket = TcpSocket::from_std_stream(socket);
    socket.connect(flow.server.into()).await
}
