//! The relay agent: sockets, orders and beacons around the tunnel between agents.
//!
//! Callers, in call order:
//!
//! 1. [`run`] reads the configuration ([`documents::config`]), prepares the network namespace ([`netns`]), makes the [`context::AgentContext`] and the
//!    tunnel of `sos-tunnel`, and starts the [`tasks`].
//! 2. nft, in the agent's own namespace or in pods' namespaces ([`tasks::pods`]), redirects a client's SYN to [`tasks::ingress`], through
//!    [`tasks::held_syns`] if the service is proactive. Ingress finds the flow's order ([`orders`]) or service
//!    ([`policy::flow_policy`]) and opens a session of the tunnel towards the peer.
//! 3. At the peer, [`tasks::egress`] checks the session against the peer's own configuration and connects to the server, normally from
//!    the client's address (`server_dial`), or uses the connection that `connect_ahead` has opened. `sos-tunnel` relays between the two
//!    sockets.
//! 4. Orders of controllers arrive in [`tasks`]; [`orders::OrderProtocol`] accepts or refuses them and answers. Its `poll` expires
//!    preparations and retransmits reports.
//! 5. Streams between agents are opened and accepted in [`tasks::streams`]; `stream_monitor` polls each stream for path control
//!    (`sos-pathctl`).
//! 6. Operators of peer clusters offer site cards to [`tasks::cards`], which stores them ([`documents::cards`]); this cluster's
//!    operator reads the cards from `/cards` ([`tasks::http`]).
//! 7. On a machine outside Kubernetes, [`tasks::enrollment`] receives the configuration from agents of the cluster, before the start of the
//!    other tasks and then beside them ([`documents::enrollment`]).
//!
//! | modules | part |
//! |---|---|
//! | [`documents`] (`config`, `cards`, `enrollment`) | the agent-config; site cards of peer clusters; the enrollment of a machine |
//! | [`policy::flow_policy`], [`policy::flow_key`], [`policy::classifier`] | flows that the configuration covers |
//! | [`policy::proxy_protocol`] | header that names the client to a server |
//! | [`policy::arming`] | decision to accept new connections, and the flows to intercept |
//! | [`policy::stream_pool`], [`policy::latest_willing`] | the streams to keep to each peer; the peer that became willing last |
//! | [`policy::load`], [`policy::service_meters`], [`policy::plain_traffic`] | figures for beacons, reports and metrics |
//! | [`orders`] (`prepare`, `reports`) | the order protocol between controllers and this agent |
//! | [`orders::preparations`], [`orders::active_sessions`], [`orders::pending_end_reports`] | its tables |
//! | [`segments`] (`syn_hold`, `half_open`) | TCP segments that the agent itself sends: held SYNs, checks of the plain path, probes of half-open connections |
//! | [`virtual_address`] (`watch`, `follow`) | nodes that share a gateway address: decisions; edge: the node's addresses |
//! | [`netns`] (`plan`, `nft`, `nflog`, `sock_diag`, `sockets`, `tables`) | edge: the kernel's network; `plan` and `nft` only render |
//! | [`netns::pod`] (`namespace`, `nf_tables`) | edge: sockets and table inside a pod's network namespace |
//! | [`tasks`] | edge: recurring tasks: arming, beacons, orders, reports, reloads |
//! | [`tasks::ingress`], [`tasks::egress`], [`tasks::held_syns`], [`tasks::server_legs`] | edge: sessions; `connect_ahead` and `server_dial` connect to servers |
//! | [`tasks::streams`] (`stream_monitor`), [`tasks::http`], [`tasks::status`] | edge: streams between agents; metrics, status and probes |
//! | [`tasks::pods`] | edge: enters and leaves the network namespaces of the node's pods |
//! | [`tasks::cards`] | edge: the listener of exchanges of site cards |
//! | [`tasks::enrollment`] | edge: the dialer of exchanges by which an enrolled machine receives its agent-config |
//! | [`context`] (`intercepted_pods`) | state that all tasks share |
//! | [`metrics`], [`cli`] | metrics page, command line |
//! | [`run`] | edge: start, drain, stop |
#![forbid(unsafe_code)]

pub mod cli;
pub mod context;
pub mod documents;
pub mod metrics;
pub mod netns;
pub mod orders;
pub mod policy;
pub mod run;
pub mod segments;
pub mod tasks;
pub mod virtual_address;
