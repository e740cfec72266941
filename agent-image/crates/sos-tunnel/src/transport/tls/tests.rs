//! Handshakes between two sockets, and the records that follow.

use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::ServerName;
use sos_wire::{Key, KeyId, SiteId, StreamEndpoint};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::handshake::shake;
use super::identity::Identity;
use super::*;

const PATIENCE: Duration = Duration::from_secs(60);

async fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    (near, listener.accept().await.unwrap().0)
}

fn named(id: u16) -> PairKeyName {
    (SiteId(1), KeyId::new(id).unwrap())
}

/// An acceptor that shares key 1, all of whose bytes are seven, with site 1.
async fn accept_one(socket: &mut TcpStream) -> Result<((Sealer, Opener), PairKeyName), TlsError> {
    let find = |name| (name == named(1)).then(|| Key::new([7; 32]));
    tokio::time::timeout(PATIENCE, accept(socket, Box::new(find))).await.unwrap()
}

async fn shaken() -> ((Sealer, Opener), (Sealer, Opener)) {
    let (mut near, mut far) = sockets().await;
    let key = Key::new([7; 32]);
    let (dialed, accepted) = tokio::join!(dial(&mut near, &key, named(1)), accept_one(&mut far));
    (dialed.unwrap(), accepted.unwrap().0)
}

/// Both ends' errors if the dialer has this key and claims this name.
async fn refused(key: [u8; 32], name: PairKeyName) -> (TlsError, TlsError) {
    let (mut near, mut far) = sockets().await;
    let dialing = async move { dial(&mut near, &Key::new(key), name).await.map(drop) };
    let accepting = async move { accept_one(&mut far).await.map(drop) };
    let (dialed, accepted) = tokio::join!(dialing, accepting);
    (dialed.unwrap_err(), accepted.unwrap_err())
}

#[tokio::test]
async fn both_ends_prove_the_named_key() {
    let (mut near, mut far) = sockets().await;
    let key = Key::new([7; 32]);
    let (dialed, accepted) = tokio::join!(dial(&mut near, &key, named(1)), accept_one(&mut far));
    assert!(dialed.is_ok());
    assert_eq!(accepted.unwrap().1, named(1));
}

#[tokio::test]
async fn the_dialer_detects_a_wrong_key() {
    let (dialer, acceptor) = refused([8; 32], named(1)).await;
    assert!(matches!(dialer, TlsError::Tls(rustls::Error::InvalidCertificate(_))), "{dialer}");
    assert!(matches!(acceptor, TlsError::Closed | TlsError::Io(_)), "{acceptor}");
}

#[tokio::test]
async fn an_unknown_key_is_refused_before_any_proof() {
    for name in [named(2), (SiteId(3), KeyId::new(1).unwrap())] {
        let (_, acceptor) = refused([7; 32], name).await;
        assert!(matches!(acceptor, TlsError::Tls(_)), "{acceptor}");
    }
}

/// Connects with one identity's key, expecting `other`, and returns the acceptor's result.
async fn accepts(own: &Identity, other: &Identity, name: &str) -> Result<(), TlsError> {
    let (mut near, mut far) = sockets().await;
    let identity = Identity { own: Arc::clone(&own.own), other: other.other.clone() };
    let config = Arc::new(config::client(identity).unwrap());
    let to = ServerName::try_from(name.to_owned()).unwrap();
    let client = UnbufferedClientConnection::new(config, to).unwrap();
    // The socket lives until the acceptor has decided.
    let dialing = async {
        let _ = shake(&mut near, client).await;
        let _ = near.read(&mut [0]).await;
    };
    let accepting = async move { accept_one(&mut far).await.map(drop) };
    tokio::join!(dialing, accepting).1
}

#[tokio::test]
async fn only_the_dialers_own_key_authenticates_it() {
    let key = Key::new([7; 32]);
    let dialer = Identity::derive(&key, StreamEndpoint::Dialer).unwrap();
    let acceptor = Identity::derive(&key, StreamEndpoint::Acceptor).unwrap();
    let stranger = Identity::derive(&Key::new([8; 32]), StreamEndpoint::Dialer).unwrap();
    assert!(accepts(&dialer, &dialer, "pair-1-1").await.is_ok());
    for wrong in [&acceptor, &stranger] {
        let error = accepts(wrong, &dialer, "pair-1-1").await.unwrap_err();
        assert!(matches!(error, TlsError::Tls(rustls::Error::InvalidCertificate(_))), "{error}");
    }
    for name in ["site-1", "pair-1", "pair-01-1", "example.org"] {
        assert!(accepts(&dialer, &dialer, name).await.is_err(), "{name}");
    }
}

#[tokio::test]
async fn garbage_is_no_handshake() {
    for garbage in [vec![FIRST_BYTE; 64], [&[FIRST_BYTE, 3, 1, 0x40, 0][..], &[0xa5; 40_000]].concat()] {
        let (mut near, mut far) = sockets().await;
        let accepting = tokio::spawn(async move { accept_one(&mut far).await.map(drop) });
        let _ = near.write_all(&garbage).await;
        let error = tokio::time::timeout(PATIENCE, accepting).await.unwrap().unwrap().unwrap_err();
        assert!(matches!(error, TlsError::Tls(_) | TlsError::TooLong), "{error}");
    }
}

#[tokio::test]
async fn records_may_be_cut_anywhere_and_read_in_any_portions() {
    let ((mut sealer, _), (_, mut opener)) = shaken().await;
    let data: Vec<u8> = (0..100_000u32).map(|i| (i * 7 + (i >> 8)) as u8).collect();
    let (chunks, mut records) = ([&data[..3], &data[3..40_000], &data[40_000..]], Vec::new());
    assert_eq!(sealer.seal(&chunks, 70_000, &mut records).unwrap(), 70_000);
    assert_eq!(records.len(), 70_000usize.div_ceil(record::MAX_PLAIN));
    assert_eq!(sealer.seal(&[&data[70_000..]], usize::MAX, &mut records).unwrap(), 30_000);
    let sealed = records.concat();
    let mut out = BytesMut::with_capacity(data.len());
    for (i, part) in sealed.chunks(4_999).enumerate() {
        opener.make_room();
        opener.incoming.extend_from_slice(part);
        let most = 1 + i * 977;
        while opener.open(&mut out, most).unwrap() == most {}
    }
    assert_eq!(out, data);
}

#[tokio::test]
async fn changed_missing_and_replayed_records_are_rejected() {
    let ((mut sealer, _), (_, mut opener)) = shaken().await;
    let mut records = Vec::new();
    for word in [b"one", b"two"] {
        sealer.seal(&[word], usize::MAX, &mut records).unwrap();
    }
    let mut out = BytesMut::with_capacity(64);
    let mut offer = |opener: &mut Opener, record: &[u8]| {
        opener.make_room();
        opener.incoming.extend_from_slice(record);
        opener.open(&mut out, 64)
    };
    assert!(offer(&mut opener, &records[1]).is_err(), "a record is missing");
    let ((mut sealer, _), (_, mut opener)) = shaken().await;
    let mut records = Vec::new();
    sealer.seal(&[b"one"], usize::MAX, &mut records).unwrap();
    assert_eq!(offer(&mut opener, &records[0]).unwrap(), 3);
    assert!(offer(&mut opener, &records[0]).is_err(), "a replayed record");
    let ((mut sealer, _), (_, mut opener)) = shaken().await;
    sealer.seal(&[b"two"], usize::MAX, &mut records).unwrap();
    *records[1].last_mut().unwrap() ^= 1;
    assert!(offer(&mut opener, &records[1]).is_err(), "a changed record");
    let ((..), (_, mut opener)) = shaken().await;
    assert!(offer(&mut opener, &[0x17, 3, 3, 0xff, 0xff]).is_err(), "too long for a record");
}

#[tokio::test]
async fn an_exhausted_key_seals_no_more_records() {
    let ((mut sealer, _), _) = shaken().await;
    assert!(sealer.records_left() > 1 << 22, "a stream's key lasts for 64 GiB at least");
    sealer.use_up_to(2);
    let mut records = Vec::new();
    assert!(sealer.seal(&[&[0; record::MAX_PLAIN]], usize::MAX, &mut records).is_ok());
    assert!(sealer.seal(&[&[0; record::MAX_PLAIN + 1]], usize::MAX, &mut records).is_err());
    assert_eq!(records.len(), 2, "the key is used up to its limit");
}

#[tokio::test]
async fn forged_records_are_rejected() {
    for length in (0..40).chain([16_384, 16_401, 16_640]) {
        let (_, (_, mut opener)) = shaken().await;
        opener.incoming.extend_from_slice(&[0x17, 3, 3]);
        opener.incoming.extend_from_slice(&u16::to_be_bytes(length));
        opener.incoming.extend((0..length).map(|_| rand::random::<u8>()));
        let mut out = BytesMut::with_capacity(64);
        assert!(opener.open(&mut out, 64).is_err(), "{length}");
        assert!(out.is_empty());
    }
}
