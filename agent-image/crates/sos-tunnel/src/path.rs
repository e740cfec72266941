//! What is known of a stream's path, asked of the kernel, or of QUIC, now and then.

use std::time::{Duration, Instant};

use crate::line::Line;
use crate::sockopt::PathInfo;

/// How old an answer may be: asking costs a system call, and little changes in less.
const FRESH: Duration = Duration::from_millis(5);
/// And whether the congestion control is still the same.
const FRESH_CONTROL: Duration = Duration::from_millis(100);
/// A stream has stalled when nothing has been acknowledged for two round trips and this: longer than the kernel's first attempts to repair
/// a loss take, much shorter than the silence that ends a stream.
const STALL: Duration = Duration::from_millis(300);

/// The path of one stream.
#[derive(Debug)]
pub(crate) struct Path {
    info: PathInfo,
    asked: Option<Instant>,
    /// What [`Self::is_modelled`] says.
    modelled: bool,
    asked_control: Option<Instant>,
    /// When something was acknowledged last, or nothing was under way.
    moved: Instant,
    /// When something was acknowledged last.
    proved: Instant,
    /// Bytes given to the socket since it was asked. One write may be both in the answer and here.
    written: u64,
    /// Segments sent, and sent again, that nobody has been told of yet.
    segments: (u32, u32),
}

impl Path {
    /// A path of which its round trip is known.
    pub(crate) fn new(rtt: Duration, now: Instant) -> Self {
        Self {
            info: PathInfo { rtt, grows: true, ..PathInfo::default() },
            asked: None,
            modelled: false,
            asked_control: None,
            moved: now,
            proved: now,
            written: 0,
            segments: (0, 0),
        }
    }

    /// Asks again if it is time to. What the kernel does not tell stays as it was.
    pub(crate) fn ask(&mut self, line: &Line, now: Instant) {
        if self.asked.is_none_or(|asked| now.saturating_duration_since(asked) >= FRESH) {
            self.asked = Some(now);
            self.written = 0;
            let _ = line.path_info().map(|info| self.note(info, now));
        }
        if self.asked_control.is_none_or(|asked| now.saturating_duration_since(asked) >= FRESH_CONTROL) {
            self.asked_control = Some(now);
            self.modelled = line.is_modelled();
        }
    }

    /// Bytes were given to the socket.
    pub(crate) fn handle_written(&mut self, bytes: usize) {
        // A socket that cannot be asked would seem to keep all it was ever given.
        if self.asked.is_some() {
            self.written += bytes as u64;
        }
    }

    /// Bytes in the socket that have not been sent yet, or were given to it so lately that this is not known.
    pub(crate) fn unsent(&self) -> u64 {
        u64::from(self.info.unsent) + self.written
    }

    /// Bytes given to the socket that are not known to be acknowledged, at most.
    pub(crate) fn under_way(&self) -> u64 {
        self.info.in_flight + self.unsent()
    }

    fn note(&mut self, info: PathInfo, now: Instant) {
        if info.acknowledged != self.info.acknowledged {
            self.proved = now;
        }
        // Whatever was sent first after a pause counts from when it is seen.
        if info.acknowledged != self.info.acknowledged || info.outstanding == 0 || self.info.outstanding == 0
        {
            self.moved = now;
        }
        self.segments.0 += info.segments.saturating_sub(self.info.segments);
        self.segments.1 += info.resent.saturating_sub(self.info.resent);
        self.info = info;
    }

    /// Segments sent, and sent again, since this was last called.
    pub(crate) fn take_segments(&mut self) -> (u32, u32) {
        std::mem::take(&mut self.segments)
    }

    /// The last answer.
    pub(crate) fn info(&self) -> &PathInfo {
        &self.info
    }

    /// Its congestion control models the rate of the path, and takes more than its share of it among several of its kind.
    pub(crate) fn is_modelled(&self) -> bool {
        self.modelled
    }

    /// Nothing has been acknowledged for far too long.
    pub(crate) fn is_stalled(&self, now: Instant) -> bool {
        self.info.outstanding > 0 && now.saturating_duration_since(self.moved) >= self.patience()
    }

    /// Nothing shows that it works: if another stream over it has stalled, this one may as well.
    pub(crate) fn is_unproved(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.proved) >= self.patience()
    }

    fn patience(&self) -> Duration {
        self.info.rtt * 2 + STALL
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn what_the_socket_was_given_counts_as_unsent_until_it_is_asked() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let line = Line::tcp(TcpStream::connect(listener.local_addr().unwrap()).unwrap().into());
        let (mut path, start) = (Path::new(MS, Instant::now()), Instant::now());
        path.handle_written(7);
        assert_eq!((path.unsent(), path.under_way()), (0, 0), "never asked");
        path.ask(&line, start);
        path.handle_written(1000);
        path.ask(&line, start + FRESH - MS);
        path.handle_written(24);
        assert_eq!((path.unsent(), path.under_way()), (1024, 1024));
        path.ask(&line, start + FRESH);
        assert_eq!(path.unsent(), 0);
    }

    #[test]
    fn a_socket_is_asked_for_its_congestion_control_again() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let line = Line::tcp(TcpStream::connect(listener.local_addr().unwrap()).unwrap().into());
        let (mut path, start) = (Path::new(MS, Instant::now()), Instant::now());
        path.modelled = true;
        line.set_congestion("reno").unwrap();
        path.ask(&line, start);
        assert!(!path.is_modelled());
        path.modelled = true;
        path.ask(&line, start + FRESH_CONTROL - MS);
        assert!(path.is_modelled(), "not yet");
        path.ask(&line, start + FRESH_CONTROL);
        assert!(!path.is_modelled());
    }

    #[test]
    fn segments_are_told_once() {
        let start = Instant::now();
        let info = |segments, resent| PathInfo { segments, resent, ..PathInfo::default() };
        let mut path = Path::new(MS, start);
        path.note(info(10, 1), start);
        path.note(info(15, 1), start + MS);
        assert_eq!((path.take_segments(), path.take_segments()), ((15, 1), (0, 0)));
        path.note(info(16, 2), start + 2 * MS);
        assert_eq!(path.take_segments(), (1, 1));
    }

    #[test]
    fn a_path_stalls_when_what_is_under_way_is_not_acknowledged() {
        let start = Instant::now();
        let (rtt, at) = (50 * MS, |ms: u32| start + MS * ms);
        let info =
            |acknowledged, outstanding| PathInfo { rtt, acknowledged, outstanding, ..PathInfo::default() };
        let mut path = Path::new(rtt, start);
        path.note(info(0, 0), at(0));
        assert!(!path.is_stalled(at(10_000)), "idle");
        path.note(info(0, 3), at(10_000));
        assert!(!path.is_stalled(at(10_399)) && path.is_stalled(at(10_400)));
        path.note(info(0, 3), at(10_300));
        assert!(path.is_stalled(at(10_400)), "looking at it changes nothing");
        path.note(info(1, 3), at(10_500));
        assert!(!path.is_stalled(at(10_899)) && path.is_stalled(at(10_900)));
        assert!(
            !path.is_unproved(at(10_899)) && path.is_unproved(at(10_900)),
            "whether or not something is under way"
        );
    }
}
