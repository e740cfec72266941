//! Which stream takes the next frame.

/// Names a stream at one agent. Never reused in one boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u64);

/// A stream that has room for a frame now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamView {
    /// The stream.
    pub id: StreamId,
    /// Bytes queued on it and not yet written to its socket.
    pub queued: usize,
}

/// Chooses among streams that have room. Called once per frame, so the choice is made as late as it can be.
pub trait Scheduler: Send {
    /// The stream for a frame of `len` bytes, or `None` to wait although there is room. Whether to wait may depend on what is on
    /// the way elsewhere, so the caller asks again whenever a stream gets room.
    fn choose(&mut self, streams: &[StreamView], len: usize) -> Option<StreamId>;
}

/// Queues are compared in steps of this many bytes, so that acknowledgements and the like do not make a session hop between streams.
const STEP: usize = 16 << 10;

/// The stream with the least queued; among equals the one used last, so that a short flow stays on one stream and in order.
#[derive(Debug, Clone, Copy, Default)]
pub struct LeastQueued {
    last: Option<StreamId>,
    /// Where a session that has used none begins: spreads sessions over streams.
    start: u64,
}

impl LeastQueued {
    /// `seed` spreads sessions over streams: the session's number does.
    pub fn new(seed: u64) -> Self {
        Self { last: None, start: seed }
    }
}

impl Scheduler for LeastQueued {
    fn choose(&mut self, streams: &[StreamView], _len: usize) -> Option<StreamId> {
        let least = streams.iter().map(|s| s.queued / STEP).min()?;
        let equals = || streams.iter().filter(|s| s.queued / STEP == least).map(|s| s.id);
        let again = self.last.filter(|last| equals().any(|id| id == *last));
        let chosen = again.or_else(|| {
            let count = equals().count();
            let skip = usize::try_from(self.start % count as u64).unwrap_or(0);
            equals().nth(skip)
        });
        self.last = chosen;
        chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn views(queued: &[usize]) -> Vec<StreamView> {
        (0u64..).zip(queued).map(|(id, &queued)| StreamView { id: StreamId(id), queued }).collect()
    }

    #[test]
    fn least_queued_then_the_last_one() {
        let (mut scheduler, few, block) = (LeastQueued::new(7), 96, 64 << 10);
        assert_eq!(scheduler.choose(&views(&[0, 0, 0]), 1), Some(StreamId(1)));
        assert_eq!(scheduler.choose(&views(&[0, few, 0]), 1), Some(StreamId(1)), "stays");
        assert_eq!(scheduler.choose(&views(&[block, 0, block]), 1), Some(StreamId(1)));
        assert_eq!(scheduler.choose(&views(&[few, block, 0]), 1), Some(StreamId(2)), "7 % 2 skips one");
        assert_eq!(scheduler.choose(&[], 1), None);
    }
}
