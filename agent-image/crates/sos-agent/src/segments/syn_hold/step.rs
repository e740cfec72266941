//! Inputs and results of the SYN hold ([`super::SynHold`]).

use sos_wire::{AgentId, Marks, PlainReason, RefuseReason, ServiceMark, SessionUuid};

use crate::documents::config::Accept;
use crate::policy::flow_key::FlowKey;
use crate::segments::syn_hold::client_backoff::{Client, Source};
use crate::segments::syn_hold::plain_path::Check;
use crate::segments::syn_hold::syn::Syn;

/// Service setting, egress agent and session of a client whose SYN arrives.
#[derive(Debug, Clone, Copy)]
pub struct Covered {
    /// The service.
    pub service: ServiceMark,
    /// Sender of the SYN in the client's network.
    pub source: Source,
    /// The service's `accept` setting.
    pub accept: Accept,
    /// The egress agent.
    pub peer: AgentId,
    /// UUID of the client's session.
    pub session: SessionUuid,
    /// Sequence number of a check of the plain path; `None` if the path is not checked.
    pub check: Option<u32>,
    /// True if the egress agent connects from inside the server's pod, and so reaches every server that answers a check.
    pub beside: bool,
}

impl Covered {
    /// The client of a SYN.
    #[must_use]
    pub fn client(&self, syn: &Syn) -> Client {
        Client { source: self.source, address: *syn.flow.client.ip(), service: self.service }
    }
}

/// Action for the edge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Reinject the SYN for this agent's listener.
    Take(Vec<u8>),
    /// Reinject the SYN for the server.
    Leave(Vec<u8>, PlainReason),
    /// Ask the egress agent to connect.
    Ask(Ask),
    /// Notify the egress agent that the session will not begin.
    Release(AgentId, SessionUuid),
    /// Send a check of the plain path.
    Check(Check),
    /// Find out if the kernel still waits for the client of this connection, and report the result to [`super::SynHold::examined`].
    Examine(FlowKey),
    /// Inject a reset for this agent's half-open connection. Otherwise the agent's kernel would receive, and reset, the packets of the
    /// plain connection.
    Reset(Vec<u8>),
}

/// Request to the egress agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ask {
    /// The session that may begin.
    pub session: SessionUuid,
    /// The egress agent.
    pub peer: AgentId,
    /// The connection.
    pub flow: FlowKey,
    /// The client's DSCP and TTL.
    pub marks: Marks,
}

/// True if the server, or a device in front of it, has not accepted.
#[must_use]
pub fn is_servers(reason: RefuseReason) -> bool {
    matches!(reason, RefuseReason::ServerRefused | RefuseReason::ServerRejected | RefuseReason::ServerSilent)
}

/// Reason why a client is plain after the egress agent's refusal.
pub(super) fn plain_reason(reason: RefuseReason) -> PlainReason {
    match reason {
        RefuseReason::ServerRefused | RefuseReason::ServerRejected => PlainReason::SERVER_REFUSED,
        RefuseReason::ServerSilent => PlainReason::SERVER_SILENT,
        RefuseReason::PortTaken => PlainReason::PORT_TAKEN,
        RefuseReason::Draining => PlainReason::DRAINING,
        RefuseReason::SessionLimit => PlainReason::SESSIONS,
        RefuseReason::MemoryLimit => PlainReason::MEMORY,
        RefuseReason::NotPermitted => PlainReason::NOT_PERMITTED,
        RefuseReason::ServerUnreachable => PlainReason::SERVER_UNREACHABLE,
        RefuseReason::UnknownPeer | RefuseReason::UnsupportedTransport => PlainReason::NO_AGENT,
    }
}
