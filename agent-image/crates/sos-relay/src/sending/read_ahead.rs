//! Read-ahead limit: bytes that an agent reads from its host beyond the bytes that the far host has acknowledged (frame.md clause 8).
//!
//! With plain TCP a sending host is ahead of the other host by at most its own send buffer and the other host's receive buffer. Programs rely on
//! this bound: progress bars, read timeouts after the last byte of an upload, applications paced by a full socket. So an agent reads ahead of
//! the far host's acknowledgement by at most a base plus twice the product of delivery rate and delay. The factor is two because slow start
//! doubles the bytes in flight in each round trip, and the measured rate is one round trip old.
//!
//! The rate counts bytes that the far host has acknowledged. It decreases only if this limit stopped the sender: a host with little to send
//! reveals nothing about its path. A session starts with the recent rate of other sessions to the same peer. Until the session has measured
//! its own rate, the limit also covers the bytes that the transports of its streams keep in flight, so that warm streams are used from the
//! first round trip on.

use std::time::{Duration, Instant};

/// Part of the limit that does not depend on the delivery rate. The kernels' buffers of the host leg come in addition: Linux enlarges the
/// host's send buffer to about six times the offered window ([`ReadAhead::window`]) and never shrinks it.
const BASE: u64 = 256 << 10;
/// Lower bound of the limit, for sessions whose rate is not known yet and for slow paths.
const MIN: u64 = 512 << 10;
/// The window offered to the host is the part of the limit above [`BASE`] divided by `WINDOW_SHARE`, within these bounds. The minimum lets a
/// host on the same LAN send without a pause between two polls of the agent. The maximum lets a host send at 20 Gbit/s between two ticks.
const WINDOW_SHARE: u64 = 8;
const MIN_WINDOW: u64 = 32 << 10;
const MAX_WINDOW: u64 = 8 << 20;
/// Number of bandwidth-delay products ahead.
const PRODUCTS: f64 = 2.0;
/// Added to the round trip in the product of rate and delay, because acknowledgements and tasks are delayed at both ends.
const SLACK: Duration = Duration::from_millis(50);
/// Added to the round trip to give the span over which a rate is measured: in a shorter span, a burst after a gap would exceed the path's
/// rate.
const SPAN: Duration = Duration::from_millis(50);
/// Minimum number of bytes of a span, unless [`MAX_SPAN`] has passed: on a slow path, acknowledgements that a busy machine delays arrive in
/// bursts, which would count as a multiple of the path's rate in a shorter span. Faster paths have more bytes in the span anyway.
const SPAN_BYTES: u64 = 512 << 10;
const MAX_SPAN: Duration = Duration::from_secs(1);
/// Number of recent spans whose fastest gives the rate.
const SPANS: usize = 3;
/// Lower bound of round trips, in seconds.
const MIN_RTT: f64 = 100e-6;
/// Minimum number of bytes worth a read, because each read has a fixed cost.
const LEAST: u64 = 16 << 10;

#[derive(Debug)]
pub(crate) struct ReadAhead {
    /// Bytes acknowledged by the far host.
    taken: u64,
    /// Maximum bytes ahead at any rate.
    max: u64,
    rtt: Duration,
    /// Known rate in bytes per second.
    rate: f64,
    spans: [f64; SPANS],
    /// Bytes that the streams keep in flight per round trip without a queue.
    path_window: f64,
    since: Option<(Instant, u64)>,
    /// The limit has stopped the host in this span.
    limited: bool,
}

impl ReadAhead {
    /// Creates a limit of at most `max` bytes ahead.
    pub(crate) fn new(max: u64) -> Self {
        let rtt = Duration::ZERO;
        Self {
            taken: 0,
            max,
            rtt,
            rate: 0.0,
            spans: [0.0; SPANS],
            path_window: 0.0,
            since: None,
            limited: false,
        }
    }

    /// Sets the rate of other sessions, in bytes per second.
    pub(crate) fn set_rate(&mut self, rate: f64) {
        self.rate = rate;
    }

    pub(crate) fn set_rtt(&mut self, rtt: Duration) {
        self.rtt = rtt;
    }

    /// Sets windows and round trips of the streams.
    pub(crate) fn set_streams(&mut self, streams: impl Iterator<Item = (u64, Duration)>) {
        if self.has_measured() {
            return;
        }
        let queueless = |rtt: Duration| (self.rtt.as_secs_f64() / rtt.as_secs_f64().max(MIN_RTT)).min(1.0);
        self.path_window = streams.map(|(window, rtt)| window as f64 * queueless(rtt)).sum();
    }

    fn has_measured(&self) -> bool {
        self.spans.iter().all(|span| *span > 0.0)
    }

    /// Rate of the far host in bytes per second, as far as known.
    pub(crate) fn rate(&self) -> f64 {
        self.rate
    }

    /// Maximum bytes ahead of the far host.
    pub(crate) fn limit(&self) -> u64 {
        let products = PRODUCTS * self.rate * (self.rtt + SLACK).as_secs_f64();
        let window = if self.has_measured() { 0.0 } else { self.path_window };
        (BASE + products.max(window) as u64).max(MIN).min(self.max)
    }

    /// Receive window to offer to the host, because bytes in the kernel's receive buffer also count as ahead of the far host.
    pub(crate) fn window(&self) -> u64 {
        (self.limit().saturating_sub(BASE) / WINDOW_SHARE).clamp(MIN_WINDOW, MAX_WINDOW)
    }

    /// Number of further bytes that may be read from the host, after `read` bytes have been read.
    pub(crate) fn room(&mut self, read: u64) -> usize {
        let room = self.limit().saturating_sub(read - self.taken.min(read));
        if room < LEAST {
            self.limited = true;
            return 0;
        }
        usize::try_from(room).unwrap_or(usize::MAX)
    }

    /// Notes that the far host has acknowledged everything before `taken`.
    pub(crate) fn handle_taken(&mut self, taken: u64, now: Instant) {
        self.taken = self.taken.max(taken);
        let Some((since, before)) = self.since else {
            self.since = Some((now, self.taken));
            return;
        };
        let (span, bytes) = (now.saturating_duration_since(since), self.taken - before);
        if span >= self.rtt + SPAN && (bytes >= SPAN_BYTES || span >= MAX_SPAN) {
            self.note_rate(bytes as f64 / span.as_secs_f64());
            self.since = Some((now, self.taken));
        }
    }

    fn note_rate(&mut self, rate: f64) {
        if std::mem::take(&mut self.limited) {
            self.spans.rotate_left(1);
            self.spans[SPANS - 1] = rate;
            let fastest = self.spans.iter().copied().fold(0.0, f64::max);
            self.rate = if self.has_measured() { fastest } else { self.rate.max(rate) };
        } else {
            self.rate = self.rate.max(rate);
        }
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const MAX: u64 = 32 << 20;

    fn new(max: u64, rate: f64, rtt: Duration) -> ReadAhead {
        let mut ahead = ReadAhead::new(max);
        ahead.set_rate(rate);
        ahead.set_rtt(rtt);
        ahead
    }

    /// Runs a host with a backlog over a path of `rate` bytes per second and `rtt`, for `time`; returns the maximum bytes ahead, and the bytes
    /// delivered.
    fn upload(ahead: &mut ReadAhead, rate: f64, rtt: Duration, time: Duration) -> (u64, u64) {
        upload_with_stalls(ahead, rate, rtt, time, 0)
    }

    /// As `upload`; no acknowledgement arrives in the first `stall` milliseconds of each second.
    fn upload_with_stalls(
        ahead: &mut ReadAhead,
        rate: f64,
        rtt: Duration,
        time: Duration,
        stall: u32,
    ) -> (u64, u64) {
        let (start, mut read, mut most) = (Instant::now(), 0, 0);
        let mut under_way = std::collections::VecDeque::new();
        let mut arrived = 0.0;
        for ms in 0..u32::try_from(time.as_millis()).unwrap() {
            let now = start + MS * ms;
            read += ahead.room(read) as u64;
            most = most.max(read - ahead.taken);
            arrived = f64::min(arrived + rate / 1e3, read as f64);
            under_way.push_back((now + rtt, arrived as u64));
            while let Some((_, taken)) = under_way.pop_front_if(|(at, _)| *at <= now && ms % 1000 >= stall) {
                ahead.handle_taken(taken, now);
            }
        }
        (most, ahead.taken)
    }

    #[test]
    fn a_slow_path_allows_two_bandwidth_delay_products_and_a_mebibyte() {
        for (mbit, rtt) in [(2.0, 100 * MS), (5.0, 100 * MS), (20.0, 20 * MS)] {
            let rate = mbit * 1e6 / 8.0;
            let product = (rate * rtt.as_secs_f64()) as u64;
            let mut ahead = new(MAX, 0.0, rtt);
            let (most, _) = upload(&mut ahead, rate, rtt, 10 * 1000 * MS);
            assert!(most <= 2 * product + (1 << 20), "{most} bytes ahead at {mbit} Mbit/s");
        }
    }

    #[test]
    fn bursts_of_acknowledgements_do_not_double_the_rate_of_a_slow_path() {
        let (rate, rtt) = (5e6 / 8.0, 100 * MS);
        for stall in [0, 100, 200, 400] {
            let mut ahead = new(MAX, 0.0, rtt);
            upload_with_stalls(&mut ahead, rate, rtt, 10_000 * MS, stall);
            assert!(ahead.rate() < 2.0 * rate, "{} of the rate, stalls of {stall} ms", ahead.rate() / rate);
            // The host's own send buffer grows to six times the window that it has seen.
            assert!(ahead.limit() + 6 * ahead.window() < 1 << 20);
        }
    }

    #[test]
    fn a_fast_path_is_filled_and_the_next_session_starts_at_its_rate() {
        let (rate, rtt) = (125e6, 164 * MS);
        let mut ahead = new(MAX, 0.0, rtt);
        upload(&mut ahead, rate, rtt, 4000 * MS);
        assert!(ahead.rate() > 0.9 * rate, "{}", ahead.rate());
        let mut next = new(MAX, ahead.rate(), rtt);
        let (_, taken) = upload(&mut next, rate, rtt, 1164 * MS);
        assert!(taken as f64 > 0.95 * rate, "{taken} bytes in the first second");
    }

    #[test]
    fn warm_streams_count_immediately_without_their_queue() {
        let mut ahead = new(MAX, 0.0, 100 * MS);
        ahead.set_streams([(4 << 20, 100 * MS), (4 << 20, 200 * MS)].into_iter());
        assert_eq!(ahead.limit(), BASE + (6 << 20));
        upload(&mut ahead, 1e6, 100 * MS, 20_000 * MS);
        assert!(ahead.limit() < BASE + (512 << 10), "{}", ahead.limit());
    }

    #[test]
    fn the_offered_window_grows_with_the_limit() {
        assert_eq!(new(MAX, 0.0, 100 * MS).window(), MIN_WINDOW);
        assert_eq!(new(MAX, 100e6, 50 * MS).window(), 20_000_000 / 8);
        assert_eq!(new(1 << 30, 1e9, 164 * MS).window(), MAX_WINDOW);
    }

    #[test]
    fn a_stopped_host_stops_read_ahead_and_a_slow_host_lowers_the_limit() {
        let mut ahead = new(MAX, 100e6, 20 * MS);
        let before = ahead.limit();
        let (most, _) = upload(&mut ahead, 0.0, 20 * MS, 1000 * MS);
        assert_eq!(most, before);
        let mut ahead = new(MAX, 100e6, 20 * MS);
        upload(&mut ahead, 1e6, 20 * MS, 20_000 * MS);
        assert_eq!(ahead.limit(), MIN);
    }

    #[test]
    fn a_host_without_a_backlog_does_not_lower_the_rate() {
        let (mut ahead, mut now) = (new(MAX, 10e6, 20 * MS), Instant::now());
        for taken in 1..1000 {
            assert!(ahead.room(taken * 100) > 0);
            ahead.handle_taken(taken * 100, now);
            now += 10 * MS;
        }
        assert_eq!(ahead.rate(), 10e6);
    }

    #[test]
    fn a_requested_queue_size_bounds_read_ahead() {
        let mut ahead = new(1 << 20, 1e9, 100 * MS);
        assert_eq!((ahead.limit(), ahead.room(0)), (1 << 20, 1 << 20));
        assert_eq!(ahead.room((1 << 20) - 1), 0, "too few bytes for a read");
    }
}
