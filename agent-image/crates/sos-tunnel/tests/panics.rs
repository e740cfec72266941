//! A panic ends only its own session or stream: all others continue, and the stream is redialed.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::sync::atomic::Ordering;

use common::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

async fn echoes(client: &mut TcpStream, server: &mut TcpStream) {
    let mut answer = [0; 4];
    soon(client.write_all(b"ping")).await.unwrap();
    soon(server.read_exact(&mut answer)).await.unwrap();
    soon(server.write_all(&answer)).await.unwrap();
    soon(client.read_exact(&mut answer)).await.unwrap();
    assert_eq!(&answer, b"ping");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_of_one_session_ends_that_session() {
    let net = Net::new(Setup::default()).await;
    let (mut client, mut server, _session) = net.pair().await;
    net.servers.panics.store(1, Ordering::SeqCst);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (mut unlucky, session) = net.connect(listener.local_addr().unwrap()).await;
    assert!(soon(unlucky.read_to_end(&mut Vec::new())).await.is_err(), "its client is reset");
    soon(session.unwrap()).await;
    echoes(&mut client, &mut server).await;
    let (mut later, mut its_server, _later_session) = net.pair().await;
    echoes(&mut later, &mut its_server).await;
    until(|| net.far.stats().sessions == 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_that_panic_are_redialed() {
    let net = Net::unconnected(Setup::default()).await;
    // Six of the eight ends of four streams panic.
    net.cuttable.panics.store(6, Ordering::SeqCst);
    net.wait_for_streams(4).await;
    until(|| net.cuttable.panics.load(Ordering::SeqCst) == 0).await;
    net.wait_for_streams(4).await;
    let (mut client, mut server, _session) = net.pair().await;
    echoes(&mut client, &mut server).await;
}
