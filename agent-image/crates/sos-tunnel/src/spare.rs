//! Which streams a session leaves alone.

use sos_relay::StreamView;

use crate::config::Labels;

/// Of streams whose congestion control models the path a session that is bulk uses so many over each path: each takes the best rate it has
/// seen for its own, and the sum of such maxima is more than the path (20 ms, 1 % loss, 200 Mbit/s: eight reach 0.89 of the wire and send
/// 17 % again, two reach 0.92).
const MODELLED_AT_ONCE: usize = 2;
/// Bytes sent from which a session is bulk.
const BULK: u64 = 1 << 20;

/// Decides about streams that call themselves spare, as far as they can tell: the first of each label that work are not, nor is any for a
/// session that has sent little.
pub(crate) fn settle<'a>(streams: impl Iterator<Item = (u8, &'a mut StreamView)>, sent: u64) {
    let mut used = [0; Labels::COUNT];
    for (label, view) in streams {
        let used = &mut used[usize::from(label) % Labels::COUNT];
        let works = !view.stalled && !view.doubtful;
        view.spare &= works && sent >= BULK && *used >= MODELLED_AT_ONCE;
        *used += usize::from(works && !view.spare);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sos_relay::StreamId;

    use super::*;

    /// Of streams with these labels, all modelled but those in `others` and those in `stalled` stalled, the ones left alone.
    fn spare(labels: &[u8], stalled: &[usize], others: &[usize], sent: u64) -> Vec<usize> {
        let view = |at: usize| StreamView {
            id: StreamId(at as u64),
            has_room: true,
            queued: 0,
            rtt: Duration::from_millis(20),
            window: 1 << 20,
            grows: false,
            stalled: stalled.contains(&at),
            doubtful: false,
            spare: !others.contains(&at),
        };
        let mut views: Vec<_> = (0..labels.len()).map(view).collect();
        settle(labels.iter().copied().zip(&mut views), sent);
        (0..labels.len()).filter(|at| views[*at].spare).collect()
    }

    #[test]
    fn a_bulk_session_uses_two_of_each_label() {
        assert_eq!(spare(&[0, 1, 0, 1, 0, 1, 0], &[], &[], BULK), [4, 5, 6]);
    }

    #[test]
    fn streams_that_model_nothing_are_all_used() {
        assert!(spare(&[0; 4], &[], &[0, 1, 2, 3], BULK).is_empty());
        assert_eq!(spare(&[0; 4], &[], &[2], BULK), [3], "while they change over");
    }

    #[test]
    fn a_small_session_uses_any() {
        assert!(spare(&[0; 8], &[], &[], BULK - 1).is_empty());
    }

    #[test]
    fn another_takes_the_place_of_one_that_stalls() {
        assert_eq!(spare(&[0; 5], &[0], &[], BULK), [3, 4]);
        assert!(spare(&[0; 3], &[0, 1, 2], &[], BULK).is_empty(), "none works");
    }
}
