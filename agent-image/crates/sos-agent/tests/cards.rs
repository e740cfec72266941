//! Exchanges of site cards over TCP on the loopback interface, with `/cards` beside them (spec/card.md).
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use sos_agent::documents::cards::Cards;
use sos_agent::tasks::cards::{Bounds, FindKey, exchange_cards};
use sos_agent::tasks::http;
use sos_wire::{
    CardAnswer, CardOffer, CardStatus, InstallationId, Key, KeyId, PairingId, UnverifiedOffer, WireError,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};

const KEY: Key = Key::new([7; 32]);
const PAIRING: PairingId = PairingId([0x11; 16]);
const WEST: InstallationId = InstallationId([0xaa; 16]);
const EAST: InstallationId = InstallationId([0xbb; 16]);
/// Timeout of every wait of a test, long enough for a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
const CONNECTIONS: usize = 16;
/// Time limit of an exchange in tests in which it must not expire.
const NEVER: Duration = Duration::from_secs(3600);

/// The acceptor at cluster west, with its HTTP server.
struct West {
    folder: tempfile::TempDir,
    port: u16,
    http: SocketAddr,
}

impl West {
    /// Starts with a file of peers that admits `installation`.
    async fn start(installation: Option<InstallationId>, limit: Duration) -> Self {
        let west = Self::start_without_file(limit).await;
        west.write_peers(installation);
        west
    }

    async fn start_without_file(limit: Duration) -> Self {
        let (folder, port) = (tempfile::tempdir().unwrap(), free_port().await);
        let bounds = Bounds { connections: CONNECTIONS, exchange: limit, poll: Duration::from_millis(10) };
        let (cards, path) = (Arc::new(Cards::default()), folder.path().join("peers.json"));
        let keys: Arc<FindKey> = Arc::new(|pairing, id| {
            let known = pairing == PAIRING && id.as_u16() == 1;
            if known { Ok(KEY) } else { Err(WireError::UnknownKey(id.as_u16())) }
        });
        let shared = Arc::clone(&cards);
        tokio::spawn(async move { exchange_cards(&path, shared, keys, bounds).await });
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let http = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, http::cards(cards)).await });
        Self { folder, port, http }
    }

    fn write_peers(&self, installation: Option<InstallationId>) {
        write_whole(&self.folder.path().join("peers.json"), &document(self.port, installation).to_string());
    }

    /// Connects as soon as the acceptor listens.
    async fn connect(&self) -> TcpStream {
        eventually("the acceptor listens", async || {
            TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).await.ok()
        })
        .await
    }

    /// Sends bytes, and returns the answer: empty if the connection is closed without an answer.
    async fn exchange(&self, message: &[u8]) -> Vec<u8> {
        let mut stream = self.connect().await;
        stream.write_all(message).await.unwrap();
        read_to_close(&mut stream).await
    }

    /// The document at `/cards`.
    async fn page(&self) -> Value {
        let mut stream = TcpStream::connect(self.http).await.unwrap();
        stream.write_all(b"GET /cards HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
        let page = String::from_utf8(read_to_close(&mut stream).await).unwrap();
        serde_json::from_str(page.split_once("\r\n\r\n").unwrap().1).unwrap()
    }

    async fn wait_refused(&self, cause: &str, count: u64) {
        eventually(&format!("{count} refused by {cause}"), async || {
            (self.page().await["refused"][cause] == count).then_some(())
        })
        .await;
    }
}

fn document(port: u16, installation: Option<InstallationId>) -> Value {
    let peer = json!({"pairing": PAIRING.to_string(), "installation": installation.map(|id| id.to_string()),
                      "sequence": 11, "card": "card of west"});
    json!({"version": "v1alpha1", "port": port, "installation": WEST.to_string(), "peers": [peer]})
}

/// Replaces a file atomically, as an update of a mounted folder does.
fn write_whole(path: &Path, text: &str) {
    let beside = path.with_extension("new");
    std::fs::write(&beside, text).unwrap();
    std::fs::rename(beside, path).unwrap();
}

/// A port below the range of ephemeral ports, so that no connection of another program takes it before the acceptor listens.
async fn free_port() -> u16 {
    static COUNT: AtomicU16 = AtomicU16::new(0);
    let first = 20_000 + u16::try_from(std::process::id() % 100 * 100).unwrap();
    loop {
        let port = first + COUNT.fetch_add(1, Ordering::Relaxed);
        if TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await.is_ok() {
            return port;
        }
    }
}

async fn eventually<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let found = async {
        loop {
            match look().await {
                Some(found) => return found,
                None => sleep(Duration::from_millis(10)).await,
            }
        }
    };
    timeout(PATIENCE, found).await.unwrap_or_else(|_| panic!("not within {PATIENCE:?}: {what}"))
}

/// Reads until the peer closes: by FIN, or by RST if the peer has not read everything.
async fn read_to_close(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    let read = timeout(PATIENCE, stream.read_to_end(&mut bytes)).await.expect("the connection is closed");
    assert!(read.is_ok() || bytes.is_empty(), "{read:?}");
    bytes
}

fn offer(installation: InstallationId, sequence: u64) -> CardOffer<'static> {
    let key_id = KeyId::new(1).unwrap();
    CardOffer { key_id, pairing: PAIRING, installation, nonce: [4; 16], sequence, card: b"card of east" }
}

fn status(answer: &[u8], message: &[u8]) -> CardStatus {
    CardAnswer::verify(answer, &KEY, &UnverifiedOffer::parse(message).unwrap()).unwrap().status
}

#[tokio::test]
async fn an_offer_is_stored_once_and_shown_whole() {
    let west = West::start(Some(EAST), NEVER).await;
    let message = offer(EAST, 7).encode(&KEY).unwrap();
    let answer = west.exchange(&message).await;
    let read = CardAnswer::verify(&answer, &KEY, &UnverifiedOffer::parse(&message).unwrap()).unwrap();
    let (status_of_first, card) = (CardStatus::Stored, b"card of west".as_slice());
    assert_eq!(read, CardAnswer { installation: WEST, sequence: 11, status: status_of_first, card });
    assert_eq!(status(&west.exchange(&message).await, &message), CardStatus::NotNewer);

    let page = west.page().await;
    assert_eq!(page["offers"].as_array().unwrap().len(), 1);
    assert_eq!(page["offers"][0]["pairing"], PAIRING.to_string());
    assert!(page["offers"][0]["ageMilliseconds"].is_u64());
    assert_eq!(decode(page["offers"][0]["message"].as_str().unwrap()), message);
    assert_eq!(page["refused"]["NotNewer"], 1);
}

/// Decodes base64 by a search in the alphabet.
fn decode(text: &str) -> Vec<u8> {
    let alphabet: Vec<u8> = (b'A'..=b'Z').chain(b'a'..=b'z').chain(b'0'..=b'9').chain(*b"+/").collect();
    let digits = text.bytes().filter(|b| *b != b'=');
    let (mut bytes, mut bits, mut count) = (Vec::new(), 0u32, 0);
    for digit in digits.map(|b| alphabet.iter().position(|a| *a == b).unwrap()) {
        (bits, count) = (bits << 6 | digit as u32, count + 6);
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    bytes
}

#[tokio::test]
async fn invalid_offers_are_closed_without_an_answer_and_counted() {
    let west = West::start(Some(EAST), NEVER).await;
    let message = offer(EAST, 7).encode(&KEY).unwrap();
    let forged = offer(EAST, 7).encode(&Key::new([8; 32])).unwrap();
    let unknown = CardOffer { key_id: KeyId::new(2).unwrap(), ..offer(EAST, 7) }.encode(&KEY).unwrap();
    let mut oversize = message.clone();
    oversize[68..72].copy_from_slice(&262_145_u32.to_be_bytes());
    for (bytes, cause, count) in [
        (forged.as_slice(), "WrongTag", 1),
        // The acceptor decides by the header, without waiting for the rest.
        (&unknown[..72], "UnknownKey", 1),
        (&oversize[..72], "Malformed", 1),
        (&[0; 72], "Malformed", 2),
    ] {
        assert!(west.exchange(bytes).await.is_empty(), "{cause}");
        west.wait_refused(cause, count).await;
    }
    let mut stream = west.connect().await;
    stream.write_all(&message[..100]).await.unwrap();
    stream.shutdown().await.unwrap();
    assert!(read_to_close(&mut stream).await.is_empty());
    west.wait_refused("Malformed", 3).await;
    assert_eq!(west.page().await["offers"], json!([]));
}

#[tokio::test]
async fn another_installation_gets_its_status_and_no_card() {
    let west = West::start(Some(EAST), NEVER).await;
    let message = offer(InstallationId([9; 16]), 7).encode(&KEY).unwrap();
    let answer = west.exchange(&message).await;
    let read = CardAnswer::verify(&answer, &KEY, &UnverifiedOffer::parse(&message).unwrap()).unwrap();
    assert_eq!((read.status, read.card), (CardStatus::OtherInstallation, b"".as_slice()));
    let page = west.page().await;
    assert_eq!((&page["offers"], &page["refused"]["OtherInstallation"]), (&json!([]), &json!(1)));
}

#[tokio::test]
async fn connections_above_the_maximum_are_closed() {
    let west = West::start(Some(EAST), NEVER).await;
    let mut waiting = Vec::new();
    for _ in 0..CONNECTIONS {
        waiting.push(west.connect().await);
    }
    assert!(read_to_close(&mut west.connect().await).await.is_empty());
    west.wait_refused("TooMany", 1).await;
    drop(waiting.pop());
    // The slot is free as soon as the acceptor has read the FIN.
    west.wait_refused("Malformed", 1).await;
    let message = offer(EAST, 7).encode(&KEY).unwrap();
    let answer = eventually("a place is free", async || {
        let mut stream = west.connect().await;
        let sent = stream.write_all(&message).await;
        Some(read_to_close(&mut stream).await).filter(|answer| sent.is_ok() && !answer.is_empty())
    });
    assert_eq!(status(&answer.await, &message), CardStatus::Stored);
}

#[tokio::test]
async fn a_slow_sender_is_closed_at_the_time_limit() {
    let west = West::start(Some(EAST), Duration::from_millis(50)).await;
    let message = offer(EAST, 7).encode(&KEY).unwrap();
    for sent in [0, 71, message.len() - 1] {
        let mut stream = west.connect().await;
        stream.write_all(&message[..sent]).await.unwrap();
        assert!(read_to_close(&mut stream).await.is_empty());
    }
    west.wait_refused("TimedOut", 3).await;
}

#[tokio::test]
async fn listens_while_the_file_exists_and_keeps_stored_offers() {
    let west = West::start_without_file(NEVER).await;
    let refused = async || match TcpStream::connect((Ipv4Addr::LOCALHOST, west.port)).await {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Some(()),
        _ => None,
    };
    refused().await.expect("port closed while there is no peers file");
    // While its address is in use, the acceptor keeps trying to listen.
    let taken = TcpListener::bind((Ipv4Addr::UNSPECIFIED, west.port)).await.unwrap();
    west.write_peers(None);
    sleep(Duration::from_millis(50)).await;
    drop(taken);
    let message = offer(EAST, 7).encode(&KEY).unwrap();
    let answer = eventually("an answer", async || {
        Some(west.exchange(&message).await).filter(|answer| !answer.is_empty())
    });
    assert_eq!(status(&answer.await, &message), CardStatus::Stored);

    let path = west.folder.path().join("peers.json");
    write_whole(&path, "{");
    sleep(Duration::from_millis(50)).await;
    assert_eq!(
        status(&west.exchange(&message).await, &message),
        CardStatus::NotNewer,
        "the last valid document"
    );
    std::fs::remove_file(&path).unwrap();
    eventually("the listener is closed", refused).await;
    assert_eq!(west.page().await["offers"].as_array().unwrap().len(), 1);
}
