//! Detects unacknowledged data over QUIC.

/// Acknowledgement state. quinn also reports packets that contain only acknowledgements to congestion control, although such packets are
/// never acknowledged. By its bytes in flight alone, the end that sent the last packet would seem to wait forever.
#[derive(Debug, Default)]
pub(super) struct Unanswered {
    acknowledged: u64,
    asking: u64,
    waits: bool,
}

impl Unanswered {
    /// Takes the totals of bytes acknowledged and of ack-eliciting frames sent. If both have changed, their order is unknown; quinn elicits
    /// another acknowledgement within a few round trips, so the next call decides.
    pub(super) fn look(&mut self, acknowledged: u64, asking: u64) -> bool {
        if acknowledged != self.acknowledged {
            self.waits = false;
        } else if asking != self.asking {
            self.waits = true;
        }
        (self.acknowledged, self.asking) = (acknowledged, asking);
        self.waits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_unanswered_until_acknowledged() {
        let mut unanswered = Unanswered::default();
        assert!(!unanswered.look(0, 0));
        assert!(unanswered.look(0, 1));
        assert!(unanswered.look(0, 1), "still unanswered");
        assert!(!unanswered.look(100, 1));
    }

    #[test]
    fn a_frame_acknowledged_immediately_is_not_unanswered() {
        let mut unanswered = Unanswered::default();
        assert!(!unanswered.look(100, 1));
        assert!(!unanswered.look(100, 1), "for any number of bytes in flight");
    }

    #[test]
    fn a_repeated_frame_is_unanswered() {
        let mut unanswered = Unanswered::default();
        unanswered.look(100, 3);
        assert!(unanswered.look(100, 4));
    }
}
