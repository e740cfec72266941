//! Listener of exchanges of site cards: one Offer and one Answer per connection (spec/card.md clauses 4 to 8 and 12).

use std::future::pending;
use std::net::Ipv4Addr;
use std::num::NonZeroU16;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sos_daemon::bugs::fence;
use sos_wire::card::HEADER_LEN;
use sos_wire::{Key, KeyId, PairingId, WireError};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tracing::{debug, info, warn};

use crate::documents::cards::Cards;
use crate::documents::cards::offer::admit;
use crate::documents::cards::store::Refusal;
use crate::documents::config::peers::Peers;
use crate::documents::config::peers_file::PeersFile;
use crate::documents::config::source::SourceError;

/// Pause after a failed accept: without descriptors or memory, the next accept would fail immediately.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// Bounds of exchanges.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Maximum number of open connections.
    pub connections: usize,
    /// Maximum duration of an exchange.
    pub exchange: Duration,
    /// Interval at which the file is read and a failed listener is reopened.
    pub poll: Duration,
}

impl Default for Bounds {
    /// The bounds of card.md clauses 8 and 12.
    fn default() -> Self {
        Self { connections: 16, exchange: Duration::from_secs(5), poll: Duration::from_secs(1) }
    }
}

/// Lookup of a pairing's card key in the keys in force.
pub type FindKey = dyn Fn(PairingId, KeyId) -> Result<Key, WireError> + Send + Sync;

/// Exchanges cards whenever the file of peers exists, forever. A failure does not end the task: the agent also relays without cards.
pub async fn exchange_cards(path: &Path, cards: Arc<Cards>, keys: Arc<FindKey>, bounds: Bounds) {
    let acceptor = Acceptor { cards, keys, bounds, slots: Arc::new(Semaphore::new(bounds.connections)) };
    let (mut file, mut listener) = (PeersFile::new(path), Listener::default());
    let mut peers: Option<Arc<Peers>> = None;
    let mut ticks = interval(bounds.poll);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {
                let polled = tokio::task::spawn_blocking(move || (fence(|| file.poll()).flatten(), file));
                let Ok((polled, same_file)) = polled.await else { return };
                file = same_file;
                if let Some(polled) = polled {
                    take(&mut peers, polled, &acceptor.cards);
                }
                listener.follow(peers.as_ref().map(|peers| peers.port)).await;
            }
            stream = listener.accept() => if let Some(peers) = &peers {
                acceptor.begin(stream, Arc::clone(peers));
            }
        }
    }
}

/// Puts a new document in force, or none after the file has disappeared. An invalid document leaves the last valid one in force.
fn take(peers: &mut Option<Arc<Peers>>, polled: Result<Option<Peers>, SourceError>, cards: &Cards) {
    match polled {
        Ok(Some(next)) => {
            info!(pairings = next.peers.len(), port = next.port, "peers in force");
            cards.with(|store| store.apply(&next));
            *peers = Some(Arc::new(next));
        }
        Ok(None) => {
            info!("the file of peers has disappeared: site cards are no longer exchanged");
            *peers = None;
        }
        Err(error) => warn!(%error, "cannot use the file of peers: the last valid one stays in force"),
    }
}

/// The listening socket, if there is one.
#[derive(Default)]
struct Listener {
    open: Option<(NonZeroU16, TcpListener)>,
    /// The failure that was logged last, so that each is logged once.
    failure: Option<String>,
}

impl Listener {
    /// Opens, moves or closes the socket.
    async fn follow(&mut self, wanted: Option<NonZeroU16>) {
        if self.open.as_ref().map(|(port, _)| *port) == wanted {
            return;
        }
        self.open = None;
        let Some(port) = wanted else { return };
        match TcpListener::bind((Ipv4Addr::UNSPECIFIED, port.get())).await {
            Ok(listener) => {
                info!(port, "listening for exchanges of site cards");
                (self.open, self.failure) = (Some((port, listener)), None);
            }
            Err(error) => self.report(format!("port {port}: {error}")),
        }
    }

    /// Waits for the next connection; forever without a socket.
    async fn accept(&mut self) -> TcpStream {
        loop {
            let Some((port, listener)) = &self.open else { return pending().await };
            match listener.accept().await {
                Ok((stream, _)) => {
                    self.failure = None;
                    return stream;
                }
                Err(error) => {
                    let failure = format!("port {port}: {error}");
                    self.report(failure);
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn report(&mut self, failure: String) {
        if self.failure.as_ref() != Some(&failure) {
            warn!(failure, "cannot exchange site cards; retrying");
            self.failure = Some(failure);
        }
    }
}

/// Inputs shared by all exchanges.
#[derive(Clone)]
struct Acceptor {
    cards: Arc<Cards>,
    keys: Arc<FindKey>,
    bounds: Bounds,
    slots: Arc<Semaphore>,
}

impl Acceptor {
    /// Starts the exchange of a connection; closes the connection if too many are open.
    fn begin(&self, mut stream: TcpStream, peers: Arc<Peers>) {
        let Ok(slot) = Arc::clone(&self.slots).try_acquire_owned() else {
            return self.refuse(Refusal::TooMany);
        };
        let acceptor = self.clone();
        tokio::spawn(async move {
            let exchange = acceptor.exchange(&mut stream, &peers);
            let ended = timeout(acceptor.bounds.exchange, exchange).await.unwrap_or(Err(Refusal::TimedOut));
            if let Err(refusal) = ended {
                acceptor.refuse(refusal);
            }
            drop(slot);
        });
    }

    async fn exchange(&self, stream: &mut TcpStream, peers: &Peers) -> Result<(), Refusal> {
        let incomplete = |_| Refusal::Malformed;
        let mut header = [0; HEADER_LEN];
        stream.read_exact(&mut header).await.map_err(incomplete)?;
        let admitted = admit(&header, peers, |pairing, id| (self.keys)(pairing, id))?;
        let mut message = vec![0; admitted.message_len()];
        message[..HEADER_LEN].copy_from_slice(&header);
        stream.read_exact(&mut message[HEADER_LEN..]).await.map_err(incomplete)?;
        let answer = admitted.answer(&message, &self.cards, Instant::now())?;
        // The decision remains valid even if the dialer does not read the Answer.
        if let Err(error) = stream.write_all(&answer).await {
            debug!(%error, "cannot send the answer to an offer of a site card");
        }
        Ok(())
    }

    fn refuse(&self, refusal: Refusal) {
        debug!(reason = refusal.label(), "an offer of a site card is refused");
        self.cards.with(|store| store.refuse(refusal));
    }
}
