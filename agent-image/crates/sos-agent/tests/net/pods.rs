//! Pods that start, end and share addresses; programs inside a pod that handle packets themselves; and objects that remain after an agent's exit.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::symlink;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use nix::sys::signal::Signal;
use socket2::{Domain, Socket, Type};

use crate::lab::agent::Agent;
use crate::lab::wire::{Seen, assert_works, connect, content, fetch, serve};
use crate::lab::{CLIENT, FAR, Lab, NEAR, Network, PATIENCE, SERVER, SERVICE_PORT, eventually, sh};

fn accepted(near: &Agent) -> Option<u64> {
    near.metric("sos_agent_accepted_total")
}

fn intercepted(agent: &Agent, count: u64) {
    agent.wait_metric("sos_agent_intercepted_pods", |pods| pods == count);
}

/// Opens connections, all of which must work, until the agent's count of accepted connections is as expected.
fn works_until_accepted(lab: &Lab, near: &Agent, seen: &Receiver<Seen>, expected: impl Fn(u64) -> bool) {
    eventually("the pod is intercepted again", || {
        assert_works(lab, seen, b"reply");
        accepted(near).is_some_and(&expected)
    });
}

/// SYNs that the client's kernel has retransmitted.
fn retransmitted_syns(lab: &Lab) -> u64 {
    let table = sh(&format!("ip netns exec {} cat /proc/net/netstat", lab.ns("client")));
    let lines: Vec<_> = table.lines().filter(|line| line.starts_with("TcpExt:")).collect();
    let column = lines[0].split(' ').position(|name| name == "TCPSynRetrans").unwrap();
    lines[1].split(' ').nth(column).unwrap().parse().unwrap()
}

/// State of a namespace that an agent might leave behind.
fn state(lab: &Lab, host: &str) -> String {
    let ns = lab.ns(host);
    sh(&format!(
        "ip netns exec {ns} nft list ruleset; ip -n {ns} rule list; ip -4 -n {ns} route list table all; ip -4 -n {ns} -brief address; \
         ip netns exec {ns} sysctl -a 2>/dev/null | grep -E 'net.ipv4.(ip_forward|conf)|tcp_[rw]mem'"
    ))
}

#[test]
fn pods_are_intercepted_when_they_start_and_not_after_they_have_ended() {
    let lab = Lab::on(Network::Pods);
    let (near, _far) = lab.agents();
    let file = lab.namespaces(NEAR).join("client");
    let seen = serve(&lab, b"reply".to_vec());
    assert_works(&lab, &seen, b"reply");
    assert_eq!(accepted(&near), Some(1));
    std::fs::remove_file(&file).unwrap();
    intercepted(&near, 0);
    assert_works(&lab, &seen, b"reply");
    assert_eq!(accepted(&near), Some(1), "the agent no longer finds the pod's namespace");
    symlink(format!("/run/netns/{}", lab.ns("client")), &file).unwrap();
    intercepted(&near, 1);
    works_until_accepted(&lab, &near, &seen, |count| count == 2);
}

#[test]
fn a_pod_removed_from_the_configuration_goes_plain_and_keeps_its_sessions() {
    let lab = Lab::on(Network::Pods);
    let (near, _far) = lab.agents();
    let seen = serve(&lab, b"reply".to_vec());
    let mut open = lab.at("client", connect).unwrap();
    open.write_all(b"request").unwrap();
    near.wait_metric("sos_agent_sessions", |sessions| sessions == 1);
    lab.configure_with(NEAR, 2, |document| document["pods"] = serde_json::json!([]));
    intercepted(&near, 0);
    assert_works(&lab, &seen, b"reply");
    assert_eq!(accepted(&near), Some(1));
    open.write_all(b"more").unwrap();
    open.shutdown(std::net::Shutdown::Write).unwrap();
    let mut reply = Vec::new();
    open.read_to_end(&mut reply).unwrap();
    assert_eq!(reply, b"reply", "the open connection continues");
    seen.recv_timeout(PATIENCE).unwrap();
    drop(open);
    near.wait_metric("sos_agent_sessions", |sessions| sessions == 0);
    let tables = format!("ip netns exec {} nft list tables", lab.ns("client"));
    eventually("the table is removed", || sh(&tables).is_empty());
    lab.configure_with(NEAR, 3, |_| {});
    works_until_accepted(&lab, &near, &seen, |count| count == 2);
}

#[test]
fn without_a_list_of_pods_every_pod_of_the_site_is_intercepted() {
    let lab = Lab::on(Network::Pods);
    for side in [NEAR, FAR] {
        lab.configure_with(side, 1, |document| _ = document.as_object_mut().unwrap().remove("pods"));
    }
    // A pod outside the site's prefixes is not intercepted.
    let twin = lab.ns("twin");
    sh(&format!(
        "ip netns add {twin} && ip -n {twin} link add d0 type veth peer name d1 && ip -n {twin} address add 10.9.9.9/32 dev d0"
    ));
    symlink(format!("/run/netns/{twin}"), lab.namespaces(NEAR).join("twin")).unwrap();
    let (near, far) = (lab.agent_in(NEAR, "near", "none"), lab.agent_in(FAR, "far", "none"));
    for agent in [&near, &far] {
        intercepted(agent, 1);
    }
    near.wait_metric("sos_agent_armed_regions", |armed| armed >= 1);
    let seen = serve(&lab, b"reply".to_vec());
    eventually("a connection is accelerated", || {
        assert_works(&lab, &seen, b"reply");
        accepted(&near) == Some(1)
    });
    assert_eq!(sh(&format!("ip netns exec {twin} nft list tables")), "");
    let status: serde_json::Value = serde_json::from_str(&near.get("/status").unwrap()).unwrap();
    assert_eq!((&status["interceptedPods"], &status["willing"]), (&1.into(), &true.into()));
    assert_eq!(status["peers"][0]["alive"], true);
    let path = |status: &serde_json::Value| status["peers"][0]["paths"][0].clone();
    assert_eq!(
        (path(&status)["label"].as_u64(), path(&status)["configured"].as_u64() > Some(0)),
        (Some(0), true)
    );
    eventually("all streams of the path are established", || {
        let status: serde_json::Value = serde_json::from_str(&near.get("/status").unwrap()).unwrap();
        path(&status)["streams"] == path(&status)["configured"]
    });
    assert_eq!(status["services"][0]["ready"], true);
}

/// Routing table of streams' handshakes, which exists while an agent runs.
const HANDSHAKE_TABLE: &str = " 5346";

#[test]
fn stopped_agents_leave_nothing_in_pods_and_nodes() {
    let lab = Lab::on(Network::Pods);
    let hosts = ["client", "near", "far", "server"];
    let before = hosts.map(|host| state(&lab, host));
    let (mut near, mut far) = lab.agents();
    let seen = serve(&lab, b"reply".to_vec());
    assert_works(&lab, &seen, b"reply");
    for (node, before) in [("near", &before[1]), ("far", &before[2])] {
        let (own, others): (Vec<_>, Vec<_>) =
            state(&lab, node).lines().map(str::to_owned).partition(|line| line.contains(HANDSHAKE_TABLE));
        assert_eq!(
            others,
            before.lines().collect::<Vec<_>>(),
            "agents create no other objects in the nodes' own namespaces"
        );
        // A rule, and a route for each of the peer's two addresses.
        assert_eq!(own.len(), 3, "{own:?}");
    }
    for agent in [&mut near, &mut far] {
        agent.signal(Signal::SIGTERM);
        assert_eq!(agent.wait(), Some(0));
    }
    for (host, before) in hosts.iter().zip(before) {
        assert_eq!(state(&lab, host), before, "{host}");
    }
    assert_works(&lab, &seen, b"reply");
}

#[test]
fn a_kill_of_the_ingress_agent_makes_new_connections_plain_after_one_retransmission() {
    let lab = Lab::on(Network::Pods);
    let (mut near, far) = lab.agents();
    let seen = serve(&lab, b"reply".to_vec());
    assert_works(&lab, &seen, b"reply");
    near.kill();
    // A SYN that arrives before the heartbeat has expired finds no listener and is dropped; the client retransmits it after a second.
    let before = retransmitted_syns(&lab);
    assert_works(&lab, &seen, b"reply");
    assert!(
        retransmitted_syns(&lab) <= before + 1,
        "the heartbeat has expired before the first retransmission"
    );
    assert_eq!(far.metric("sos_agent_sessions_begun_total"), Some(1));
    // The next agent replaces the table of the killed agent.
    let near = lab.agent(NEAR);
    near.wait_metric("sos_agent_armed_regions", |armed| armed >= 1);
    works_until_accepted(&lab, &near, &seen, |count| count >= 1);
}

#[test]
fn connections_from_another_address_of_the_pod_are_plain() {
    const SECOND: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 12);
    let lab = Lab::on(Network::Pods);
    let (near, _far) = lab.agents();
    lab.ip("client", &format!("address add {SECOND}/25 dev eth0"));
    let seen = serve(&lab, b"reply".to_vec());
    lab.at("client", || {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from((SECOND, 0)).into()).unwrap();
        socket.connect(&SocketAddr::from((SERVER, SERVICE_PORT)).into()).unwrap();
    });
    assert_eq!(seen.recv_timeout(PATIENCE).unwrap().client.ip(), SECOND);
    assert_eq!(accepted(&near), Some(0));
}

#[test]
fn an_address_in_two_namespaces_is_not_intercepted() {
    let lab = Lab::on(Network::Pods);
    let twin = lab.ns("twin");
    sh(&format!(
        "ip netns add {twin} && ip -n {twin} link add d0 type veth peer name d1 && ip -n {twin} address add {CLIENT}/32 dev d0"
    ));
    symlink(format!("/run/netns/{twin}"), lab.namespaces(NEAR).join("twin")).unwrap();
    let (near, far) = (lab.agent(NEAR), lab.agent(FAR));
    near.wait_metric("sos_agent_armed_regions", |armed| armed >= 1);
    intercepted(&far, 1);
    let seen = serve(&lab, b"reply".to_vec());
    assert_works(&lab, &seen, b"reply");
    assert_eq!((accepted(&near), near.metric("sos_agent_intercepted_pods")), (Some(0), Some(0)));
    std::fs::remove_file(lab.namespaces(NEAR).join("twin")).unwrap();
    intercepted(&near, 1);
    sh(&format!("ip netns delete {twin}"));
}

/// A sidecar redirects the application's connections to itself, and opens its own connections to their destinations.
#[test]
fn a_sidecars_own_connections_are_accelerated() {
    const SIDECAR: u16 = 15_001;
    let lab = Lab::on(Network::Pods);
    let (near, _far) = lab.agents();
    let nft = format!("ip netns exec {} nft", lab.ns("client"));
    sh(&format!("{nft} add table ip mesh"));
    sh(&format!("{nft} 'add chain ip mesh out {{ type nat hook output priority -100; }}'"));
    // In this test, the application uses source ports below 50000, and the sidecar a source port above.
    sh(&format!(
        "{nft} 'add rule ip mesh out tcp dport {SERVICE_PORT} tcp sport < 50000 redirect to :{SIDECAR}'"
    ));
    let seen = serve(&lab, b"reply".to_vec());
    let sidecar = lab.at("client", || TcpListener::bind((Ipv4Addr::UNSPECIFIED, SIDECAR)).unwrap());
    let relayed = lab.start("client", move || {
        let (mut inner, _) = sidecar.accept().unwrap();
        let outer = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        outer.bind(&SocketAddr::from((CLIENT, 50_123)).into()).unwrap();
        outer.connect(&SocketAddr::from((SERVER, SERVICE_PORT)).into()).unwrap();
        let mut outer: TcpStream = outer.into();
        let mut request = Vec::new();
        inner.read_to_end(&mut request).unwrap();
        outer.write_all(&request).unwrap();
        outer.shutdown(std::net::Shutdown::Write).unwrap();
        let mut reply = Vec::new();
        outer.read_to_end(&mut reply).unwrap();
        inner.write_all(&reply).unwrap();
    });
    let reply = lab.at("client", || {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from((CLIENT, 40_123)).into()).unwrap();
        socket.connect(&SocketAddr::from((SERVER, SERVICE_PORT)).into()).unwrap();
        let mut stream: TcpStream = socket.into();
        stream.write_all(b"request").unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut reply = Vec::new();
        stream.read_to_end(&mut reply).unwrap();
        reply
    });
    relayed.join().unwrap();
    assert_eq!(reply, b"reply");
    assert_eq!(seen.recv_timeout(PATIENCE).unwrap().client, SocketAddr::from((CLIENT, 50_123)));
    assert_eq!(accepted(&near), Some(1), "only the sidecar's connection is intercepted");
}

#[test]
fn one_client_port_may_have_connections_to_two_servers() {
    let lab = Lab::on(Network::Pods);
    let (near, _far) = lab.agents();
    let other = lab.at("server", || TcpListener::bind((Ipv4Addr::UNSPECIFIED, SERVICE_PORT + 1)).unwrap());
    let first = lab.at("server", || TcpListener::bind((Ipv4Addr::UNSPECIFIED, SERVICE_PORT)).unwrap());
    let clients = lab.at("client", || {
        [SERVICE_PORT, SERVICE_PORT + 1].map(|port| {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            socket.set_reuse_address(true).unwrap();
            socket.set_reuse_port(true).unwrap();
            socket.bind(&SocketAddr::from((CLIENT, 41_000)).into()).unwrap();
            socket.connect(&SocketAddr::from((SERVER, port)).into()).unwrap();
            TcpStream::from(socket)
        })
    });
    for (mut client, listener) in clients.into_iter().zip([first, other]) {
        let (mut server, from) = listener.accept().unwrap();
        assert_eq!(from, SocketAddr::from((CLIENT, 41_000)));
        let mut byte = [0];
        client.write_all(b"x").unwrap();
        server.read_exact(&mut byte).unwrap();
    }
    assert_eq!(accepted(&near), Some(2));
}

#[test]
fn connections_to_a_server_outside_the_nodes_pods_are_plain_with_source_preserve() {
    for accept in ["Learned", "Confirmed"] {
        let lab = Lab::on(Network::Pods);
        let (near, _far) = lab.agents_with(|side, document| {
            document["services"][0]["accept"] = accept.into();
            document["peers"][0]["agents"][0]["prefixes"] = serde_json::json!([]);
            if side.host == "far" {
                document["pods"] = serde_json::json!([]);
            }
        });
        let seen = serve(&lab, b"reply".to_vec());
        near.wait_metric("sos_agent_held_connections", |held| held == 0);
        for _ in 0..3 {
            assert_works(&lab, &seen, b"reply");
        }
        assert_eq!(accepted(&near), Some(0), "{accept}");
    }
}

/// Adds a rule on a node, as network plugins do for a policy. The rule applies to packets between the node's pods and the network.
fn policy(lab: &Lab, node: &str, verdict: &str) {
    let nft = format!("ip netns exec {} nft", lab.ns(node));
    sh(&format!("{nft} add table ip guard && {nft} flush table ip guard"));
    sh(&format!("{nft} 'add chain ip guard pods {{ type filter hook forward priority 0; }}'"));
    sh(&format!("{nft} add rule ip guard pods ip saddr {CLIENT} tcp dport {SERVICE_PORT} {verdict}"));
}

/// True if a connection to the server is established within two seconds.
fn connects(lab: &Lab) -> bool {
    lab.at("client", || {
        let server = SocketAddr::from((SERVER, SERVICE_PORT));
        TcpStream::connect_timeout(&server, Duration::from_secs(2)).is_ok()
    })
}

#[test]
fn connections_that_a_policy_forbids_stay_forbidden() {
    for (node, verdict) in [("near", "drop"), ("far", "drop"), ("far", "reject with tcp reset")] {
        let lab = Lab::on(Network::Pods);
        policy(&lab, node, verdict);
        let (near, _far) = lab.agents();
        let listener = lab.at("server", || TcpListener::bind((Ipv4Addr::UNSPECIFIED, SERVICE_PORT)).unwrap());
        listener.set_nonblocking(true).unwrap();
        assert!(!connects(&lab), "{verdict} at {node}");
        assert!(!connects(&lab), "{verdict} at {node}, again");
        assert!(listener.accept().is_err(), "the server has seen no connection");
        assert_eq!(accepted(&near), Some(0));
        drop(listener);
        policy(&lab, node, "accept");
        let seen = serve(&lab, b"reply".to_vec());
        works_until_accepted(&lab, &near, &seen, |count| count >= 1);
    }
}

#[test]
fn a_policy_applies_to_a_known_server_and_not_to_sites_that_ignore_policies() {
    let lab = Lab::on(Network::Pods);
    let (near, _far) = lab.agents();
    let seen = serve(&lab, b"reply".to_vec());
    assert_works(&lab, &seen, b"reply");
    assert_eq!(accepted(&near), Some(1));
    policy(&lab, "near", "drop");
    // The path is checked again after ten seconds, when a connection uses it.
    std::thread::sleep(Duration::from_secs(10));
    eventually("new connections are forbidden", || !connects(&lab));
    lab.configure_with(NEAR, 2, |document| document["intake"]["networkPolicies"] = "Ignore".into());
    eventually("policies are ignored", || connects(&lab));
}

#[test]
fn a_check_is_not_seen_by_the_servers_program() {
    let lab = Lab::on(Network::Pods);
    let (near, _far) = lab.agents();
    let listener = lab.at("server", || TcpListener::bind((Ipv4Addr::UNSPECIFIED, SERVICE_PORT)).unwrap());
    let client = lab.at("client", connect).unwrap();
    let (_first, from) = listener.accept().unwrap();
    assert_eq!(from, client.local_addr().unwrap());
    assert_eq!(accepted(&near), Some(1));
    listener.set_nonblocking(true).unwrap();
    std::thread::sleep(Duration::from_millis(500));
    assert!(listener.accept().is_err(), "only the client's connection arrives");
}

fn bytes_go_on_while_a_path_is_cut(network: Network) {
    let lab = Lab::on(network);
    let (near, _far) = lab.agents();
    near.wait_metric("sos_agent_streams", |streams| streams >= 10);
    let reply = content(2, 8 << 20);
    let seen = serve(&lab, reply.clone());
    let client = lab.start("client", || fetch(&content(1, 32 << 20)));
    near.wait_metric("sos_agent_sent_bytes_total", |sent| sent >= 2 << 20);
    lab.ip("near", "link set wan1 down");
    let got = client.join().unwrap().unwrap();
    assert_eq!((got.error, got.digest), (None, crate::lab::wire::digest(&reply)));
    assert_eq!(seen.recv_timeout(PATIENCE).unwrap().error, None);
}

#[test]
fn a_transfer_between_routed_agents_survives_the_loss_of_a_path() {
    bytes_go_on_while_a_path_is_cut(Network::Routes);
}

#[test]
fn a_transfer_between_pods_survives_the_loss_of_a_path() {
    bytes_go_on_while_a_path_is_cut(Network::Pods);
}

#[test]
fn a_half_closed_connection_outlives_the_timeouts_of_conntrack() {
    let lab = Lab::on(Network::Pods);
    let (near, _far) = lab.agents();
    for host in ["client", "server"] {
        let settings =
            "nf_conntrack_tcp_timeout_close_wait=1 net.netfilter.nf_conntrack_tcp_timeout_fin_wait=1";
        sh(&format!("ip netns exec {} sysctl -qw net.netfilter.{settings}", lab.ns(host)));
    }
    let listener = lab.at("server", || TcpListener::bind((Ipv4Addr::UNSPECIFIED, SERVICE_PORT)).unwrap());
    let mut client = lab.at("client", connect).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    client.write_all(b"request").unwrap();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    let mut request = Vec::new();
    server.read_to_end(&mut request).unwrap();
    // Wait for several times the timeouts above: without the agent's timeout policy, the entries would expire.
    std::thread::sleep(Duration::from_secs(4));
    let reply = content(7, 1 << 20);
    let (sent, expected) = (reply.clone(), reply);
    let writing = std::thread::spawn(move || server.write_all(&sent).unwrap());
    let mut received = Vec::new();
    client.read_to_end(&mut received).unwrap();
    writing.join().unwrap();
    assert!(received == expected, "{} bytes", received.len());
    assert_eq!(accepted(&near), Some(1));
}

#[test]
fn a_refused_syn_of_a_sidecar_exempt_by_user_is_not_redirected_to_it() {
    use std::os::unix::process::CommandExt as _;
    const SIDECAR: u16 = 15_001;
    const USER: u32 = 1_337;
    let lab = Lab::on(Network::Pods);
    let (near, _far) = lab.agents_that_accept("Confirmed");
    let nft = format!("ip netns exec {} nft", lab.ns("client"));
    sh(&format!("{nft} add table ip mesh"));
    sh(&format!("{nft} 'add chain ip mesh out {{ type nat hook output priority -100; }}'"));
    sh(&format!("{nft} 'add rule ip mesh out meta skuid {USER} accept'"));
    sh(&format!(
        "{nft} 'add rule ip mesh out oifname != lo tcp dport {SERVICE_PORT} redirect to :{SIDECAR}'"
    ));
    let sidecar = lab.at("client", || TcpListener::bind((Ipv4Addr::UNSPECIFIED, SIDECAR)).unwrap());
    // The sidecar itself connects to a closed port.
    let status = lab.at("client", || {
        let script = format!("exec 3<>/dev/tcp/{SERVER}/{SERVICE_PORT}");
        std::process::Command::new("bash")
            .args(["-c", &script])
            .uid(USER)
            .stderr(std::process::Stdio::null())
            .status()
            .unwrap()
    });
    assert!(!status.success(), "the server refuses");
    near.wait_metric("sos_agent_plain_total{reason=\"ServerRefused\"}", |plain| plain == 1);
    sidecar.set_nonblocking(true).unwrap();
    assert!(sidecar.accept().is_err(), "nothing is redirected to the sidecar");
}

#[test]
fn a_pod_is_intercepted_again_after_a_flush_of_its_nftables() {
    let lab = Lab::on(Network::Pods);
    let (near, _far) = lab.agents();
    let seen = serve(&lab, b"reply".to_vec());
    assert_works(&lab, &seen, b"reply");
    for host in ["client", "server"] {
        sh(&format!("ip netns exec {} nft flush ruleset", lab.ns(host)));
    }
    let before = accepted(&near).unwrap();
    works_until_accepted(&lab, &near, &seen, |count| count > before);
}

#[test]
fn a_router_does_not_intercept_connections_to_itself_or_change_foreign_marks() {
    let lab = Lab::on(Network::Routes);
    let (near, _far) = lab.agents_that_accept("Confirmed");
    let own = Ipv4Addr::new(10, 0, 0, 254);
    let listener = lab.at("far", move || TcpListener::bind((own, SERVICE_PORT)).unwrap());
    let client =
        lab.at("client", move || TcpStream::connect_timeout(&(own, SERVICE_PORT).into(), PATIENCE)).unwrap();
    assert_eq!(listener.accept().unwrap().1, client.local_addr().unwrap());
    assert_eq!(accepted(&near), Some(0));
    // The ingress router has rules of its own, which mark packets, for example to choose an uplink.
    let nft = format!("ip netns exec {} nft", lab.ns("near"));
    sh(&format!("{nft} add table ip uplinks"));
    sh(&format!("{nft} 'add chain ip uplinks arrived {{ type filter hook prerouting priority raw; }}'"));
    sh(&format!("{nft} 'add rule ip uplinks arrived iifname net0 meta mark set 0x12'"));
    sh(&format!("{nft} 'add chain ip uplinks forwarded {{ type filter hook forward priority 0; }}'"));
    sh(&format!("{nft} 'add counter ip uplinks kept'"));
    sh(&format!("{nft} 'add rule ip uplinks forwarded meta mark 0x12 counter name kept'"));
    let seen = serve(&lab, b"reply".to_vec());
    assert_works(&lab, &seen, b"reply");
    assert!(
        !sh(&format!("{nft} list counter ip uplinks kept")).contains("packets 0"),
        "packets with the router's own mark keep it"
    );
}
