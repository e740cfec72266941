//! DSCP and TTL: each host sees the current marks of the other host's packets, even after a change.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use socket2::{Domain, SockRef, Socket, Type};
use sos_tunnel::SegmentMarks;
use sos_wire::Marks;

use crate::lab::{Lab, PATIENCE, SERVER, SERVICE_PORT, sh};

/// A step of a host, run in the host's own namespace.
enum Step {
    Mark(u8, u8),
    Say(&'static [u8]),
    /// Reads this number of bytes.
    Hear(usize),
}

struct Host(Sender<Step>, Receiver<Marks>);

impl Host {
    fn does(&self, step: Step) -> Marks {
        self.0.send(step).unwrap();
        self.1.recv_timeout(2 * PATIENCE).unwrap()
    }

    /// Sends bytes with these marks, and asserts the marks that the other host receives.
    fn says(&self, words: &'static [u8], other: &Self, dscp: u8, ttl: u8) {
        self.does(Step::Mark(dscp, ttl));
        self.does(Step::Say(words));
        let seen = other.does(Step::Hear(words.len()));
        assert_eq!(seen, Marks { dscp, ttl }, "{}", String::from_utf8_lossy(words));
    }
}

/// Runs steps on a connection; returns the marks of the last bytes received.
fn live(mut stream: TcpStream, filters: &SegmentMarks, steps: &Receiver<Step>, seen: &Sender<Marks>) {
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let last = |stream: &TcpStream| filters.last(stream).unwrap_or_default();
    for step in steps {
        match step {
            Step::Mark(dscp, ttl) => {
                sos_tunnel::set_marks(&SockRef::from(&stream), Marks { dscp, ttl }).unwrap();
            }
            Step::Say(words) => stream.write_all(words).unwrap(),
            Step::Hear(len) => stream.read_exact(&mut vec![0; len]).unwrap(),
        }
        seen.send(last(&stream)).unwrap();
    }
}

fn listener() -> TcpListener {
    TcpListener::bind((Ipv4Addr::UNSPECIFIED, SERVICE_PORT)).unwrap()
}

fn connect(marks: Marks, filters: &SegmentMarks) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    sos_tunnel::set_marks(&SockRef::from(&socket), marks).unwrap();
    filters.watch(&socket).unwrap();
    socket.connect(&SocketAddr::from((SERVER, SERVICE_PORT)).into()).unwrap();
    socket.into()
}

/// A client with initial marks, and its server.
fn hosts(lab: &Lab, first: Marks) -> (Host, Host) {
    let (listening, ready) = channel();
    let host = || {
        let ((steps, todo), (seen, told)) = (channel(), channel());
        (Host(steps, told), todo, seen)
    };
    let (server, todo, seen) = host();
    lab.start("server", move || {
        let (filters, listener) = (SegmentMarks::new().unwrap(), listener());
        filters.watch(&listener).unwrap();
        listening.send(()).unwrap();
        live(listener.accept().unwrap().0, &filters, &todo, &seen);
    });
    ready.recv().unwrap();
    let (client, todo, seen) = host();
    lab.start("client", move || {
        let filters = SegmentMarks::new().unwrap();
        live(connect(first, &filters), &filters, &todo, &seen);
    });
    (client, server)
}

#[test]
fn each_host_sees_the_current_marks_of_the_other() {
    let lab = Lab::new();
    let (_near, far) = lab.agents();
    let (client, server) = hosts(&lab, Marks { dscp: 16, ttl: 77 });
    client.says(b"as the SYN", &server, 16, 77);
    server.says(b"the server's own", &client, 10, 128);
    client.says(b"another DSCP", &server, 46, 77);
    client.says(b"another TTL", &server, 46, 200);
    for round in 0..20 {
        client.says(b"by turns", &server, 2 * round, 100 + round);
        server.says(b"and back", &client, 2 * round + 1, 50 + round);
    }
    assert_eq!(far.metric("sos_agent_sessions_begun_total"), Some(1));
}

#[test]
fn marks_change_even_on_bare_acknowledgements() {
    let lab = Lab::new();
    let (_near, _far) = lab.agents();
    let (client, server) = hosts(&lab, Marks { dscp: 0, ttl: 64 });
    client.says(b"first", &server, 0, 64);
    server.does(Step::Mark(34, 99));
    let now = Marks { dscp: 34, ttl: 99 };
    let mut seen = Marks::default();
    for _ in 0..20 {
        // The server's acknowledgement carries the new marks to its agent. A later acknowledgement of the client's agent carries them to
        // the client.
        client.does(Step::Say(b"x"));
        server.does(Step::Hear(1));
        seen = client.does(Step::Hear(0));
        if seen == now {
            break;
        }
        std::thread::sleep(Duration::from_millis(250));
    }
    assert_eq!(seen, now);
}

/// The SYN to the server has the client's marks; the SYN-ACK to the client does not reflect the client's marks.
#[test]
fn a_handshake_carries_its_hosts_marks() {
    let lab = Lab::new();
    let (_near, _far) = lab.agents();
    sh(&format!("ip netns exec {} sysctl -qw net.ipv4.tcp_reflect_tos=1", lab.ns("server")));
    let (ready, listening) = channel();
    let server = lab.start("server", move || {
        let listener = listener();
        sos_tunnel::keep_first_marks(&listener).unwrap();
        ready.send(()).unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        stream.read_exact(&mut [0; 5]).unwrap();
        (SockRef::from(&stream).tos_v4().unwrap(), sos_tunnel::first_marks(&stream))
    });
    listening.recv().unwrap();
    let (answered, _stream) = lab.at("client", || {
        let filters = SegmentMarks::new().unwrap();
        let mut stream = connect(Marks { dscp: 46, ttl: 77 }, &filters);
        let answered = filters.last(&stream);
        stream.write_all(b"hello").unwrap();
        (answered, stream)
    });
    let (reflected, completed) = server.join().unwrap();
    assert_eq!((reflected, completed), (46 << 2, Marks { dscp: 46, ttl: 77 }));
    assert_eq!(answered, Some(Marks { dscp: 0, ttl: 64 }));
}
