//! Holds clients' SYNs until the far agent says whether their server accepts (docs/adr/0053).
//!
//! nft drops such a SYN and sends a copy here ([`crate::nflog`]); [`crate::syn_hold`] decides; raw sockets write it back: with a mark that
//! leads it to the transparent listener, or out of the agent's interface to the server.

use std::io;
use std::net::SocketAddrV4;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, Socket, Type};
use sos_wire::{AgentId, Open, PlainReason, RefuseReason, SessionUuid};
use tokio::time::{sleep, sleep_until};
use tracing::{debug, warn};

use crate::bugs::fence;
use crate::config::Accept;
use crate::ingress::far_agent;
use crate::nflog::{self, Copies};
use crate::nft;
use crate::permit::{self, FlowKey};
use crate::shared::Shared;
use crate::syn::Syn;
use crate::syn_hold::{Ask, Covered, Step, SynHold, is_servers};

/// IPPROTO_RAW: what is sent has its IP header already (raw(7)).
const WITH_HEADER: i32 = 255;
/// Longest datagram of copies: one packet and its attributes.
const BUFFER: usize = 128 << 10;
/// Sleep of the task while no SYN is held.
const IDLE: Duration = Duration::from_secs(1);

/// Held SYNs, and the sockets that write them back.
#[derive(Debug, Default)]
pub struct Hold {
    syns: Mutex<SynHold>,
    writers: Option<Writers>,
}

/// The sockets that write held SYNs back. They need NET_RAW.
#[derive(Debug)]
pub struct Writers {
    to_listener: Socket,
    /// Bound to the agent's interface: a pod's other interfaces are none of the clients' business.
    to_server: Mutex<Socket>,
}

impl Writers {
    /// # Errors
    /// Error of the kernel.
    pub fn new(interface: &str) -> io::Result<Self> {
        let raw = || Socket::new(Domain::IPV4, Type::RAW.nonblocking(), Some(Protocol::from(WITH_HEADER)));
        let (to_listener, to_server) = (raw()?, raw()?);
        to_listener.set_mark(nft::TAKE)?;
        to_server.bind_device(Some(interface.as_bytes()))?;
        Ok(Self { to_listener, to_server: Mutex::new(to_server) })
    }

    fn take(&self, packet: &[u8]) -> io::Result<usize> {
        self.to_listener.send_to(packet, &destination(packet)?.into())
    }

    fn leave(&self, packet: &[u8], reason: PlainReason) -> io::Result<usize> {
        let socket = self.to_server.lock().unwrap_or_else(PoisonError::into_inner);
        socket.set_mark(nft::LEAVE | u32::from(reason.0))?;
        socket.send_to(packet, &destination(packet)?.into())
    }
}

impl Hold {
    /// An empty one; without writers nothing can be held.
    #[must_use]
    pub fn new(writers: Option<Writers>) -> Self {
        Self { syns: Mutex::default(), writers }
    }

    /// True where SYNs can be held; elsewhere services that ask for it stay plain.
    #[must_use]
    pub fn is_able(&self) -> bool {
        self.writers.is_some()
    }

    /// Works with what is held.
    pub(crate) fn with<T>(&self, act: impl FnOnce(&mut SynHold) -> T) -> T {
        act(&mut self.syns.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn write(&self, write: impl FnOnce(&Writers) -> io::Result<usize>) {
        // As if it had been lost on the wire: its client repeats it.
        if let Some(Err(error)) = self.writers.as_ref().map(write) {
            debug!(%error, "a held SYN was not written back");
        }
    }
}

/// The means to hold SYNs; `None` on a kernel without nfnetlink_log, or in a process without NET_RAW.
#[must_use]
pub fn open(interface: &str) -> Option<(Writers, Copies)> {
    let copies = Copies::open(nft::COPIES);
    match Writers::new(interface).and_then(|writers| Ok((writers, copies?))) {
        Ok(opened) => Some(opened),
        Err(error) => {
            warn!(%error, "SYNs cannot be held: proactive services with accept Learned or Confirmed stay plain");
            None
        }
    }
}

fn destination(packet: &[u8]) -> io::Result<SocketAddrV4> {
    let octets = packet.get(16..20).and_then(|octets| <[u8; 4]>::try_from(octets).ok());
    octets.map(|octets| SocketAddrV4::new(octets.into(), 0)).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Takes copies of SYNs for ever, and does what is due.
pub async fn hold_syns(shared: Arc<Shared>, copies: Copies) {
    let mut buffer = vec![0; BUFFER];
    loop {
        let (next, held) = shared.hold().with(|syns| (syns.next_timeout(), syns.len()));
        shared.metrics.held.set(i64::try_from(held).unwrap_or(i64::MAX));
        let next = next.unwrap_or_else(|| Instant::now() + IDLE);
        tokio::select! {
            received = copies.receive(&mut buffer) => match received {
                Ok(length) => {
                    for packet in nflog::packets(&buffer[..length]) {
                        fence(|| arrived(&shared, packet));
                    }
                }
                Err(error) => {
                    warn!(%error, "copies of SYNs");
                    sleep(IDLE).await;
                }
            },
            () = sleep_until(next.into()) => {
                fence(|| {
                    let due = shared.hold().with(|syns| syns.expire(Instant::now()));
                    carry_out(&shared, due);
                });
            }
            () = shared.hold_changed.notified() => {}
        }
    }
}

/// A copy of a SYN has arrived.
fn arrived(shared: &Shared, packet: &[u8]) {
    let syn = match Syn::parse(packet) {
        Ok(syn) => syn,
        Err(error) => return debug!(%error, "a copy is no SYN"),
    };
    let step = match covered(shared, syn.flow) {
        Ok(covered) => shared.hold().with(|syns| syns.arrive(syn, covered, Instant::now())),
        Err(Some(reason)) => Some(Step::Leave(syn.packet, reason)),
        Err(None) => Some(Step::Take(syn.packet)),
    };
    carry_out(shared, step.into_iter().collect());
}

/// The configuration's decision for a client. `Err` where no question is due: the reason for plain TCP, or `None` where its SYN is taken.
fn covered(shared: &Shared, flow: FlowKey) -> Result<Covered, Option<PlainReason>> {
    // A controller has asked already (a proactive service that is set up reactively).
    if shared.at_desk(|desk, env| desk.expects(flow, env.now)) {
        return Err(None);
    }
    let config = shared.config();
    let service = permit::ingress_service(&config, flow).ok_or(Some(PlainReason::NOT_ARMED))?;
    let peer = far_agent(shared, &config, service).ok_or(Some(PlainReason::NO_AGENT))?;
    let asks = service.holds() && shared.tunnel().can_ask(peer);
    let accept = if asks { service.accept } else { Accept::Early };
    Ok(Covered { accept, peer, session: SessionUuid(rand::random()) })
}

/// The far agent has answered.
pub(crate) fn answered(shared: &Shared, peer: AgentId, session: SessionUuid, refused: Option<RefuseReason>) {
    debug!(%session, ?refused, "the far agent answers for a server");
    if refused.is_some_and(is_servers) {
        // Of a session that has begun: its server has left the far agent's SYN unanswered.
        let begun = shared.at_desk(|desk, _| desk.unordered_server(session, peer));
        shared.hold().with(|syns| begun.into_iter().for_each(|server| syns.known.forget(server)));
    }
    let steps = shared.hold().with(|syns| syns.answer(peer, session, refused, Instant::now()));
    carry_out(shared, steps);
}

fn carry_out(shared: &Shared, steps: Vec<Step>) {
    let asks = steps.iter().any(|step| matches!(step, Step::Ask(_)));
    for step in steps {
        match step {
            Step::Take(packet) => shared.hold().write(|writers| writers.take(&packet)),
            Step::Leave(packet, reason) => shared.hold().write(|writers| writers.leave(&packet, reason)),
            Step::Ask(question) => ask(shared, question),
            Step::Release(peer, session) => shared.tunnel().release(peer, session),
        }
    }
    if asks {
        shared.hold_changed.notify_one();
    }
}

fn ask(shared: &Shared, Ask { session, peer, flow, marks }: Ask) {
    let config = shared.config();
    let Some(service) = permit::ingress_service(&config, flow) else { return };
    let open = Open {
        session,
        client: flow.client,
        server: flow.server,
        marks,
        block_bytes: service.transport.block_bytes,
        queue_bytes: service.transport.queue_bytes,
    };
    if !shared.tunnel().ask(peer, open, sos_tunnel::Labels(service.label_mask())) {
        let steps = shared.hold().with(|syns| syns.fail(session));
        carry_out(shared, steps);
    }
}
