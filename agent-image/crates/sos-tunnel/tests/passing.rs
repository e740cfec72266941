//! Spliced bytes arrive like copied bytes, for any sizes of writes and reads, any loss of streams, and either side ending first.
//! `SOS_CHAOS_SEED` repeats one run.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::env;
use std::time::Duration;

use common::*;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sos_wire::EndReason;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

const RUNS: u64 = 4;

/// Number of pipes of this process; idle pipes stay open.
fn pipes() -> usize {
    let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten().map(|fd| std::fs::read_link(fd.path()));
    links.flatten().filter(|link| link.to_string_lossy().starts_with("pipe:")).count()
}

/// Sends everything in pieces of any size, with pauses now and then, cuts streams, and ends.
async fn say(mut host: OwnedWriteHalf, data: Vec<u8>, mut random: StdRng, net: &Net) {
    let mut at = 0;
    while at < data.len() {
        let size = if random.random_bool(0.2) { random.random_range(1..5_000) } else { 700_000 };
        let end = data.len().min(at + random.random_range(1..=size));
        host.write_all(&data[at..end]).await.unwrap();
        at = end;
        if random.random_bool(0.1) {
            tokio::time::sleep(Duration::from_millis(random.random_range(0..20))).await;
        }
        if random.random_bool(0.05) {
            net.cuttable.cut(1);
        }
    }
    host.shutdown().await.unwrap();
}

/// Reads everything in pieces of any size, with pauses, the first of which lets a backlog build up.
async fn hear(mut host: OwnedReadHalf, mut random: StdRng) -> Vec<u8> {
    let (mut heard, mut piece) = (Vec::new(), vec![0; 1 << 20]);
    tokio::time::sleep(Duration::from_millis(random.random_range(0..200))).await;
    loop {
        let few = random.random_bool(0.3);
        let most = random.random_range(1..=if few { 3_000 } else { piece.len() });
        match host.read(&mut piece[..most]).await.unwrap() {
            0 => return heard,
            read => heard.extend_from_slice(&piece[..read]),
        }
        if random.random_bool(0.02) {
            tokio::time::sleep(Duration::from_millis(random.random_range(0..30))).await;
        }
    }
}

/// Runs a conversation that the seed determines; returns the bytes received by each side, and the expected bytes.
async fn converse(net: &Net, seed: u64) -> [(Vec<u8>, Vec<u8>); 2] {
    let mut random = StdRng::seed_from_u64(seed);
    let [a, b, c, d] = [(); 4].map(|()| StdRng::seed_from_u64(random.random()));
    let up = pattern(random.random_range(1..8 << 20));
    let mut down = pattern(random.random_range(1..8 << 20));
    down.reverse();
    let (client, server, session) = net.pair().await;
    let split = |host: TcpStream| host.into_split();
    let ((client_hears, client_says), (server_hears, server_says)) = (split(client), split(server));
    let (_, _, at_server, at_client) = soon(async {
        tokio::join!(
            say(client_says, up.clone(), a, net),
            say(server_says, down.clone(), b, net),
            hear(server_hears, c),
            hear(client_hears, d)
        )
    })
    .await;
    assert_eq!(soon(session).await.reason, EndReason::Finished);
    [(at_server, up), (at_client, down)]
}

fn seeds() -> Vec<u64> {
    match env::var("SOS_CHAOS_SEED") {
        Ok(seed) => vec![seed.parse().expect("a number")],
        Err(_) => (0..RUNS).map(|_| rand::random()).collect(),
    }
}

async fn arrives(setup: Setup) {
    for seed in seeds() {
        let net = Net::new(setup).await;
        println!("SOS_CHAOS_SEED={seed}");
        for (heard, said) in converse(&net, seed).await {
            assert!(
                heard == said,
                "{} of {} bytes, or wrong bytes, with seed {seed}",
                heard.len(),
                said.len()
            );
        }
        net.nothing_left().await;
    }
}

/// Bytes are spliced over plain streams, and copied over all other streams. Pipes are counted for the whole process, so no other test may
/// run in this process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spliced_and_copied_bytes_are_the_hosts_bytes() {
    let none = pipes();
    arrives(Setup { compress: (true, true), encrypted: (true, true), ..Setup::default() }).await;
    // Only the scratch pipe of each agent is left, with two descriptors.
    assert!(pipes() - none <= 4 * RUNS as usize, "compressed or encrypted bytes are in memory");
    let before = pipes();
    let net = Net::new(Setup::default()).await;
    let (client, mut server, _session) = net.pair().await;
    let (mut says, data) = (client.into_split().1, pattern(32 << 20));
    let mut heard = vec![0; data.len()];
    let (said, read) =
        soon(async { tokio::join!(says.write_all(&data), server.read_exact(&mut heard)) }).await;
    said.and(read.map(drop)).unwrap();
    assert!(heard == data);
    assert!(pipes() - before > 8, "the bytes were in pipes");
    arrives(Setup::default()).await;
}
