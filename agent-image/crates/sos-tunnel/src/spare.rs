//! Which streams a session leaves alone.

use sos_relay::{SessionStats, StreamView};

use crate::config::{Labels, PeerConfig};

/// Bytes sent from which a session is bulk.
const BULK: u64 = 1 << 20;
/// Bytes a session keeps, unacknowledged or unsent, from which it has much to say at the moment, however little it has said so far.
const MUCH: u64 = 64 << 10;
/// Streams of one label of which a session with much to say leaves one to others.
const ENOUGH: usize = PeerConfig::LIGHT_STREAMS + 1;

/// Most streams of each label for one session, as its service says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct MostStreams(pub(crate) Option<usize>);

impl MostStreams {
    /// Bound for a session with `much` to send. Services share streams, and another service may have had many of them opened: a session whose
    /// service names no number uses as many as where no service does.
    fn allowed(self, much: bool) -> usize {
        let usual = PeerConfig::DEFAULT_STREAMS + if much { 0 } else { PeerConfig::LIGHT_STREAMS };
        self.0.unwrap_or(usual).max(1)
    }
}

/// Decides which streams are spare: of each label those after the first that work, as many as carry bulk there; none for a session that has
/// sent little. A session uses at most `most` streams of a label at a time. And of each label that has enough, the first is not for sessions
/// with much to say: what they put on a stream takes several round trips to leave, and a request behind it would wait for all of it.
pub(crate) fn settle(streams: &mut [StreamView], session: &SessionStats, most: MostStreams) {
    let (bulk, much) = (session.sent >= BULK, session.held >= MUCH);
    let works = |view: &StreamView| !view.stalled && !view.doubtful;
    let (mut working, mut light, mut used) = ([0; Labels::COUNT], [None; Labels::COUNT], [0; Labels::COUNT]);
    for view in &*streams {
        let at = usize::from(view.label) % Labels::COUNT;
        if works(view) {
            working[at] += 1;
            // By its number, so that it is the same one for all sessions whatever the order in which they heard of them.
            light[at] = light[at].into_iter().chain([view.id]).min();
        }
    }
    for view in streams {
        let at = usize::from(view.label) % Labels::COUNT;
        let left = much && working[at] >= ENOUGH && light[at] == Some(view.id);
        // Where the path has room for one, others only make it wait.
        let few = bulk || (much && view.carriers == 1);
        let beyond = used[at] >= most.allowed(much) || (few && used[at] >= view.carriers);
        view.spare = works(view) && (left || beyond);
        used[at] += usize::from(works(view) && !view.spare);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sos_relay::StreamId;

    use super::*;

    const MANY: MostStreams = MostStreams(Some(64));

    fn view(at: usize, label: u8, carriers: usize) -> StreamView {
        StreamView {
            id: StreamId(at as u64),
            label,
            has_room: true,
            queued: 0,
            given: 0,
            passed: 0,
            rtt: Duration::from_millis(20),
            window: 1 << 20,
            grows: false,
            stalled: false,
            doubtful: false,
            carriers,
            spare: false,
            lossy: false,
        }
    }

    /// Of streams with these labels, of which two carry bulk in the eyes of all but those in `others` and those in `stalled` stalled, the ones
    /// left alone.
    fn spare(labels: &[u8], stalled: &[usize], others: &[usize], sent: u64) -> Vec<usize> {
        let view = |(at, label): (usize, &u8)| StreamView {
            stalled: stalled.contains(&at),
            ..view(at, *label, if others.contains(&at) { usize::MAX } else { 2 })
        };
        let mut views: Vec<_> = labels.iter().enumerate().map(view).collect();
        // What it has sent last is under way.
        let session = SessionStats { sent, held: sent.min(MUCH), ..SessionStats::default() };
        settle(&mut views, &session, MANY);
        (0..labels.len()).filter(|at| views[*at].spare).collect()
    }

    #[test]
    fn a_bulk_session_uses_two_of_each_label_and_leaves_the_first() {
        assert_eq!(spare(&[0, 1, 0, 1, 0, 1, 0], &[], &[], BULK), [0, 1, 6]);
    }

    #[test]
    fn without_a_number_all_are_used_but_the_first() {
        assert_eq!(spare(&[0; 4], &[], &[0, 1, 2, 3], BULK), [0]);
        assert_eq!(spare(&[0; 4], &[], &[2], BULK), [0, 3], "while they change over");
        assert_eq!(spare(&[0, 0, 1, 1], &[], &[0, 1, 2, 3], BULK), [0, 2], "each label has one");
        assert!(spare(&[0, 1], &[], &[0, 1], BULK).is_empty(), "none can be left");
    }

    #[test]
    fn where_the_path_is_for_one_it_is_the_second() {
        let mut views: Vec<StreamView> = (0..5).map(|at| view(at, 0, 1)).collect();
        settle(&mut views, &SessionStats { sent: BULK, held: MUCH, ..SessionStats::default() }, MANY);
        assert_eq!(views.iter().map(|view| view.spare).collect::<Vec<_>>(), [true, false, true, true, true]);
        settle(&mut views, &SessionStats { sent: MUCH, held: MUCH, ..SessionStats::default() }, MANY);
        assert_eq!(views.iter().map(|view| view.spare).collect::<Vec<_>>(), [true, false, true, true, true]);
        settle(&mut views, &SessionStats { sent: MUCH, held: MUCH - 1, ..SessionStats::default() }, MANY);
        assert!(views.iter().all(|view| !view.spare), "it says little");
    }

    #[test]
    fn another_is_left_when_the_first_stalls() {
        assert_eq!(spare(&[0; 4], &[0], &[0, 1, 2, 3], BULK), [1]);
    }

    #[test]
    fn one_that_has_sent_little_uses_any_but_the_first_and_one_that_says_little_any() {
        assert_eq!(spare(&[0; 8], &[], &[], BULK - 1), [0]);
        assert!(spare(&[0; 8], &[], &[], MUCH - 1).is_empty());
    }

    /// Streams in use of each of two labels by a session that keeps `held` bytes.
    fn in_use(streams: usize, held: u64, most: Option<usize>) -> [usize; 2] {
        let mut views: Vec<StreamView> =
            (0..2 * streams).map(|at| view(at, (at % 2) as u8, usize::MAX)).collect();
        let session = SessionStats { sent: BULK, held, ..SessionStats::default() };
        settle(&mut views, &session, MostStreams(most));
        [0, 1].map(|label| views.iter().filter(|view| view.label == label && !view.spare).count())
    }

    #[test]
    fn a_session_uses_as_many_streams_of_each_path_as_its_service_says() {
        for (most, used) in [(1, 1), (3, 3), (16, 16), (64, 16)] {
            assert_eq!(in_use(17, MUCH, Some(most)), [used; 2], "one is left to those that say little");
        }
        assert_eq!(in_use(17, 0, Some(1)), [1; 2]);
        assert_eq!(in_use(1, MUCH, Some(0)), [1; 2], "never none");
    }

    #[test]
    fn a_session_whose_service_says_nothing_does_not_use_what_another_has_opened() {
        assert_eq!(in_use(17, MUCH, None), [PeerConfig::DEFAULT_STREAMS; 2]);
        assert_eq!(in_use(17, MUCH, None), in_use(5, MUCH, None));
        assert_eq!(in_use(17, 0, None), in_use(5, 0, None));
    }

    #[test]
    fn one_that_has_sent_much_may_say_little() {
        let mut views: Vec<StreamView> = (0..4).map(|at| view(at, 0, 2)).collect();
        let session = SessionStats { sent: 100 * BULK, held: 1000, ..SessionStats::default() };
        settle(&mut views, &session, MANY);
        assert_eq!(views.iter().map(|view| view.spare).collect::<Vec<_>>(), [false, false, true, true]);
    }

    #[test]
    fn another_takes_the_place_of_one_that_stalls() {
        assert_eq!(spare(&[0; 5], &[0], &[], BULK), [1, 4]);
        assert!(spare(&[0; 3], &[0, 1, 2], &[], BULK).is_empty(), "none works");
    }
}
