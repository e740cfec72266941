//! Goodput and CPU of a pair of agents over loopback.
//!
//! `cargo run --release -p sos-tunnel --example throughput -- [--gigabytes N] [--streams N] [--block BYTES] [--mbps N] [--down]`
//!
//! The two agents are processes of their own (this program again), so that their CPU can be told apart; source and sink are in a third.
//! `--mbps` limits the source, which shows what small reads at WAN rates cost. `--down` sends from server to client.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener as StdListener, TcpStream as StdStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sos_tunnel::{
    BoxFuture, Egress, EgressHandler, Keys, Labels, Limits, OpenInfo, OpenRequest, PeerConfig, PlainSockets,
    SessionEnd, Timing, Tunnel, TunnelConfig,
};
use sos_wire::{AgentId, BootId, EndReason, Key, KeyId, SessionUuid, SiteId};
use tokio::net::{TcpListener, TcpStream};

type Outcome<T> = Result<T, Box<dyn Error>>;

const NEAR: AgentId = AgentId([1; 16]);
const FAR: AgentId = AgentId([2; 16]);

struct OneKey;

impl Keys for OneKey {
    fn newest(&self, _: SiteId) -> Option<(KeyId, Key)> {
        KeyId::new(1).map(|id| (id, Key::new([7; 32])))
    }

    fn find(&self, _: SiteId, _: KeyId) -> Option<Key> {
        Some(Key::new([7; 32]))
    }
}

struct Connect;

impl EgressHandler for Connect {
    fn connect(&self, info: OpenInfo) -> BoxFuture<Result<Egress, EndReason>> {
        Box::pin(async move {
            let host = TcpStream::connect(info.open.server).await.map_err(|_| EndReason::ServerRefused)?;
            Ok(Egress { host, labels: Labels::ALL })
        })
    }

    fn ended(&self, _: &OpenInfo, _: SessionEnd) {}
}

struct Options {
    bytes: u64,
    streams: usize,
    block: u32,
    mbps: u64,
    down: bool,
}

fn number<T: std::str::FromStr>(args: &mut impl Iterator<Item = String>) -> Outcome<T> {
    args.next().and_then(|n| n.parse().ok()).ok_or_else(|| "a number is missing".into())
}

fn options(mut args: impl Iterator<Item = String>) -> Outcome<Options> {
    let mut options = Options { bytes: 4 << 30, streams: 8, block: 0, mbps: 0, down: false };
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--gigabytes" => options.bytes = (number::<f64>(&mut args)? * 1e9) as u64,
            "--streams" => options.streams = number(&mut args)?,
            "--block" => options.block = number(&mut args)?,
            "--mbps" => options.mbps = number(&mut args)?,
            "--down" => options.down = true,
            other => return Err(format!("unknown option {other}").into()),
        }
    }
    Ok(options)
}

fn main() -> Outcome<()> {
    let mut args = std::env::args().skip(1).peekable();
    match args.peek().map(String::as_str) {
        Some("near" | "far") => agent(&args.collect::<Vec<_>>()),
        _ => bench(&options(args)?),
    }
}

/// `near|far STREAM_PORT HOST_PORT STREAMS BLOCK SINK_PORT`
fn agent(args: &[String]) -> Outcome<()> {
    let near = args[0] == "near";
    let number = |i: usize| args[i].parse::<u32>();
    let port = |i: usize| args[i].parse::<u16>();
    let (stream_port, host_port, streams, block, sink) =
        (port(1)?, port(2)?, number(3)?, number(4)?, port(5)?);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async move {
        let (agent, other) = if near { (NEAR, FAR) } else { (FAR, NEAR) };
        let tunnel = Tunnel::start(TunnelConfig {
            agent,
            boot: BootId(1),
            site: SiteId(if near { 1 } else { 2 }),
            limits: Limits::default(),
            timing: Timing::default(),
            keys: Arc::new(OneKey),
            sockets: Arc::new(PlainSockets),
            egress: Arc::new(Connect),
        });
        let streams = BTreeMap::from([(0, streams as usize)]);
        let site = SiteId(if near { 2 } else { 1 });
        let peer = PeerConfig {
            agent: other,
            site,
            address: Ipv4Addr::LOCALHOST,
            first_stream_port: stream_port,
            streams,
        };
        tunnel.set_peers(vec![peer]);
        let server = tunnel.clone();
        if near {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, host_port)).await?;
            tokio::spawn(serve_hosts(listener, server, block, sink));
        } else {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, stream_port)).await?;
            tokio::spawn(async move {
                while let Ok((socket, _)) = listener.accept().await {
                    server.accept_stream(socket, 0);
                }
            });
        }
        tunnel.live_peers().wait_for(|live| live.contains(&other)).await?;
        println!("ready");
        tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new())).await??;
        println!("{} {}", cpu_seconds()?, describe(&tunnel));
        std::process::exit(0);
    })
}

fn describe(tunnel: &Tunnel) -> String {
    let stats = tunnel.stats();
    format!(
        "stalls {} resent {} reserved {}",
        stats.credit_stalls_total, stats.frames_resent_total, stats.memory_reserved
    )
}

async fn serve_hosts(listener: TcpListener, tunnel: Tunnel, block: u32, sink: u16) {
    while let Ok((host, from)) = listener.accept().await {
        let std::net::SocketAddr::V4(client) = from else { continue };
        let request = OpenRequest {
            session: SessionUuid([3; 16]),
            peer: FAR,
            client,
            server: SocketAddrV4::new(Ipv4Addr::LOCALHOST, sink),
            dscp: 0,
            block_bytes: block,
            labels: Labels::ALL,
        };
        if let Ok(session) = tunnel.open(request, host) {
            tokio::spawn(session);
        }
    }
}

/// User and system time of this process (proc(5), clock ticks of 10 ms).
fn cpu_seconds() -> Outcome<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    Ok((fields[11].parse::<f64>()? + fields[12].parse::<f64>()?) / 100.0)
}

fn bench(options: &Options) -> Outcome<()> {
    let sink = StdListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let sink_port = sink.local_addr()?.port();
    let free = || {
        StdListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|l| l.local_addr()).map(|a| a.port().to_string())
    };
    let (stream_port, host_port) = (free()?, free()?);
    let spawn = |role: &str| {
        let numbers = [options.streams.to_string(), options.block.to_string(), sink_port.to_string()];
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(role).args([&stream_port, &host_port]).args(numbers);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()
    };
    let (mut far, mut near) = (spawn("far")?, spawn("near")?);
    let mut far_out = BufReader::new(far.stdout.take().ok_or("no output")?);
    let mut near_out = BufReader::new(near.stdout.take().ok_or("no output")?);
    far_out.read_line(&mut String::new())?;
    near_out.read_line(&mut String::new())?;

    let begun = Instant::now();
    let client = StdStream::connect((Ipv4Addr::LOCALHOST, host_port.parse()?))?;
    let server = sink.accept()?.0;
    let (from, to) = if options.down { (server, client) } else { (client, server) };
    let (bytes, mbps) = (options.bytes, options.mbps);
    let source = std::thread::spawn(move || send(from, bytes, mbps));
    let received = receive(to)?;
    source.join().map_err(|_| "the source failed")??;
    let seconds = begun.elapsed().as_secs_f64();
    assert_eq!(received, options.bytes);

    let gigabytes = received as f64 / 1e9;
    println!("{:.0} Mbit/s ({gigabytes:.2} GB in {seconds:.2} s)", received as f64 * 8e-6 / seconds);
    for (name, child, out) in [("near", &mut near, &mut near_out), ("far", &mut far, &mut far_out)] {
        let (cpu, rest) = finish(child, out)?;
        println!("{name}: {:.3} CPU s/GB, {rest}", cpu / gigabytes);
    }
    Ok(())
}

fn finish(child: &mut Child, out: &mut impl BufRead) -> Outcome<(f64, String)> {
    drop(child.stdin.take());
    let mut line = String::new();
    out.read_line(&mut line)?;
    child.wait()?;
    let (cpu, rest) = line.trim().split_once(' ').ok_or("no CPU figure")?;
    Ok((cpu.parse()?, rest.to_owned()))
}

fn send(mut to: StdStream, bytes: u64, mbps: u64) -> std::io::Result<()> {
    let (block, begun, mut sent) = (vec![0x5a; 256 << 10], Instant::now(), 0);
    while sent < bytes {
        let due =
            if mbps == 0 { bytes } else { (begun.elapsed().as_secs_f64() * mbps as f64 * 125_000.0) as u64 };
        let n = due.min(bytes).saturating_sub(sent).min(block.len() as u64);
        if n < (block.len() as u64).min(bytes - sent) {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        }
        to.write_all(&block[..n as usize])?;
        sent += n;
    }
    to.shutdown(std::net::Shutdown::Write)
}

fn receive(mut from: StdStream) -> std::io::Result<u64> {
    let (mut buffer, mut received) = (vec![0; 1 << 20], 0);
    loop {
        match from.read(&mut buffer)? {
            0 => return Ok(received),
            n => received += n as u64,
        }
    }
}
