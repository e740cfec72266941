use super::*;
use crate::network::Topology;
use crate::openflow::packets::syn_number;
use crate::openflow::wire::{frame, put};

const PATIENCE: Duration = Duration::from_secs(1);

fn world(topology: Topology) -> World {
    let settings = Settings { patience: PATIENCE, hold: None, announce_servers: true, always_punt: true };
    World::new(Network::plain(2, topology), Vec::new(), settings, 0)
}

/// Frames of a switch's pending packet-ins; other pending messages are discarded.
fn packet_ins(switch: &mut Switch) -> Vec<Vec<u8>> {
    let (out, mut at, mut found) = (std::mem::take(&mut switch.out), 0, Vec::new());
    while let Ok(Some(length)) = frame(&out[at..]) {
        if out[at + 1] == 10 {
            found.push(out[at + 42..at + length].to_vec());
        }
        at += length;
    }
    found
}

fn packet_out(port: u32, frame: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    put(&mut out, 13, 1, |b| {
        b.extend_from_slice(&[0xFF; 8]);
        b.extend_from_slice(&[0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 16]);
        b.extend_from_slice(&port.to_be_bytes());
        b.extend_from_slice(&[0xFF, 0xFF, 0, 0, 0, 0, 0, 0]);
        b.extend_from_slice(frame);
    });
    out
}

#[test]
fn syn_is_answered_once_by_the_packet_out_that_carries_it() {
    let mut world = world(Topology::None);
    world.offer(Load::Outstanding(2), Duration::ZERO, Duration::ZERO);
    assert_eq!((world.unanswered(), &world.outstanding), (4, &vec![2, 2]));
    let syns = packet_ins(&mut world.switches[0]);
    assert_eq!(syns.len(), 2);
    for _ in 0..2 {
        world.receive(0, &packet_out(2, &syns[0]), Duration::from_millis(3), 0).expect("OpenFlow");
    }
    assert_eq!((world.counts[0].answered, world.counts[0].redirected, world.unanswered()), (1, 0, 3));
    assert_eq!(world.counts[0].answer.quantile_ms(0.5), Some(3.001));
    world.offer(Load::Outstanding(2), Duration::ZERO, Duration::ZERO);
    let again = packet_ins(&mut world.switches[0]);
    assert_eq!(again.len(), 1, "a new SYN replaces the answered SYN");
    assert_ne!(syn_number(&again[0]), syn_number(&syns[0]));
}

#[test]
fn unanswered_syn_counts_as_lost_after_its_timeout() {
    let mut world = world(Topology::None);
    world.offer(Load::Rate(10.0), Duration::ZERO, Duration::from_secs(1));
    assert_eq!(world.unanswered(), 10);
    world.pass(PATIENCE / 2, 0);
    assert_eq!(world.unanswered(), 10);
    world.pass(PATIENCE, 0);
    assert_eq!((world.unanswered(), world.counts.iter().map(|c| c.lost).sum::<u64>()), (0, 10));
    assert_eq!(world.outstanding, vec![0, 0]);
}

#[test]
fn only_lldp_crosses_a_link() {
    let mut world = world(Topology::Line);
    let port = world.switches[0].plan.ports[2];
    let mut probe = vec![0; 60];
    probe[12..14].copy_from_slice(&LLDP.to_be_bytes());
    world.receive(0, &packet_out(port, &probe), Duration::ZERO, 0).expect("OpenFlow");
    world.receive(0, &packet_out(port, &[0; 60]), Duration::ZERO, 0).expect("OpenFlow");
    assert_eq!((world.probes, packet_ins(&mut world.switches[1])), (1, vec![probe]));
}
