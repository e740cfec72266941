//! Path statistics of a stream, refreshed from the kernel or from QUIC at intervals.

use std::time::{Duration, Instant};

use crate::transport::handle::TransportHandle;
use crate::transport::path_info::PathInfo;

/// Maximum age of fresh statistics: a refresh costs a system call, and little changes in less time.
const FRESH: Duration = Duration::from_millis(5);
/// Maximum age of the cached congestion control.
const FRESH_CONTROL: Duration = Duration::from_millis(100);
/// A stream has stalled if nothing has been acknowledged for two round trips plus this: longer than the kernel's first attempts at loss
/// recovery, and much shorter than the silence that ends a stream.
const STALL: Duration = Duration::from_millis(300);

/// The path of one stream.
#[derive(Debug)]
pub(crate) struct Path {
    info: PathInfo,
    refreshed: Option<Instant>,
    /// Result of [`Self::uses_bbr`].
    bbr: bool,
    control_refreshed: Option<Instant>,
    /// Last time at which bytes were acknowledged or none were in flight.
    progress_at: Instant,
    /// Last time at which bytes were acknowledged.
    acked_at: Instant,
    /// Bytes written to the socket since the last refresh. A write during the refresh may be counted both in the statistics and here.
    written: u64,
    /// Segments sent and retransmitted that have not been reported yet.
    segments: (u32, u32),
}

impl Path {
    /// A path with a known round trip.
    pub(crate) fn new(rtt: Duration, now: Instant) -> Self {
        Self {
            info: PathInfo { rtt, slow_start: true, ..PathInfo::default() },
            refreshed: None,
            bbr: false,
            control_refreshed: None,
            progress_at: now,
            acked_at: now,
            written: 0,
            segments: (0, 0),
        }
    }

    /// Refreshes stale statistics. Values that the kernel does not report keep their last value.
    pub(crate) fn refresh(&mut self, handle: &TransportHandle, now: Instant) {
        if self.refreshed.is_none_or(|refreshed| now.saturating_duration_since(refreshed) >= FRESH) {
            self.refreshed = Some(now);
            self.written = 0;
            let _ = handle.path_info().map(|info| self.note(info, now));
        }
        if self
            .control_refreshed
            .is_none_or(|refreshed| now.saturating_duration_since(refreshed) >= FRESH_CONTROL)
        {
            self.control_refreshed = Some(now);
            self.bbr = handle.uses_bbr();
        }
    }

    /// Notes bytes written to the socket.
    pub(crate) fn handle_written(&mut self, bytes: usize) {
        // Before the first refresh the socket would seem to hold all bytes ever written.
        if self.refreshed.is_some() {
            self.written += bytes as u64;
        }
    }

    /// Unsent bytes in the socket, including bytes written since the last refresh.
    pub(crate) fn unsent(&self) -> u64 {
        u64::from(self.info.unsent) + self.written
    }

    /// Maximum number of bytes written to the socket and not known to be acknowledged.
    pub(crate) fn unacknowledged(&self) -> u64 {
        self.info.in_flight + self.unsent()
    }

    fn note(&mut self, info: PathInfo, now: Instant) {
        if info.acknowledged != self.info.acknowledged {
            self.acked_at = now;
        }
        // After a pause, the time starts at the first refresh that sees a segment in flight.
        if info.acknowledged != self.info.acknowledged || info.outstanding == 0 || self.info.outstanding == 0
        {
            self.progress_at = now;
        }
        self.segments.0 += info.segments.saturating_sub(self.info.segments);
        self.segments.1 += info.retransmitted.saturating_sub(self.info.retransmitted);
        self.info = info;
    }

    /// Segments sent, and retransmitted, since the last call.
    pub(crate) fn take_segments(&mut self) -> (u32, u32) {
        std::mem::take(&mut self.segments)
    }

    /// The last statistics.
    pub(crate) fn info(&self) -> &PathInfo {
        &self.info
    }

    /// True if the congestion control is bbr: several bbr streams take more than their share of the path.
    pub(crate) fn uses_bbr(&self) -> bool {
        self.bbr
    }

    /// True if bytes are in flight and none has been acknowledged for too long.
    pub(crate) fn is_stalled(&self, now: Instant) -> bool {
        self.info.outstanding > 0 && now.saturating_duration_since(self.progress_at) >= self.patience()
    }

    /// True if no recent acknowledgement proves that the stream works; it may have stalled like another stream over the same path.
    pub(crate) fn is_suspect(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.acked_at) >= self.patience()
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
    fn written_bytes_count_as_unsent_until_the_next_refresh() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let handle = TransportHandle::tcp(TcpStream::connect(listener.local_addr().unwrap()).unwrap().into());
        let (mut path, start) = (Path::new(MS, Instant::now()), Instant::now());
        path.handle_written(7);
        assert_eq!((path.unsent(), path.unacknowledged()), (0, 0), "never refreshed");
        path.refresh(&handle, start);
        path.handle_written(1000);
        path.refresh(&handle, start + FRESH - MS);
        path.handle_written(24);
        assert_eq!((path.unsent(), path.unacknowledged()), (1024, 1024));
        path.refresh(&handle, start + FRESH);
        assert_eq!(path.unsent(), 0);
    }

    #[test]
    fn the_congestion_control_is_refreshed() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let handle = TransportHandle::tcp(TcpStream::connect(listener.local_addr().unwrap()).unwrap().into());
        let (mut path, start) = (Path::new(MS, Instant::now()), Instant::now());
        path.bbr = true;
        handle.set_congestion("reno").unwrap();
        path.refresh(&handle, start);
        assert!(!path.uses_bbr());
        path.bbr = true;
        path.refresh(&handle, start + FRESH_CONTROL - MS);
        assert!(path.uses_bbr(), "not refreshed yet");
        path.refresh(&handle, start + FRESH_CONTROL);
        assert!(!path.uses_bbr());
    }

    #[test]
    fn segments_are_reported_once() {
        let start = Instant::now();
        let info = |segments, retransmitted| PathInfo { segments, retransmitted, ..PathInfo::default() };
        let mut path = Path::new(MS, start);
        path.note(info(10, 1), start);
        path.note(info(15, 1), start + MS);
        assert_eq!((path.take_segments(), path.take_segments()), ((15, 1), (0, 0)));
        path.note(info(16, 2), start + 2 * MS);
        assert_eq!(path.take_segments(), (1, 1));
    }

    #[test]
    fn a_path_stalls_when_bytes_in_flight_are_not_acknowledged() {
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
        assert!(path.is_stalled(at(10_400)), "a refresh without progress changes nothing");
        path.note(info(1, 3), at(10_500));
        assert!(!path.is_stalled(at(10_899)) && path.is_stalled(at(10_900)));
        assert!(
            !path.is_suspect(at(10_899)) && path.is_suspect(at(10_900)),
            "with or without bytes in flight"
        );
    }
}
