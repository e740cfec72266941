//! Clients and servers like those of users: ordinary sockets with default options.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};

use sha2::{Digest, Sha256};
use socket2::{Domain, Socket, Type};

use crate::lab::{CLIENT, Lab, PATIENCE, SERVER, SERVICE_PORT};

/// A server's view of one connection.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) client: SocketAddr,
    pub(crate) digest: [u8; 32],
    /// Error at the end of the stream; `None` after a clean end.
    pub(crate) error: Option<ErrorKind>,
}

/// Bytes that are the same in every run and compress badly.
pub(crate) fn content(seed: u8, length: usize) -> Vec<u8> {
    let mut state = u64::from(seed) + 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    std::iter::repeat_with(&mut next).flatten().take(length).collect()
}

pub(crate) fn digest(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// Starts a server that reads each connection to its end, then answers with `reply` and closes. It serves until the lab is
/// dropped.
pub(crate) fn serve(lab: &Lab, reply: Vec<u8>) -> Receiver<Seen> {
    serve_at(lab, "server", reply)
}

/// Starts a server as [`serve`] does, on a given host.
pub(crate) fn serve_at(lab: &Lab, host: &str, reply: Vec<u8>) -> Receiver<Seen> {
    let (ready, listening) = channel();
    let (tell, seen) = channel();
    lab.start(host, move || {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, SERVICE_PORT)).unwrap();
        ready.send(()).unwrap();
        for stream in listener.incoming() {
            let (tell, reply) = (tell.clone(), reply.clone());
            std::thread::spawn(move || {
                let _ = tell.send(serve_one(stream.unwrap(), &reply));
            });
        }
    });
    listening.recv().unwrap();
    seen
}

fn serve_one(mut stream: TcpStream, reply: &[u8]) -> Seen {
    let client = stream.peer_addr().unwrap();
    let (digest, error) = drain(&mut stream);
    if error.is_none() {
        stream.write_all(reply).unwrap();
    }
    Seen { client, digest, error }
}

/// Reads to the end; returns the digest of the bytes and the error at the end.
pub(crate) fn drain(stream: &mut TcpStream) -> ([u8; 32], Option<ErrorKind>) {
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 256 * 1024];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return (hash.finalize().into(), None),
            Ok(read) => hash.update(&buffer[..read]),
            Err(error) => return (hash.finalize().into(), Some(error.kind())),
        }
    }
}

/// A client's view of one connection.
#[derive(Debug)]
pub(crate) struct Got {
    pub(crate) from: SocketAddr,
    pub(crate) peer: SocketAddr,
    pub(crate) digest: [u8; 32],
    pub(crate) error: Option<ErrorKind>,
}

/// Connects, sends, closes its direction and reads the reply. Call in the client's namespace.
pub(crate) fn fetch(request: &[u8]) -> std::io::Result<Got> {
    exchange(connect()?, request)
}

pub(crate) fn exchange(mut stream: TcpStream, request: &[u8]) -> std::io::Result<Got> {
    let (from, peer) = (stream.local_addr()?, stream.peer_addr()?);
    stream.write_all(request)?;
    stream.shutdown(Shutdown::Write)?;
    let (digest, error) = drain(&mut stream);
    Ok(Got { from, peer, digest, error })
}

/// Does the same as [`fetch`], from a given port.
pub(crate) fn fetch_from(port: u16, request: &[u8]) -> std::io::Result<Got> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.bind(&SocketAddr::from((CLIENT, port)).into())?;
    socket.connect(&SocketAddr::from((SERVER, SERVICE_PORT)).into())?;
    exchange(socket.into(), request)
}

/// Connects to the service. Call in the client's namespace.
pub(crate) fn connect() -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&(SERVER, SERVICE_PORT).into(), PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Transfers a few bytes in both directions over a new connection, and asserts all results; returns the client's address.
pub(crate) fn assert_works(lab: &Lab, seen: &Receiver<Seen>, reply: &[u8]) -> SocketAddr {
    let request = content(3, 10_000);
    let sent = digest(&request);
    let got = lab.at("client", move || fetch(&request)).unwrap();
    assert_eq!((got.error, got.digest), (None, digest(reply)));
    let seen = seen.recv_timeout(PATIENCE).unwrap();
    assert_eq!(seen, Seen { client: got.from, digest: sent, error: None });
    got.from
}
