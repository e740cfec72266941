//! Stream reservation: one stream per path for interactive sessions, and limits on the remaining streams.

use crate::{SessionStats, StreamView};

/// Streams per label for one session whose service sets no number. Four fill a path of 1 Gbit/s, and take no more from other traffic than
/// four connections would.
pub const DEFAULT_STREAMS: usize = 4;
/// Additional streams per label, reserved for interactive sessions: one.
pub const RESERVED_STREAMS: usize = 1;
/// Number of possible path labels.
const LABELS: usize = u32::BITS as usize;
/// A session that has sent this many bytes is bulk.
const BULK: u64 = 1 << 20;
/// A session with this many bytes of backlog, unacknowledged or unsent, is currently busy, however little it has sent so far.
const MUCH: u64 = 64 << 10;
/// Minimum number of streams per label for which a busy session leaves one stream reserved.
const ENOUGH: usize = RESERVED_STREAMS + 1;

/// Maximum number of streams per label for one session, as set by its service.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StreamLimit(pub Option<usize>);

impl StreamLimit {
    /// Returns the maximum number of streams per label for a session; `much`: the session is busy. If the session's service sets no number,
    /// the default applies, however many streams are open: services share streams, and another service may need more of them.
    fn allowed(self, much: bool) -> usize {
        let usual = DEFAULT_STREAMS + if much { 0 } else { RESERVED_STREAMS };
        self.0.unwrap_or(usual).max(1)
    }
}

/// Reserves streams of each label for other sessions. A bulk session does not use working streams beyond the path's parallelism, and no
/// session uses streams beyond `most`. If a label has enough streams, busy sessions do not use its first stream either: their blocks take
/// several round trips to leave a queue, and a request behind these blocks would have to wait.
pub fn reserve(streams: &mut [StreamView], session: &SessionStats, most: StreamLimit) {
    let (bulk, much) = (session.sent >= BULK, session.held >= MUCH);
    let works = |view: &StreamView| !view.stalled && !view.suspect;
    let (mut working, mut first, mut used) = ([0; LABELS], [None; LABELS], [0; LABELS]);
    for view in &*streams {
        let at = usize::from(view.label) % LABELS;
        if works(view) {
            working[at] += 1;
            // By id, so that all sessions reserve the same stream, whatever the order in which they learned of the streams.
            first[at] = first[at].into_iter().chain([view.id]).min();
        }
    }
    for view in streams {
        let at = usize::from(view.label) % LABELS;
        let left = much && working[at] >= ENOUGH && first[at] == Some(view.id);
        // If the path has capacity for only one stream, further streams only delay it.
        let few = bulk || (much && view.parallelism == 1);
        let beyond = used[at] >= most.allowed(much) || (few && used[at] >= view.parallelism);
        view.reserved = works(view) && (left || beyond);
        used[at] += usize::from(works(view) && !view.reserved);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const MANY: StreamLimit = StreamLimit(Some(64));

    fn view(at: usize, label: u8, parallelism: usize) -> StreamView {
        StreamView { parallelism, ..StreamView::idle(at as u64, label, Duration::from_millis(20)) }
    }

    /// Reserved streams among streams with these labels, with parallelism 2. Streams in `others` have unlimited parallelism; streams in
    /// `stalled` have stalled.
    fn reserved(labels: &[u8], stalled: &[usize], others: &[usize], sent: u64) -> Vec<usize> {
        let view = |(at, label): (usize, &u8)| StreamView {
            stalled: stalled.contains(&at),
            ..view(at, *label, if others.contains(&at) { usize::MAX } else { 2 })
        };
        let mut views: Vec<_> = labels.iter().enumerate().map(view).collect();
        // The session's last bytes are in flight.
        let session = SessionStats { sent, held: sent.min(MUCH), ..SessionStats::default() };
        reserve(&mut views, &session, MANY);
        (0..labels.len()).filter(|at| views[*at].reserved).collect()
    }

    #[test]
    fn a_bulk_session_uses_two_streams_of_each_label_but_not_the_first() {
        assert_eq!(reserved(&[0, 1, 0, 1, 0, 1, 0], &[], &[], BULK), [0, 1, 6]);
    }

    #[test]
    fn without_a_limit_all_streams_but_the_first_are_used() {
        assert_eq!(reserved(&[0; 4], &[], &[0, 1, 2, 3], BULK), [0]);
        assert_eq!(reserved(&[0; 4], &[], &[2], BULK), [0, 3], "during a change of parallelism");
        assert_eq!(reserved(&[0, 0, 1, 1], &[], &[0, 1, 2, 3], BULK), [0, 2], "each label has one");
        assert!(reserved(&[0, 1], &[], &[0, 1], BULK).is_empty(), "no stream can be reserved");
    }

    #[test]
    fn with_parallelism_one_the_second_stream_is_used() {
        let mut views: Vec<StreamView> = (0..5).map(|at| view(at, 0, 1)).collect();
        reserve(&mut views, &SessionStats { sent: BULK, held: MUCH, ..SessionStats::default() }, MANY);
        assert_eq!(
            views.iter().map(|view| view.reserved).collect::<Vec<_>>(),
            [true, false, true, true, true]
        );
        reserve(&mut views, &SessionStats { sent: MUCH, held: MUCH, ..SessionStats::default() }, MANY);
        assert_eq!(
            views.iter().map(|view| view.reserved).collect::<Vec<_>>(),
            [true, false, true, true, true]
        );
        reserve(&mut views, &SessionStats { sent: MUCH, held: MUCH - 1, ..SessionStats::default() }, MANY);
        assert!(views.iter().all(|view| !view.reserved), "a session with little backlog leaves no stream");
    }

    #[test]
    fn another_stream_is_reserved_when_the_first_stalls() {
        assert_eq!(reserved(&[0; 4], &[0], &[0, 1, 2, 3], BULK), [1]);
    }

    #[test]
    fn a_small_session_uses_all_but_the_first_and_an_interactive_one_uses_all() {
        assert_eq!(reserved(&[0; 8], &[], &[], BULK - 1), [0]);
        assert!(reserved(&[0; 8], &[], &[], MUCH - 1).is_empty());
    }

    /// Number of streams used on each of two labels by a session with a backlog of `held` bytes.
    fn in_use(streams: usize, held: u64, most: Option<usize>) -> [usize; 2] {
        let mut views: Vec<StreamView> =
            (0..2 * streams).map(|at| view(at, (at % 2) as u8, usize::MAX)).collect();
        let session = SessionStats { sent: BULK, held, ..SessionStats::default() };
        reserve(&mut views, &session, StreamLimit(most));
        [0, 1].map(|label| views.iter().filter(|view| view.label == label && !view.reserved).count())
    }

    #[test]
    fn a_session_uses_the_number_of_streams_per_path_of_its_service() {
        for (most, used) in [(1, 1), (3, 3), (16, 16), (64, 16)] {
            assert_eq!(
                in_use(17, MUCH, Some(most)),
                [used; 2],
                "one stream is reserved for interactive sessions"
            );
        }
        assert_eq!(in_use(17, 0, Some(1)), [1; 2]);
        assert_eq!(in_use(1, MUCH, Some(0)), [1; 2], "at least one stream");
    }

    #[test]
    fn a_session_without_a_limit_does_not_use_streams_opened_for_another_service() {
        assert_eq!(in_use(17, MUCH, None), [DEFAULT_STREAMS; 2]);
        assert_eq!(in_use(17, MUCH, None), in_use(5, MUCH, None));
        assert_eq!(in_use(17, 0, None), in_use(5, 0, None));
    }

    #[test]
    fn a_bulk_session_may_become_interactive() {
        let mut views: Vec<StreamView> = (0..4).map(|at| view(at, 0, 2)).collect();
        let session = SessionStats { sent: 100 * BULK, held: 1000, ..SessionStats::default() };
        reserve(&mut views, &session, MANY);
        assert_eq!(views.iter().map(|view| view.reserved).collect::<Vec<_>>(), [false, false, true, true]);
    }

    #[test]
    fn another_stream_replaces_a_stalled_stream() {
        assert_eq!(reserved(&[0; 5], &[0], &[], BULK), [1, 4]);
        assert!(reserved(&[0; 3], &[0, 1, 2], &[], BULK).is_empty(), "no stream works");
    }
}
