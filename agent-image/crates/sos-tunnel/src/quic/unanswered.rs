//! Whether something that was sent over QUIC waits to be acknowledged.

/// What is known of it. quinn tells congestion control of packets that only acknowledge as of all others, and nobody acknowledges those: by
/// what it calls in flight, a connection that was the last one to speak has been waiting ever since.
#[derive(Debug, Default)]
pub(super) struct Unanswered {
    acknowledged: u64,
    asking: u64,
    waits: bool,
}

impl Unanswered {
    /// Takes how many bytes have been acknowledged so far, and how many frames were sent that are to be. Where both have changed nobody knows which
    /// came last; quinn asks again for what is not answered in a few round trips, so the next look does.
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
    fn what_was_asked_waits_until_it_is_answered() {
        let mut unanswered = Unanswered::default();
        assert!(!unanswered.look(0, 0));
        assert!(unanswered.look(0, 1));
        assert!(unanswered.look(0, 1), "still");
        assert!(!unanswered.look(100, 1));
    }

    #[test]
    fn a_question_whose_answer_was_acknowledged_at_once_does_not_wait() {
        let mut unanswered = Unanswered::default();
        assert!(!unanswered.look(100, 1));
        assert!(!unanswered.look(100, 1), "whatever is in flight");
    }

    #[test]
    fn what_is_asked_again_waits() {
        let mut unanswered = Unanswered::default();
        unanswered.look(100, 3);
        assert!(unanswered.look(100, 4));
    }
}
