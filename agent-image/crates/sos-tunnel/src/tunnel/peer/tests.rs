use std::net::Ipv4Addr;

use sos_wire::SiteId;

use super::*;

#[test]
fn quic_backs_off_after_failures_for_each_label() {
    let config = PeerConfig::new(AgentId([2; 16]), SiteId(2), Ipv4Addr::LOCALHOST, 1);
    let (peer, mut now) = (Peer::new(AgentId([1; 16]), config, &Arc::default()), Instant::now());
    let bounds = (Duration::from_secs(2), Duration::from_secs(30));
    for seconds in [2, 4, 8, 16, 30, 30] {
        let pause = Duration::from_secs(seconds);
        assert!(peer.may_try_quic(0, now));
        assert_eq!(peer.give_up_quic(0, now, bounds), Some(pause));
        assert_eq!(peer.give_up_quic(0, now, bounds), None, "a pause is already in force");
        now += pause;
        assert!(!peer.may_try_quic(0, now - Duration::from_millis(1)));
        assert!(peer.may_try_quic(1, now));
    }
}

#[test]
fn room_wakes_the_longest_waiting_session_and_the_first_that_uses_every_stream() {
    let config = PeerConfig::new(AgentId([2; 16]), SiteId(2), Ipv4Addr::LOCALHOST, 1);
    let peer = Peer::new(AgentId([1; 16]), config, &Arc::default());
    let sessions: Vec<_> = (0..6).map(|_| Mailbox::new(0)).collect();
    for (at, all_streams) in [true, false, true, true, true, false].into_iter().enumerate() {
        peer.wait_for_room(&sessions[at], Labels(0b1), all_streams);
    }
    peer.wait_for_room(&sessions[0], Labels(0b1), false);
    sessions[2].close();
    let wake = |label| {
        let woken = peer.wake_next(label);
        let room_waiters = lock(&peer.room_waiters);
        let waits = |session| room_waiters.iter().any(|(_, waiting)| Arc::ptr_eq(waiting, session));
        (woken, sessions.iter().map(waits).collect::<Vec<_>>())
    };
    assert_eq!(wake(1), (false, vec![true, true, false, true, true, true]), "no session may use this label");
    assert_eq!(wake(0), (true, vec![false, true, false, false, true, true]));
    assert_eq!(wake(0), (true, vec![false, false, false, false, false, true]));
    assert_eq!(wake(0), (true, vec![false; 6]));
    assert_eq!(wake(0), (false, vec![false; 6]));
}

#[test]
fn the_latest_willingness_counts_in_any_arrival_order() {
    let config = PeerConfig::new(AgentId([2; 16]), SiteId(2), Ipv4Addr::LOCALHOST, 1);
    let peer = Peer::new(AgentId([1; 16]), config, &Arc::default());
    for (said, holds) in [(1, false), (4, true), (3, true), (5, false), (4, false)] {
        peer.handle_willing(Willingness(said));
        assert_eq!(lock(&peer.state).willingness.holds(), holds, "after {said}");
    }
}
