//! A client and a server namespace, joined by the emulator in a third namespace. Needs root and iproute2; all objects
//! are removed on drop.
#![allow(dead_code)] // each test binary uses a part

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::Value;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

pub const CLIENT: &str = "10.99.0.1";
pub const SERVER: &str = "10.99.0.2";
pub const SERVER_V6: &str = "fd99::2";

/// Timeout of any step; long, because the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(20);

static NEXT: AtomicU32 = AtomicU32::new(0);

/// Runs a command line; panics with its output if it fails.
pub fn run(line: &str) -> String {
    let output = Command::new("sh")
        .args(["-c", line])
        .output()
        .expect("sh exists");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line}: {text}{errors}");
    text
}

/// Wait until `condition` returns a value.
pub fn wait_for<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = condition() {
            return found;
        }
        assert!(Instant::now() < end, "timed out waiting for {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// A network namespace that is deleted on drop.
pub struct Namespace(pub String);

impl Namespace {
    pub fn new(role: &str) -> Namespace {
        let nanos = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap();
        let count = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!(
            "le{:x}{:x}{count}{role}",
            std::process::id(),
            nanos.subsec_nanos()
        );
        run(&format!(
            "ip netns add {name} && ip -n {name} link set lo up"
        ));
        Namespace(name)
    }

    pub fn run(&self, line: &str) -> String {
        run(&format!("ip netns exec {} {line}", self.0))
    }

    /// Runs `action` in a thread inside this namespace.
    pub fn thread<T: Send + 'static>(
        &self,
        action: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        let file = File::open(format!("/run/netns/{}", self.0)).unwrap();
        thread::spawn(move || {
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            action()
        })
    }

    /// A counter of `nstat`, as an absolute value.
    pub fn counter(&self, name: &str) -> u64 {
        let text = self.run(&format!("nstat -asz {name}"));
        let line = text.lines().find(|l| l.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

/// A process terminated on drop.
pub struct Process(pub Child);

impl Process {
    /// Send SIGTERM if the process still runs. After `wait`, its id may belong to another process.
    pub fn terminate(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            let _ = Command::new("kill").arg(self.0.id().to_string()).status();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.terminate();
        let _ = self.0.wait();
    }
}

/// The emulator with its control socket.
pub struct Emulator {
    pub process: Process,
    pub folder: PathBuf,
}

impl Emulator {
    /// Start the emulator in `namespace` and wait until it is ready.
    pub fn start(namespace: &Namespace, arguments: &str) -> Emulator {
        let folder = std::env::temp_dir().join(&namespace.0);
        fs::create_dir_all(&folder).unwrap();
        let child = command(namespace, arguments)
            .arg("--control")
            .arg(folder.join("control"))
            .arg("--stats")
            .arg(folder.join("stats"))
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let emulator = Emulator {
            process: Process(child),
            folder,
        };
        wait_for("control socket", || {
            emulator.control().exists().then_some(())
        });
        emulator
    }

    pub fn control(&self) -> PathBuf {
        self.folder.join("control")
    }

    /// Send a request; its answer must be positive.
    pub fn ask(&self, request: &str) -> Value {
        let mut stream = UnixStream::connect(self.control()).unwrap();
        writeln!(stream, "{request}").unwrap();
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        let answer: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(answer["ok"], true, "{answer}");
        answer
    }

    /// Statistics of the first link's direction.
    pub fn stats(&self, direction: &str) -> Value {
        self.ask(r#"{"op":"stats"}"#)["links"][0][direction]["stats"].clone()
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        self.process.terminate();
        let _ = self.process.0.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// The emulator's command line in a namespace.
pub fn command(namespace: &Namespace, arguments: &str) -> Command {
    let mut command = Command::new("ip");
    command.args([
        "netns",
        "exec",
        &namespace.0,
        env!("CARGO_BIN_EXE_sos-linkemu"),
    ]);
    command
        .args(arguments.split_whitespace())
        .stdin(Stdio::null());
    command
}

/// Client and server with addresses of one subnet, and a third namespace with the emulator's interfaces `wa` and `wb`.
pub struct World {
    pub client: Namespace,
    pub server: Namespace,
    pub wan: Namespace,
}

impl World {
    pub fn new() -> World {
        let world = World {
            client: Namespace::new("c"),
            server: Namespace::new("s"),
            wan: Namespace::new("w"),
        };
        world.cable(&world.client, "wa", CLIENT, "fd99::1");
        world.cable(&world.server, "wb", SERVER, SERVER_V6);
        world
    }

    /// Create the veth pair between a host and the emulator.
    pub fn cable(&self, host: &Namespace, inner: &str, v4: &str, v6: &str) {
        let (host, wan) = (&host.0, &self.wan.0);
        run(&format!(
            "ip link add eth0 netns {host} type veth peer name {inner} netns {wan} && \
             ip -n {host} addr add {v4}/24 dev eth0 && ip -n {host} addr add {v6}/64 dev eth0 nodad && \
             ip -n {host} link set eth0 up && ip -n {wan} link set {inner} up && \
             ip netns exec {host} sysctl -qw net.ipv4.tcp_rmem='4096 131072 33554432' \
                net.ipv4.tcp_wmem='4096 65536 33554432'"
        ));
    }

    pub fn emulator(&self, link: &str) -> Emulator {
        Emulator::start(&self.wan, &format!("--link A=wa,B=wb,{link}"))
    }

    /// Smallest round trip of `count` pings in milliseconds, or `None` without a reply.
    pub fn ping(&self, count: u32) -> Option<f64> {
        let line = format!(
            "ip netns exec {} ping -c {count} -i 0.1 -W 1 {SERVER}",
            self.client.0
        );
        let output = Command::new("sh").args(["-c", &line]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let summary = text.lines().find(|l| l.starts_with("rtt"))?;
        summary.split(['=', '/']).nth(4)?.trim().parse().ok()
    }

    /// Starts an iperf3 server for one test, then runs the client; returns the client's JSON.
    pub fn iperf(&self, arguments: &str) -> Value {
        let server = Command::new("ip")
            .args(["netns", "exec", &self.server.0, "iperf3", "-s", "-1"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let _server = Process(server);
        wait_for("iperf3 server", || {
            let listeners = self.server.run("ss -Hltn sport = :5201");
            (!listeners.is_empty()).then_some(())
        });
        let text = self
            .client
            .run(&format!("iperf3 -J -c {SERVER} {arguments}"));
        serde_json::from_str(&text).unwrap()
    }

    /// Send `size` pseudo-random bytes from client to server and back; panics if any byte differs.
    pub fn echo(&self, server: &str, size: usize) {
        echo(&self.client, &self.server, server, size);
    }
}

/// The test pattern, without a period that could hide a lost or duplicated packet.
fn pattern(size: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1du64;
    let mut bytes = Vec::with_capacity(size + 8);
    while bytes.len() < size {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes.truncate(size);
    bytes
}

/// Send `size` bytes from one namespace to `server` in the other namespace and back, and check both directions.
pub fn echo(client: &Namespace, server_side: &Namespace, server: &str, size: usize) {
    let address: SocketAddr = (server.parse::<IpAddr>().unwrap(), 7000).into();
    let (ready, listening) = std::sync::mpsc::channel();
    let serving = server_side.thread(move || {
        let listener = TcpListener::bind(address).unwrap();
        ready.send(()).unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        stream.write_all(&bytes).unwrap();
        bytes == pattern(size)
    });
    listening.recv().unwrap();
    let sending = client.thread(move || {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(&pattern(size)).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        bytes == pattern(size)
    });
    assert!(
        sending.join().unwrap(),
        "the returned bytes differ from the sent bytes"
    );
    assert!(
        serving.join().unwrap(),
        "the received bytes differ from the sent bytes"
    );
}
