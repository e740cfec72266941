//! Polls a yes-or-no question in the background until the answer is yes.

use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// Interval of polls.
const POLL: Duration = Duration::from_millis(300);

/// The latest answer, shared by poller and waiter.
#[derive(Debug, Default)]
pub struct Watch {
    known: Mutex<Known>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Known {
    said: Option<bool>,
    over: bool,
}

impl Watch {
    /// Poll until the answer is yes or [`stop`](Self::stop) is called. The latest answer is kept; a poll without an answer
    /// changes nothing.
    pub fn look(&self, ask: impl Fn() -> Option<bool>) {
        loop {
            let said = ask();
            let mut known = self.lock();
            known.said = said.or(known.said);
            self.changed.notify_all();
            let (known, _) = self
                .changed
                .wait_timeout_while(known, POLL, |known| !known.over && known.said != Some(true))
                .expect(UNHARMED);
            if known.over || known.said == Some(true) {
                return;
            }
        }
    }

    /// Wait until the answer is yes, with a timeout.
    pub fn wait(&self, time: Duration) {
        let _known = self
            .changed
            .wait_timeout_while(self.lock(), time, |known| known.said != Some(true))
            .expect(UNHARMED);
    }

    /// Stop polling.
    pub fn stop(&self) {
        self.lock().over = true;
        self.changed.notify_all();
    }

    /// The latest answer, if any.
    #[must_use]
    pub fn said(&self) -> Option<bool> {
        self.lock().said
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().expect(UNHARMED)
    }
}

const UNHARMED: &str = "no thread panics while holding it";

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::thread;
    use std::time::Instant;

    use super::*;

    #[test]
    fn yes_ends_polling_and_a_missing_answer_changes_nothing() {
        let (watch, asked) = (Watch::default(), Cell::new(0));
        let answers = [Some(false), None, Some(true)];
        watch.look(|| {
            asked.set(asked.get() + 1);
            answers[asked.get() - 1]
        });
        assert_eq!((watch.said(), asked.get()), (Some(true), 3));
    }

    #[test]
    fn an_answer_wakes_the_waiter_and_stop_ends_polling() {
        let watch = Watch::default();
        let began = Instant::now();
        thread::scope(|scope| {
            scope.spawn(|| watch.look(|| Some(began.elapsed() > POLL / 2)));
            watch.wait(Duration::from_secs(60));
        });
        assert_eq!(watch.said(), Some(true));
        let silent = Watch::default();
        thread::scope(|scope| {
            scope.spawn(|| silent.look(|| None));
            silent.wait(POLL / 10);
            silent.stop();
        });
        assert_eq!(silent.said(), None);
        assert!(began.elapsed() < Duration::from_secs(50));
    }
}
