//! Segments keep their sender's size across a bridge in user space, with the image's own start script. Needs root.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails, in its helpers too")]

mod support;

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Stdio};

use serde_json::json;
use support::document;
use support::lab::{Lab, Namespace, preloaded, wait_until};

/// Print the sizes of TCP or UDP segments in large frames, after a packet socket has received a number of these frames.
const WATCH: &str = "
import socket, struct, sys, time
tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0003))
tap.bind(('e0', 0))
tap.setsockopt(263, 15, 1)  # SOL_PACKET, PACKET_VNET_HDR: a virtio_net_hdr before each frame
tap.settimeout(20)
print('ready', flush=True)
sizes = set()
for _ in range(int(sys.argv[1])):
    while True:
        _, kind, _, size = struct.unpack_from('=BBHH', tap.recv(65600))
        if kind:
            break
    sizes.add((kind & 0x7f, size))
print(sorted(sizes))
";

/// Send by TCP to a server that accepts segments of at most 1,000 bytes, so 988 with timestamps.
const TCP: &str = "
import socket, sys
family = socket.AF_INET6 if ':' in sys.argv[2] else socket.AF_INET
if sys.argv[1] == 'serve':
    listener = socket.socket(family)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 1000)
    listener.bind((sys.argv[2], 7001))
    listener.listen()
    print('ready', flush=True)
    connection, _ = listener.accept()
    while connection.recv(1 << 16):
        pass
else:
    connection = socket.create_connection((sys.argv[2], 7001), 10)
    connection.sendall(bytes(20_000_000))
";

/// Send datagrams of 900 bytes, ten at a time (UDP_SEGMENT, udp(7)).
const UDP: &str = "
import socket, sys, time
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sender.setsockopt(socket.IPPROTO_UDP, 103, 900)
for _ in range(30):
    sender.sendto(bytes(9000), (sys.argv[2], 7002))
    time.sleep(0.01)
";

/// A switch with two hosts on its bridge.
fn world() -> (Lab, Namespace, Namespace) {
    let mut lab = Lab::new(true);
    lab.start_script_with(&[("OVS_BUFFERS", &preloaded())]);
    wait_until("the switch", || fs::exists(lab.path("run/ovs-vswitchd.pid")).unwrap());
    lab.must_apply(document(|d| {
        d["bridge"]["mtu"] = json!(1500);
        d["bridge"]["datapathType"] = json!("netdev");
        d["baseFlows"] = json!([{"table": 0, "priority": 0, "match": "", "actions": "NORMAL"}]);
    }));
    let (from, to) = (lab.host("host1", "10.0.0.11/24"), lab.host("host2", "10.0.0.12/24"));
    for (host, address) in [(&from, "fd00::11/64"), (&to, "fd00::12/64")] {
        host.run("sysctl", &["-qw", "net.ipv6.conf.e0.disable_ipv6=0"]);
        host.run("ip", &["address", "add", address, "dev", "e0", "nodad"]);
    }
    wait_until("hosts to reach each other", || {
        let ping = |to| from.command("ping", &["-c", "1", "-W", "1", to]).output().unwrap().status.success();
        ping("10.0.0.12") && ping("fd00::12")
    });
    (lab, from, to)
}

/// A program that prints a line once it is ready.
struct Running(Child, BufReader<ChildStdout>);

impl Running {
    fn start(host: &Namespace, program: &str, args: &[&str]) -> Self {
        let mut child = host
            .command("python3", &[&["-c", program], args].concat())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut running = Self(child, output);
        assert_eq!(running.line(), "ready");
        running
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.1.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a sending program; returns type and size of the segments that arrive in large frames.
fn sizes(from: &Namespace, to: &Namespace, program: &str, address: &str, frames: &str) -> String {
    let _server = (program == TCP).then(|| Running::start(to, program, &["serve", address]));
    let mut watch = Running::start(to, WATCH, &[frames]);
    from.run("python3", &["-c", program, "send", address]);
    watch.line()
}

#[test]
fn segments_arrive_in_the_size_that_the_sender_chose() {
    let (_lab, from, to) = world();
    // Types of virtio_net_hdr: 1 and 4 are TCP by IPv4 and IPv6, 5 is UDP.
    assert_eq!(sizes(&from, &to, TCP, "10.0.0.12", "20"), "[(1, 988)]");
    assert_eq!(sizes(&from, &to, TCP, "fd00::12", "20"), "[(4, 988)]");
    assert_eq!(sizes(&from, &to, UDP, "10.0.0.12", "5"), "[(5, 900)]");
}
