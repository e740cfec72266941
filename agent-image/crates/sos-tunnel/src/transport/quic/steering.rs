//! Congestion control of a QUIC stream: quinn's controllers, with statistics and settings like those of the kernel's socket options.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use quinn::congestion::{
    BbrConfig, Controller, ControllerFactory, ControllerMetrics, CubicConfig, NewRenoConfig,
};
use quinn_proto::RttEstimator;

/// No limit.
const FREE: u64 = u64::MAX;
/// Minimum number of segments in flight that a rate limit allows, so that data keeps moving.
const LEAST_SEGMENTS: u64 = 4;

/// Congestion controls, by the kernel's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Control {
    Cubic,
    Bbr,
    Reno,
}

impl Control {
    /// Unknown names mean cubic, as with a kernel that lacks the named congestion control.
    fn named(name: &str) -> Self {
        match name {
            "bbr" => Self::Bbr,
            "reno" => Self::Reno,
            _ => Self::Cubic,
        }
    }

    fn of(number: u8) -> Self {
        [Self::Cubic, Self::Bbr, Self::Reno][usize::from(number) % 3]
    }

    /// A controller with an initial window of `window` bytes, or with its own default.
    fn build(self, window: Option<u64>, now: Instant, mtu: u16) -> Box<dyn Controller> {
        macro_rules! build {
            ($config:ty) => {{
                let mut config = <$config>::default();
                if let Some(window) = window {
                    config.initial_window(window);
                }
                Arc::new(config).build(now, mtu)
            }};
        }
        match self {
            Self::Cubic => build!(CubicConfig),
            Self::Bbr => build!(BbrConfig),
            Self::Reno => build!(NewRenoConfig),
        }
    }
}

/// Settings and statistics of a stream's congestion control, exchanged with other tasks. They need no memory ordering.
#[derive(Debug)]
pub(super) struct Steering {
    control: AtomicU8,
    /// Bytes per second.
    limit: AtomicU64,
    /// Bytes that may wait unsent beyond the window.
    unsent: AtomicU64,
    window: AtomicU64,
    in_flight: AtomicU64,
    acknowledged: AtomicU64,
    /// Slow start.
    slow_start: AtomicU8,
}

impl Steering {
    /// Congestion control by the kernel's name; `unsent` bytes may wait beyond the window.
    pub(super) fn new(control: &str, unsent: u32) -> Arc<Self> {
        Arc::new(Self {
            control: AtomicU8::new(Control::named(control) as u8),
            limit: AtomicU64::new(FREE),
            unsent: AtomicU64::new(unsent.into()),
            window: AtomicU64::new(0),
            in_flight: AtomicU64::new(0),
            acknowledged: AtomicU64::new(0),
            slow_start: AtomicU8::new(1),
        })
    }

    pub(super) fn set_control(&self, name: &str) {
        self.control.store(Control::named(name) as u8, Ordering::Relaxed);
    }

    pub(super) fn set_limit(&self, bytes_per_second: Option<u64>) {
        self.limit.store(bytes_per_second.unwrap_or(FREE), Ordering::Relaxed);
    }

    pub(super) fn set_unsent(&self, bytes: u32) {
        self.unsent.store(bytes.into(), Ordering::Relaxed);
    }

    fn control(&self) -> Control {
        Control::of(self.control.load(Ordering::Relaxed))
    }

    pub(super) fn uses_bbr(&self) -> bool {
        self.control() == Control::Bbr
    }

    /// Maximum bytes that the connection may hold, unsent or in flight: its window and a short backlog. The backlog is short
    /// because queued bytes can no longer move to another stream.
    pub(super) fn room(&self) -> u64 {
        self.window.load(Ordering::Relaxed) + self.unsent.load(Ordering::Relaxed)
    }

    pub(super) fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::Relaxed)
    }

    pub(super) fn in_flight(&self) -> u64 {
        self.in_flight.load(Ordering::Relaxed)
    }

    pub(super) fn slow_start(&self) -> bool {
        self.slow_start.load(Ordering::Relaxed) != 0
    }

    /// Backlog: zero while the window is not full.
    pub(super) fn unsent(&self, segment: u64) -> u64 {
        let full = self.in_flight() + segment >= self.window.load(Ordering::Relaxed);
        if full { self.unsent.load(Ordering::Relaxed) } else { 0 }
    }
}

/// Builds the controller of a connection.
pub(super) struct Steer(pub(super) Arc<Steering>);

impl ControllerFactory for Steer {
    fn build(self: Arc<Self>, now: Instant, mtu: u16) -> Box<dyn Controller> {
        let steering = Arc::clone(&self.0);
        let control = steering.control();
        let inner = control.build(None, now, mtu);
        let steered = Steered { inner, control, steering, rtt: Duration::ZERO, mtu };
        steered.tell();
        Box::new(steered)
    }
}

/// Wrapper of one of quinn's controllers, which is replaced on request.
struct Steered {
    inner: Box<dyn Controller>,
    control: Control,
    steering: Arc<Steering>,
    rtt: Duration,
    mtu: u16,
}

impl Steered {
    fn tell(&self) {
        self.steering.window.store(self.window(), Ordering::Relaxed);
        let ControllerMetrics { congestion_window, ssthresh, .. } = self.inner.metrics();
        let slow_start = ssthresh.is_some_and(|threshold| congestion_window < threshold);
        self.steering.slow_start.store(slow_start.into(), Ordering::Relaxed);
    }

    /// Window that enforces the rate limit: quinn paces by the window and the round trip.
    fn bound(&self) -> u64 {
        match self.steering.limit.load(Ordering::Relaxed) {
            FREE => FREE,
            limit => {
                let bytes = (limit as f64 * self.rtt.as_secs_f64()) as u64;
                bytes.max(LEAST_SEGMENTS * u64::from(self.mtu))
            }
        }
    }

    /// Replaces the controller if another congestion control is requested; the new controller starts with the current window.
    fn change(&mut self, now: Instant) {
        let wished = self.steering.control();
        if wished != self.control {
            self.inner = wished.build(Some(self.inner.window()), now, self.mtu);
            self.control = wished;
        }
    }
}

impl Controller for Steered {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        self.steering.in_flight.fetch_add(bytes, Ordering::Relaxed);
        self.inner.on_sent(now, bytes, last_packet_number);
    }

    fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, app_limited: bool, rtt: &RttEstimator) {
        self.rtt = rtt.get();
        self.steering.acknowledged.fetch_add(bytes, Ordering::Relaxed);
        // While the rate limit keeps the window from being filled, the window must not grow: the path has not been tested with so many
        // bytes in flight.
        let bounded = self.bound() < self.inner.window();
        self.inner.on_ack(now, sent, bytes, app_limited || bounded, rtt);
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, app_limited: bool, largest: Option<u64>) {
        self.steering.in_flight.store(in_flight, Ordering::Relaxed);
        self.inner.on_end_acks(now, in_flight, app_limited, largest);
        self.change(now);
        self.tell();
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, is_persistent: bool, lost_bytes: u64) {
        self.inner.on_congestion_event(now, sent, is_persistent, lost_bytes);
        self.tell();
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.mtu = new_mtu;
        self.inner.on_mtu_update(new_mtu);
    }

    fn window(&self) -> u64 {
        self.inner.window().min(self.bound())
    }

    fn metrics(&self) -> ControllerMetrics {
        self.inner.metrics()
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        let steering = Arc::clone(&self.steering);
        let (inner, control) = (self.inner.clone_box(), self.control);
        Box::new(Self { inner, control, steering, rtt: self.rtt, mtu: self.mtu })
    }

    fn initial_window(&self) -> u64 {
        self.inner.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn built(control: &str) -> (Arc<Steering>, Box<dyn Controller>) {
        let steering = Steering::new(control, 1000);
        let controller = Arc::new(Steer(Arc::clone(&steering))).build(Instant::now(), 1200);
        (steering, controller)
    }

    #[test]
    fn congestion_controls_have_the_kernels_names() {
        let modelled = |name| built(name).0.uses_bbr();
        assert_eq!(["cubic", "bbr", "reno", "vegas"].map(modelled), [false, true, false, false]);
    }

    #[test]
    fn a_replaced_congestion_control_keeps_the_window() {
        let (steering, mut controller) = built("cubic");
        let before = controller.window();
        assert_eq!(steering.room(), before + 1000);
        steering.set_control("bbr");
        controller.on_end_acks(Instant::now(), 0, false, None);
        assert!(steering.uses_bbr());
        assert_eq!(controller.window(), before);
    }

    #[test]
    fn a_rate_limit_leaves_a_minimum_window() {
        let (steering, mut controller) = built("cubic");
        steering.set_limit(Some(1));
        assert_eq!(controller.window(), LEAST_SEGMENTS * 1200);
        steering.set_limit(None);
        controller.on_end_acks(Instant::now(), 0, false, None);
        assert!(controller.window() > LEAST_SEGMENTS * 1200);
    }

    #[test]
    fn only_a_full_window_allows_a_backlog() {
        let (steering, mut controller) = built("cubic");
        assert_eq!(steering.unsent(1200), 0);
        controller.on_sent(Instant::now(), controller.window(), 1);
        assert_eq!(steering.unsent(1200), 1000);
        controller.on_end_acks(Instant::now(), 0, false, None);
        assert_eq!((steering.unsent(1200), steering.in_flight()), (0, 0));
    }
}
