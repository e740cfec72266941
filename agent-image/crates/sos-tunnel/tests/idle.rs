//! Test of silent connections to the stream port. The test has its own process, because it measures the process's CPU time.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::time::{Duration, Instant};

use common::*;
use sos_tunnel::Timing;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

/// User and system time of this process (proc(5), clock ticks of 10 ms).
fn cpu() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<u64> = stat
        .rsplit(')')
        .next()
        .unwrap()
        .split_whitespace()
        .skip(11)
        .take(2)
        .map(|f| f.parse().unwrap())
        .collect();
    Duration::from_millis(10 * (fields[0] + fields[1]))
}

#[tokio::test]
async fn a_silent_connection_costs_nothing_and_is_closed() {
    let timing = Timing { handshake: Duration::from_secs(1), ..Timing::default() };
    let net = Net::new(Setup { timing, ..Setup::default() }).await;
    let (cpu_before, begun) = (cpu(), Instant::now());
    let mut silent = Vec::new();
    for _ in 0..70 {
        silent.push(TcpStream::connect(net.stream_address).await.unwrap());
    }
    for socket in &mut silent {
        // At most 64 connections may wait, so the oldest connections are closed before the handshake timeout. None receives a byte.
        assert_eq!(soon(socket.read(&mut [0])).await.unwrap_or(0), 0);
    }
    assert!(begun.elapsed() >= timing.handshake, "the last connections had their full time");
    assert!(cpu() - cpu_before < timing.handshake / 2, "waiting is not spinning");
    assert_eq!(net.far.stats().streams, 4);
}
