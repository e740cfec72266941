//! Detects unacknowledged data over QUIC.

/// Acknowledgement state of sent data. The bytes in flight do not suffice to detect unacknowledged data: quinn's congestion control also
/// counts packets that contain only acknowledgements, although such packets are never acknowledged. An end whose last packet is an
/// acknowledgement would seem to wait forever.
#[derive(Debug, Default)]
pub(super) struct Unanswered {
    acknowledged: u64,
    asking: u64,
    waits: bool,
}

impl Unanswered {
    /// Takes the totals of bytes acknowledged and of ack-eliciting frames sent; returns true if a frame is unacknowledged. If both totals
    /// have changed since the last call, the order of the changes is unknown and the result is false. quinn elicits another acknowledgement
    /// within a few round trips, so the next call decides.
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
