//! The emulator between real network stacks, in private namespaces. Needs root, iproute2, iputils-ping, iperf3,
//! ethtool.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod world;

use std::process::Stdio;
use world::{CLIENT, Process, SERVER, SERVER_V6, World, command, run, wait_for};

/// Wire bytes of a datagram with this payload: Ethernet frame plus preamble, check sequence and gap.
fn datagram_on_wire(payload: f64) -> f64 {
    payload + 8.0 + 20.0 + 14.0 + 24.0
}

#[test]
fn ping_takes_twice_the_delay() {
    let world = World::new();
    let emulator = world.emulator("name=l,rate=500mbit,delay=5ms");
    for round_trip in [10.0, 59.0, 164.0] {
        let delay = round_trip / 2.0;
        emulator.ask(&format!(r#"{{"op":"set","link":"l","delay":"{delay}ms"}}"#));
        let seen = world.ping(8).expect("pings come back");
        assert!(seen >= round_trip, "{seen} ms is faster than the line");
        assert!(seen < round_trip + 3.0, "{seen} ms instead of {round_trip}");
    }
}

#[test]
fn each_direction_has_its_own_delay() {
    let world = World::new();
    let _emulator = world.emulator("rate=500mbit,a2b.delay=30ms,b2a.delay=5ms");
    let seen = world.ping(5).expect("pings come back");
    assert!((35.0..38.0).contains(&seen), "{seen} ms instead of 35");
}

#[test]
fn udp_throughput_equals_the_rate() {
    let world = World::new();
    // The queue keeps the line busy while a busy machine suspends the sender.
    let _emulator = world.emulator("rate=50mbit,delay=10ms,queue=250ms");
    let result = world.iperf("-u -b 80M -l 1400 -t 4 -w 2M");
    let seen = result["end"]["sum_received"]["bits_per_second"]
        .as_f64()
        .unwrap();
    let expected = 50e6 * 1400.0 / datagram_on_wire(1400.0);
    assert!(seen > 0.95 * expected, "{seen} of {expected} bit/s");
    assert!(seen < 1.01 * expected, "{seen} of {expected} bit/s");
}

#[test]
fn loss_matches_the_setting() {
    let world = World::new();
    let emulator = world.emulator("rate=100mbit,delay=2ms,queue=2mb,a2b.loss=5%");
    let result = world.iperf("-u -b 30M -l 1400 -t 4 -w 2M");
    let stats = emulator.stats("a2b");
    let count = |path: &str| stats.pointer(path).unwrap().as_f64().unwrap();
    let (received, lost) = (count("/received/packets"), count("/dropped/loss"));
    let margin = 6.0 * (received * 0.05 * 0.95).sqrt();
    assert!(received > 5_000.0);
    assert!(
        (lost - 0.05 * received).abs() < margin,
        "{lost} of {received}"
    );
    assert_eq!(count("/dropped/queue") + count("/dropped/socket"), 0.0);
    let percent = result["end"]["sum"]["lost_percent"].as_f64().unwrap();
    assert!(
        (percent - 5.0).abs() < 1.5,
        "{percent} % seen by the receiver"
    );
    assert_eq!(emulator.stats("b2a")["dropped"]["loss"], 0);
}

#[test]
fn tcp_reaches_the_wire_limit() {
    let world = World::new();
    let emulator = world.emulator("rate=200mbit,delay=10ms");
    let result = world.iperf("-C cubic -t 6 -O 2");
    let seen = result["end"]["sum_received"]["bits_per_second"]
        .as_f64()
        .unwrap();
    let limit = 200e6 * 1448.0 / 1538.0;
    assert!(
        seen > 0.9 * limit && seen < 1.01 * limit,
        "{seen} of {limit} bit/s"
    );
    let stats = emulator.stats("a2b");
    let count = |path: &str| stats.pointer(path).unwrap().as_f64().unwrap();
    let per_frame = count("/delivered/packets") / count("/delivered/frames");
    assert!(
        per_frame > 3.0,
        "{per_frame} packets per frame: super-frames are not kept"
    );
}

/// Make hosts verify checksums: the emulator's interfaces complete checksums and segment frames, and the hosts verify
/// them on arrival.
fn verify_checksums(world: &World) {
    for end in ["wa", "wb"] {
        world.wan.run(&format!(
            "ethtool -K {end} tx off tso off gso off >/dev/null"
        ));
    }
    for host in [&world.client, &world.server] {
        host.run("ethtool -K eth0 rx off gro off >/dev/null");
    }
}

#[test]
fn checksums_are_valid_after_cutting_and_joining() {
    let world = World::new();
    verify_checksums(&world);
    let emulator = world.emulator("rate=1gbit,delay=1ms,loss=1%");
    for address in [SERVER, SERVER_V6] {
        world.echo(address, 20_000_000);
    }
    assert!(emulator.stats("a2b")["dropped"]["loss"].as_u64().unwrap() > 100);
    for host in [&world.client, &world.server] {
        assert_eq!(host.counter("TcpInCsumErrors"), 0);
        assert_eq!(host.counter("IpExtInCsumErrors"), 0);
    }
}

#[test]
fn segments_of_a_host_without_offload_are_joined_unless_disabled() {
    let world = World::new();
    for host in [&world.client, &world.server] {
        host.run("ethtool -K eth0 tx off tso off gso off gro off >/dev/null");
    }
    let per_frame = |options: &str| {
        let emulator = world.emulator(&format!("rate=1gbit,delay=5ms {options}"));
        world.echo(SERVER, 10_000_000);
        let stats = emulator.stats("a2b")["delivered"].clone();
        stats["packets"].as_f64().unwrap() / stats["frames"].as_f64().unwrap()
    };
    assert_eq!(per_frame("--no-coalesce"), 1.0);
    let joined = per_frame("");
    assert!(joined > 1.5, "{joined} packets per frame");
    for host in [&world.client, &world.server] {
        assert_eq!(host.counter("TcpInCsumErrors"), 0);
    }
}

#[test]
fn frames_with_tunnel_offload_are_counted_and_pass_without_offload() {
    let world = World::new();
    for (host, own, peer) in [(&world.client, 1, SERVER), (&world.server, 2, CLIENT)] {
        let name = &host.0;
        run(&format!(
            "ip -n {name} link add vx0 type vxlan id 5 remote {peer} dstport 4789 dev eth0 && \
             ip -n {name} addr add 10.98.0.{own}/24 dev vx0 && ip -n {name} link set vx0 up"
        ));
    }
    let emulator = world.emulator("rate=500mbit,delay=1ms");
    let unreadable = || {
        emulator.stats("a2b")["dropped"]["unreadable"]
            .as_u64()
            .unwrap()
    };
    world.echo("10.98.0.2", 20_000);
    let counted = unreadable();
    assert!(
        counted > 0,
        "this kernel no longer offloads tunnels over veth"
    );
    for host in [&world.client, &world.server] {
        host.run("ethtool -K eth0 tx-udp_tnl-segmentation off tx-udp_tnl-csum-segmentation off");
    }
    world.echo("10.98.0.2", 20_000_000);
    assert_eq!(unreadable(), counted);
    assert_eq!(emulator.stats("a2b")["dropped"]["send"], 0);
}

#[test]
fn a_link_goes_down_and_up_by_the_control_socket() {
    let world = World::new();
    let emulator = world.emulator("name=wan,rate=100mbit,delay=1ms");
    assert!(world.ping(2).is_some());
    emulator.ask(r#"{"op":"down","link":"wan"}"#);
    assert!(world.ping(2).is_none());
    emulator.ask(r#"{"op":"up","link":"wan","direction":"a2b"}"#);
    assert!(
        world.ping(2).is_none(),
        "the reverse direction is still cut"
    );
    emulator.ask(r#"{"op":"up"}"#);
    assert!(world.ping(2).is_some());
}

#[test]
fn an_interface_may_go_down_or_disappear_and_return() {
    let world = World::new();
    let emulator = world.emulator("rate=100mbit,delay=1ms");
    let attached = |wanted: bool| {
        wait_for("the interface", || {
            let answer = emulator.ask(r#"{"op":"stats"}"#);
            (answer["links"][0]["b"]["attached"] == wanted).then_some(())
        });
    };
    run(&format!("ip -n {} link set wb down", world.wan.0));
    attached(false);
    assert!(world.ping(1).is_none());
    run(&format!("ip -n {} link set wb up", world.wan.0));
    attached(true);
    assert!(world.ping(3).is_some());
    run(&format!("ip -n {} link del wb", world.wan.0));
    attached(false);
    world.cable(&world.server, "wb", SERVER, SERVER_V6);
    attached(true);
    // The new interface has a new MAC address.
    world.client.run("ip neigh flush dev eth0");
    assert!(world.ping(3).is_some());
}

#[test]
fn two_links_of_one_process_are_isolated() {
    let world = World::new();
    let (host, wan) = (&world.client.0, &world.wan.0);
    run(&format!(
        "ip link add eth1 netns {host} type veth peer name wc netns {wan} && \
         ip -n {host} link set eth1 up && ip -n {wan} link set wc up && \
         ip -n {wan} link add wd type veth peer name we && \
         ip netns exec {wan} sysctl -qw net.ipv6.conf.we.disable_ipv6=1 && \
         ip -n {wan} link set wd up && ip -n {wan} link set we up"
    ));
    let second = "--link A=wc,B=wd,rate=1gbit,delay=1ms";
    let emulator = world.emulator(&format!("rate=1gbit,delay=1ms {second}"));
    assert!(world.ping(3).is_some());
    let answer = emulator.ask(r#"{"op":"stats"}"#);
    assert!(
        answer["links"][0]["a2b"]["stats"]["delivered"]["frames"]
            .as_u64()
            .unwrap()
            > 2
    );
    let foreign = &answer["links"][1]["b2a"]["stats"]["received"]["frames"];
    assert_eq!(foreign.as_u64(), Some(0));
}

#[test]
fn the_emulators_interfaces_are_silent() {
    let world = World::new();
    run(&format!(
        "ip -n {} addr add 10.99.0.77/24 dev wa",
        world.wan.0
    ));
    let _emulator = world.emulator("rate=1gbit,delay=1ms");
    assert!(world.ping(2).is_some());
    let line = format!(
        "ip netns exec {} ping -c 2 -i 0.1 -W 1 10.99.0.77",
        world.client.0
    );
    let status = std::process::Command::new("sh")
        .args(["-c", &line])
        .stdout(Stdio::null())
        .status();
    assert!(
        !status.unwrap().success(),
        "an emulator's interface answered ARP"
    );
}

#[test]
fn sigterm_writes_statistics_and_removes_the_control_socket() {
    let world = World::new();
    let mut emulator = world.emulator("name=wan,rate=1gbit,delay=1ms");
    assert!(world.ping(2).is_some());
    emulator.process.terminate();
    assert!(emulator.process.0.wait().unwrap().success());
    assert!(!emulator.control().exists());
    let text = std::fs::read_to_string(emulator.folder.join("stats")).unwrap();
    let stats: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(stats["links"][0]["name"], "wan");
    assert!(
        stats["links"][0]["a2b"]["stats"]["delivered"]["packets"]
            .as_u64()
            .unwrap()
            >= 2
    );
}

#[test]
fn an_idle_emulator_uses_no_processor_time() {
    let world = World::new();
    let emulator = world.emulator("rate=1gbit,delay=1ms");
    let ticks = || {
        let stat =
            std::fs::read_to_string(format!("/proc/{}/stat", emulator.process.0.id())).unwrap();
        let fields: Vec<u64> = stat
            .split_whitespace()
            .skip(13)
            .take(2)
            .map(|f| f.parse().unwrap())
            .collect();
        fields[0] + fields[1]
    };
    let before = ticks();
    std::thread::sleep(std::time::Duration::from_secs(2));
    assert!(
        ticks() - before <= 1,
        "the emulator is busy without traffic"
    );
}

#[test]
fn invalid_arguments_end_it_with_one_line() {
    let world = World::new();
    for (arguments, status, needle) in [
        (
            "--link A=wa,B=nowhere,rate=1gbit --wait 300ms",
            1,
            "nowhere",
        ),
        ("--link A=wa,B=wb,rate=1gbit,color=red", 2, "color"),
        (
            "--link A=wa,B=wb,rate=1gbit --link A=wb,B=wc,rate=1gbit",
            2,
            "wb",
        ),
        ("--link A=wa,B=wb,rate=1gbit --tick 0", 2, "tick"),
        ("", 2, "--link"),
    ] {
        let output = command(&world.wan, arguments).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{arguments}: {errors}");
        assert!(errors.contains(needle), "{arguments}: {errors}");
    }
}

#[test]
fn the_emulator_waits_for_a_missing_interface() {
    let world = World::new();
    run(&format!("ip -n {} link del wa", world.wan.0));
    let child = command(&world.wan, "--link A=wa,B=wb,rate=1gbit")
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let _process = Process(child);
    std::thread::sleep(std::time::Duration::from_millis(500));
    world.cable(&world.client, "wa", CLIENT, "fd99::1");
    wait_for("the link", || world.ping(1));
}
