//! Dials servers in their clients' names.

use std::io;
use std::time::Duration;

use sos_tunnel::OpenInfo;
use sos_wire::Marks;
use tokio::net::{TcpSocket, TcpStream};

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

/// Connects to a server in its client's name. As for any program, the kernel times out after 127 s without an answer.
pub(crate) async fn dial(context: &AgentContext, flow: FlowKey, marks: Marks) -> io::Result<TcpStream> {
    let config = context.config();
    let marks = marks.behind(flow_policy::routers(&config, *flow.client.ip()));
    let socket = sockets::towards_server(flow.client, flow_policy::own_address(&config), marks)?;
    // Attach the filter before connecting: the server's SYN-ACK also has marks.
    if let Some(filters) = &context.segment_marks {
        filters.watch(&socket)?;
    }
    let socket = TcpSocket::from_std_stream(socket);
    socket.connect(flow.server.into()).await
}
