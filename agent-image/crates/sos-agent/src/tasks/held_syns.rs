//! Holds clients' SYNs until the egress agent reports whether their server accepts (docs/adr/0053).
//!
//! nft drops such a SYN and sends a copy here ([`crate::netns::nflog`]); [`crate::segments::syn_hold`] decides; raw sockets reinject the SYN
//! ([`crate::segments::syn_hold::injector`]).

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sos_daemon::bugs::fence;
use sos_wire::{AgentId, Open, PlainReason, RefuseReason, ServiceMark, SessionUuid};
use tokio::time::{sleep, sleep_until};
use tracing::{debug, warn};

use crate::context::AgentContext;
use crate::documents::config::Accept;
use crate::netns::nflog::{self, Copied, Copies};
use crate::policy::flow_key::FlowKey;
use crate::policy::flow_policy;
use crate::segments::syn_hold::check_packet::parse_answer;
use crate::segments::syn_hold::client_backoff::Source;
use crate::segments::syn_hold::syn::Syn;
use crate::segments::syn_hold::{Ask, Covered, Step, is_servers};
use crate::tasks::ingress::far_agent;

/// Maximum size of a datagram of copies: one packet plus its attributes.
const BUFFER: usize = 128 << 10;
/// Maximum sleep of the task that handles deadlines.
const IDLE: Duration = Duration::from_secs(1);

/// Pod whose SYNs are held, and the port from which its plain paths are checked.
#[derive(Debug, Clone, Copy)]
pub struct HeldPod {
    /// The pod's address.
    pub address: Ipv4Addr,
    /// Port of its checks.
    pub check_port: u16,
}

/// Handles copies of one namespace's SYNs, and of the answers to its checks, forever.
pub async fn hold_syns(context: Arc<AgentContext>, copies: Copies, pod: Option<HeldPod>) {
    let mut buffer = vec![0; BUFFER];
    loop {
        match copies.receive(&mut buffer).await {
            Ok(length) => {
                for Copied { sender, packet } in nflog::packets(&buffer[..length]) {
                    let from = pod.map_or(Source::Mac(sender), |pod| Source::Pod(pod.address));
                    // A program in a pod may cause copies of any packet: only a packet from the pod's address is handled as the pod's SYN.
                    if pod.is_none_or(|pod| pod.address == source(packet)) {
                        fence(|| arrived(&context, packet, from));
                    } else if let Some(pod) = pod {
                        fence(|| checked(&context, packet, pod));
                    }
                }
            }
            Err(error) => {
                warn!(%error, "copies of SYNs");
                sleep(IDLE).await;
            }
        }
    }
}

/// Handles deadlines of held SYNs, forever.
pub async fn expire_syns(context: Arc<AgentContext>) {
    loop {
        let (next, held) = context.hold().with(|syns| (syns.next_timeout(), syns.len()));
        context.metrics.held.set(i64::try_from(held).unwrap_or(i64::MAX));
        // A SYN that is taken does not wake this task: its deadline is seconds away.
        let idle = Instant::now() + IDLE;
        let next = next.map_or(idle, |next| next.min(idle));
        tokio::select! {
            () = sleep_until(next.into()) => {
                fence(|| {
                    let due = context.hold().with(|syns| syns.expire(Instant::now()));
                    carry_out(&context, due);
                });
            }
            () = context.hold_changed.notified() => {}
        }
    }
}

/// Handles a copy of the answer to a check.
fn checked(context: &AgentContext, packet: &[u8], pod: HeldPod) {
    let Some(answer) = parse_answer(packet, pod.address, pod.check_port) else { return };
    debug!(server = %answer.path.server, client = %pod.address, refused = answer.refused, "answer to a check");
    let steps = context.hold().with(|syns| syns.checked(answer, Instant::now()));
    carry_out(context, steps);
}

/// Handles a copy of a SYN.
fn arrived(context: &AgentContext, packet: &[u8], source: Source) {
    let syn = match Syn::parse(packet) {
        Ok(syn) => syn,
        Err(error) => return debug!(%error, "a copy is no SYN"),
    };
    let steps = match covered(context, syn.flow, source) {
        Ok(covered) => context.hold().with(|syns| syns.arrive(syn, covered, Instant::now())),
        Err(Some(reason)) => context.hold().with(|syns| syns.leave_now(syn, reason)),
        Err(None) => vec![Step::Take(syn.packet)],
    };
    carry_out(context, steps);
}

/// Returns the parameters of a client's SYN from the configuration, or `Err` if the egress agent need not be asked. `Err` with a reason
/// makes the connection plain; `Err(None)` reinjects the SYN for the listener.
fn covered(context: &AgentContext, flow: FlowKey, source: Source) -> Result<Covered, Option<PlainReason>> {
    // A controller has already prepared this client (reactive set-up of a proactive service).
    if context.with_order_protocol(|protocol, env| protocol.expects(flow, env.now)) {
        return Err(None);
    }
    if context.virtual_address.is_backup() {
        return Err(Some(PlainReason::NOT_ARMED));
    }
    let config = context.config();
    let service = flow_policy::ingress_service(&config, flow).ok_or(Some(PlainReason::NOT_ARMED))?;
    let peer = far_agent(context, &config, service, flow).ok_or(Some(PlainReason::NO_AGENT))?;
    if !context.reserve_share(service, flow) {
        return Err(Some(PlainReason::SHARE));
    }
    let asks = service.holds() && context.tunnel().can_ask(peer);
    let accept = if asks { service.accept } else { Accept::Early };
    let check = config.checks_paths().then(rand::random);
    let beside = flow_policy::is_beside(&config, peer, *flow.server.ip());
    let (session, service) = (SessionUuid(rand::random()), ServiceMark::of(&service.id));
    Ok(Covered { service, source, accept, peer, session, check, beside })
}

/// Handles the egress agent's answer.
pub(crate) fn answered(
    context: &AgentContext,
    peer: AgentId,
    session: SessionUuid,
    refused: Option<RefuseReason>,
) {
    debug!(%session, ?refused, "the egress agent has answered for a server");
    if refused.is_some_and(is_servers) {
        // If the session is already running, its server has left the egress agent's SYN unanswered.
        let begun = context.with_order_protocol(|protocol, _| protocol.unordered_server(session, peer));
        context.hold().with(|syns| begun.into_iter().for_each(|server| syns.known.forget(server)));
    }
    let steps = context.hold().with(|syns| syns.answer(peer, session, refused, Instant::now()));
    carry_out(context, steps);
}

fn carry_out(context: &AgentContext, steps: Vec<Step>) {
    let waits = steps.iter().any(|step| matches!(step, Step::Ask(_) | Step::Check(_)));
    for step in steps {
        match step {
            Step::Take(packet) => context.hold().write(source(&packet), |writers| writers.take(&packet)),
            Step::Leave(packet, reason) => {
                context.note_left(reason);
                if let Ok(syn) = Syn::parse(&packet) {
                    context.release_share(syn.flow);
                }
                context.hold().write(source(&packet), |writers| writers.leave(&packet, reason));
            }
            Step::Ask(question) => ask(context, question),
            Step::Release(peer, session) => context.tunnel().release(peer, session),
            Step::Check(check) => context.hold().write(check.path.client, |writers| writers.check(&check)),
            Step::Examine(flow) => {
                let half_open = context.hold().is_half_open(flow);
                context.hold().with(|syns| syns.examined(flow, half_open));
            }
            Step::Reset(packet) => context.hold().write(source(&packet), |writers| writers.take(&packet)),
        }
    }
    if waits {
        context.hold_changed.notify_one();
    }
}

/// Source address of an IPv4 packet.
fn source(packet: &[u8]) -> Ipv4Addr {
    let octets = packet.get(12..16).and_then(|octets| <[u8; 4]>::try_from(octets).ok());
    octets.map_or(Ipv4Addr::UNSPECIFIED, Ipv4Addr::from)
}

fn ask(context: &AgentContext, Ask { session, peer, flow, marks }: Ask) {
    let config = context.config();
    let Some(service) = flow_policy::ingress_service(&config, flow) else { return };
    let open = Open {
        session,
        client: flow.client,
        server: flow.server,
        marks,
        block_bytes: service.transport.block_bytes,
        queue_bytes: service.transport.queue_bytes,
    };
    if !context.tunnel().ask(peer, open, sos_tunnel::Labels(service.label_mask())) {
        let steps = context.hold().with(|syns| syns.fail(session));
        carry_out(context, steps);
    }
}
