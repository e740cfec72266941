//! Goodput and CPU of a pair of agents.
//!
//! `cargo run --release -p sos-tunnel --example throughput -- [--gigabytes N] [--streams N] [--block BYTES] [--mbps N]
//! [--encrypted | --quic]`
//!
//! Everything runs on loopback. The two agents, the source and the sink are separate processes of this program, so that the CPU time of
//! each can be measured. `--mbps` limits the source. For a real or emulated path, start the four processes by hand on their machines:
//!
//! ```text
//! throughput sink ADDR:PORT
//! throughput far  OWN_ADDR PEER_ADDR STREAM_PORT STREAMS CONGESTION KIND
//! throughput near OWN_ADDR PEER_ADDR STREAM_PORT STREAMS CONGESTION KIND HOST_PORT BLOCK SINK_ADDR:PORT
//! throughput source ADDR:PORT BYTES MBPS
//! ```
//!
//! KIND is `plain`, `tls` or `quic`. The agents print `ready`, and their figures when their standard input ends.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener as StdListener, TcpStream as StdStream, UdpSocket};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use socket2::SockRef;
use sos_tunnel::{
    BoxFuture, Dial, Egress, EgressHandler, Keys, Labels, Limits, OpenInfo, OpenRequest, PeerConfig,
    Protocol, SessionEnd, Sockets, Timing, Tunnel, TunnelConfig,
};
use sos_wire::{AgentId, BootId, EndReason, Key, KeyId, SessionUuid, SiteId};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

type Outcome<T> = Result<T, Box<dyn Error>>;

const NEAR: AgentId = AgentId([1; 16]);
const FAR: AgentId = AgentId([2; 16]);

struct OneKey;

impl Keys for OneKey {
    fn sending(&self, _: SiteId) -> Option<(KeyId, Key)> {
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
            Ok(Egress { host, routers: 0, labels: Labels::ALL, compress: false, streams: None })
        })
    }

    fn ended(&self, _: &OpenInfo, _: SessionEnd) {}
}

struct Options {
    bytes: u64,
    streams: usize,
    block: u32,
    mbps: u64,
    kind: &'static str,
}

fn number<T: FromStr>(args: &mut impl Iterator<Item = String>) -> Outcome<T> {
    args.next().and_then(|n| n.parse().ok()).ok_or_else(|| "an argument is missing or wrong".into())
}

fn options(mut args: impl Iterator<Item = String>) -> Outcome<Options> {
    let mut options = Options { bytes: 4_000_000_000, streams: 8, block: 0, mbps: 0, kind: "plain" };
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--gigabytes" => options.bytes = (number::<f64>(&mut args)? * 1e9) as u64,
            "--streams" => options.streams = number(&mut args)?,
            "--block" => options.block = number(&mut args)?,
            "--encrypted" => options.kind = "tls",
            "--quic" => options.kind = "quic",
            "--mbps" => options.mbps = number(&mut args)?,
            other => return Err(format!("unknown option {other}").into()),
        }
    }
    Ok(options)
}

fn main() -> Outcome<()> {
    let mut args = std::env::args().skip(1).peekable();
    match args.peek().map(String::as_str) {
        Some("near") => agent(NEAR, &mut args.skip(1)),
        Some("far") => agent(FAR, &mut args.skip(1)),
        Some("sink") => receive(&args.nth(1).ok_or("no address")?),
        Some("source") => {
            let mut args = args.skip(1);
            let to: String = number(&mut args)?;
            Ok(send(StdStream::connect(to)?, number(&mut args)?, number(&mut args)?)?)
        }
        _ => bench(&options(args)?),
    }
}

/// Maximum unsent bytes of a stream: these bytes can no longer use a faster stream.
const NOTSENT_LOWAT: u32 = 128 << 10;

/// Stream sockets with the settings of the real agent.
struct Tuned {
    congestion: String,
}

impl Tuned {
    fn tune(socket: &SockRef<'_>, congestion: &str) -> std::io::Result<()> {
        socket.set_tcp_nodelay(true)?;
        socket.set_tcp_notsent_lowat(NOTSENT_LOWAT)?;
        socket.set_tcp_congestion(congestion.as_bytes())
    }
}

impl Sockets for Tuned {
    fn dial(&self, to: SocketAddrV4, _: u8) -> BoxFuture<std::io::Result<TcpStream>> {
        let congestion = self.congestion.clone();
        Box::pin(async move {
            let socket = TcpSocket::new_v4()?;
            Self::tune(&SockRef::from(&socket), &congestion)?;
            socket.connect(to.into()).await
        })
    }

    fn accepted(&self, socket: &TcpStream, _: u8) -> std::io::Result<()> {
        Self::tune(&SockRef::from(socket), &self.congestion)
    }
}

fn start_tunnel(agent: AgentId, congestion: String) -> Tunnel {
    Tunnel::start(TunnelConfig {
        agent,
        boot: BootId(1),
        site: SiteId(u16::from(agent.0[0])),
        limits: Limits::default(),
        timing: Timing::default(),
        keys: Arc::new(OneKey),
        sockets: Arc::new(Tuned { congestion }),
        egress: Arc::new(Connect),
        segment_marks: None,
    })
}

fn agent(agent: AgentId, args: &mut impl Iterator<Item = String>) -> Outcome<()> {
    let (own, address, stream_port): (Ipv4Addr, Ipv4Addr, u16) =
        (number(args)?, number(args)?, number(args)?);
    let (streams, congestion, kind): (_, _, String) =
        (BTreeMap::from([(0, number(args)?)]), number(args)?, number(args)?);
    let other = if agent == NEAR { FAR } else { NEAR };
    let site = SiteId(u16::from(other.0[0]));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async move {
        let tunnel = start_tunnel(agent, congestion);
        tunnel.set_peers(vec![PeerConfig {
            agent: other,
            site,
            addresses: vec![address],
            first_stream_port: stream_port,
            streams,
            encrypted: kind == "tls",
            encrypted_only: false,
            protocol: if kind == "quic" { Protocol::Quic } else { Protocol::Tcp },
            dial: Dial::ById,
        }]);
        let port = if agent == NEAR { 0 } else { stream_port };
        tunnel.open_datagrams(UdpSocket::bind((own, port))?, 0)?;
        if agent == NEAR {
            let listener = TcpListener::bind((own, number::<u16>(args)?)).await?;
            tokio::spawn(serve_hosts(listener, tunnel.clone(), number(args)?, number(args)?));
        } else {
            let (listener, acceptor) = (TcpListener::bind((own, stream_port)).await?, tunnel.clone());
            tokio::spawn(async move {
                while let Ok((socket, _)) = listener.accept().await {
                    acceptor.accept_stream(socket, 0);
                }
            });
        }
        tunnel.willing_peers().wait_for(|live| live.contains(&other)).await?;
        println!("ready");
        tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new())).await??;
        println!("{} {:?}", cpu_seconds()?, tunnel.stats());
        std::process::exit(0);
    })
}

async fn serve_hosts(listener: TcpListener, tunnel: Tunnel, block_bytes: u32, server: SocketAddrV4) {
    while let Ok((host, from)) = listener.accept().await {
        let std::net::SocketAddr::V4(client) = from else { continue };
        let request = OpenRequest {
            session: SessionUuid([3; 16]),
            peer: FAR,
            client,
            server,
            marks: sos_wire::Marks::default(),
            routers: 0,
            block_bytes,
            queue_bytes: 0,
            labels: Labels::ALL,
            compress: false,
            streams: None,
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
    let free =
        || -> Outcome<String> { Ok(StdListener::bind("127.0.0.1:0")?.local_addr()?.port().to_string()) };
    let (stream_port, host_port, local) = (free()?, free()?, "127.0.0.1".to_owned());
    let (sink_address, host_address) = (format!("{local}:{}", free()?), format!("{local}:{host_port}"));
    let (streams, congestion) = (options.streams.to_string(), "cubic".to_owned());
    let (mut sink, mut sink_out) = start(&["sink".into(), sink_address.clone()])?;
    let far = [
        "far".into(),
        local.clone(),
        local.clone(),
        stream_port.clone(),
        streams.clone(),
        congestion.clone(),
        options.kind.to_owned(),
    ];
    let (mut far, mut far_out) = start(&far)?;
    let kind = options.kind.to_owned();
    let near = ["near".into(), local.clone(), local, stream_port, streams, congestion, kind, host_port];
    let (mut near, mut near_out) =
        start(&[near.as_slice(), &[options.block.to_string(), sink_address]].concat())?;
    let ready = &mut String::new();
    near_out.read_line(ready)?;
    far_out.read_line(ready)?;

    send(StdStream::connect(host_address)?, options.bytes, options.mbps)?;
    let mut received = String::new();
    sink_out.read_line(&mut received)?;
    sink.wait()?;
    println!("{}", received.trim());
    for (name, child, out) in [("near", &mut near, &mut near_out), ("far", &mut far, &mut far_out)] {
        let (cpu, rest) = finish(child, out)?;
        println!("{name}: {:.3} CPU s/GB, {rest}", cpu * 1e9 / options.bytes as f64);
    }
    Ok(())
}

fn start(args: &[String]) -> Outcome<(Child, BufReader<ChildStdout>)> {
    let mut command = Command::new(std::env::current_exe()?);
    let mut child = command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let out = BufReader::new(child.stdout.take().ok_or("no output")?);
    Ok((child, out))
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

/// Reads one connection to its end and prints its mean rate.
fn receive(address: &str) -> Outcome<()> {
    let mut from = StdListener::bind(address)?.accept()?.0;
    let (mut buffer, mut received, begun) = (vec![0; 1 << 20], 0, Instant::now());
    let mut second = (begun, 0);
    loop {
        match from.read(&mut buffer)? {
            0 => break,
            n => received += n as u64,
        }
        if second.0.elapsed() >= Duration::from_secs(1) {
            eprint!("{:.0} ", (received - second.1) as f64 * 8e-6 / second.0.elapsed().as_secs_f64());
            second = (Instant::now(), received);
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    println!("{:.0} Mbit/s ({received} bytes in {seconds:.2} s)", received as f64 * 8e-6 / seconds);
    Ok(())
}
