//! Service meters: bytes per service, measured without extra packets, for the metrics and for reports (spec/order.md clause 13).

use std::collections::BTreeMap;
use std::time::Duration;

use sos_tunnel::{PathStats, Relayed};
use sos_wire::order::{MAX_PATH_ROWS, MAX_SERVICE_ROWS};
use sos_wire::{PathReport, PathRow, ServiceMark, ServiceRow, SessionUuid};

/// Maximum number of metered services. Sessions of further services are metered together, as [`FURTHER`], and not reported.
const MAX_SERVICES: usize = 1_024;
/// Name of all services beyond `MAX_SERVICES` in the metrics. Ids of services contain a slash.
const FURTHER: &str = "other";
/// Maximum number of reports for one sampling time.
const MAX_REPORTS: usize = 64;

/// Bytes of one service's sessions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceBytes {
    /// The service's id, or [`FURTHER`].
    pub service: String,
    /// Bytes from clients to servers.
    pub up: u64,
    /// Bytes from servers to clients.
    pub down: u64,
}

/// Bytes of sessions opened by this agent, by service; `None` is all services beyond `MAX_SERVICES`. Sessions are bounded by the tunnel's
/// limit.
#[derive(Debug, Default)]
pub struct ServiceMeters {
    names: BTreeMap<ServiceMark, String>,
    ended: BTreeMap<Option<ServiceMark>, (u64, u64)>,
    open: BTreeMap<SessionUuid, (Option<ServiceMark>, Relayed)>,
}

impl ServiceMeters {
    /// Adds a session of the service with this id.
    pub fn begin(&mut self, session: SessionUuid, service: &str, relayed: Relayed) {
        let mark = ServiceMark::of(service);
        let is_named = self.names.contains_key(&mark) || self.names.len() < MAX_SERVICES;
        if is_named {
            self.names.entry(mark).or_insert_with(|| service.to_owned());
        }
        let place = is_named.then_some(mark);
        self.ended.entry(place).or_default();
        self.open.insert(session, (place, relayed));
    }

    /// Removes an ended session; its bytes stay counted.
    pub fn finish(&mut self, session: SessionUuid) {
        if let Some((place, relayed)) = self.open.remove(&session) {
            add(self.ended.entry(place).or_default(), relayed.bytes());
        }
    }

    /// All named services that have had a session.
    #[must_use]
    pub fn rows(&self) -> Vec<ServiceRow> {
        let row = |(place, (sessions, (up, down))): (Option<_>, _)| {
            place.map(|service| ServiceRow { service, sessions, up, down })
        };
        self.sums().into_iter().filter_map(row).collect()
    }

    /// Bytes of all services that have had a session, for the metrics.
    #[must_use]
    pub fn bytes(&self) -> Vec<ServiceBytes> {
        let name = |place: Option<ServiceMark>| {
            place.and_then(|mark| self.names.get(&mark)).map_or(FURTHER, String::as_str).to_owned()
        };
        let row = |(place, (_, (up, down)))| ServiceBytes { service: name(place), up, down };
        self.sums().into_iter().map(row).collect()
    }

    /// Open sessions and bytes of all sessions, by service.
    fn sums(&self) -> BTreeMap<Option<ServiceMark>, (u32, (u64, u64))> {
        let mut sums: BTreeMap<_, _> =
            self.ended.iter().map(|(place, bytes)| (*place, (0, *bytes))).collect();
        for (place, relayed) in self.open.values() {
            let sum: &mut (u32, (u64, u64)) = sums.entry(*place).or_default();
            sum.0 += 1;
            add(&mut sum.1, relayed.bytes());
        }
        sums
    }
}

fn add(sum: &mut (u64, u64), bytes: (u64, u64)) {
    *sum = (sum.0.saturating_add(bytes.0), sum.1.saturating_add(bytes.1));
}

/// Reports for one sampling time, as many as needed, up to `MAX_REPORTS`.
#[must_use]
pub fn reports(since_boot: Duration, paths: &[PathStats], services: &[ServiceRow]) -> Vec<PathReport> {
    let sampled_ms = u64::try_from(since_boot.as_millis()).unwrap_or(u64::MAX);
    let (mut paths, mut services) = (paths.chunks(MAX_PATH_ROWS), services.chunks(MAX_SERVICE_ROWS));
    let next = || {
        let (paths, services) = (paths.next(), services.next());
        (paths.is_some() || services.is_some()).then(|| PathReport {
            sampled_ms,
            paths: paths.unwrap_or_default().iter().map(path_row).collect(),
            services: services.unwrap_or_default().to_vec(),
        })
    };
    std::iter::from_fn(next).take(MAX_REPORTS).collect()
}

fn path_row(path: &PathStats) -> PathRow {
    PathRow {
        peer: path.peer,
        label: path.label,
        streams: u16::try_from(path.streams).unwrap_or(u16::MAX),
        rtt_us: micros(path.rtt),
        min_rtt_us: micros(path.min_rtt),
        sent: path.sent,
        received: path.received,
    }
}

fn micros(time: Duration) -> u32 {
    u32::try_from(time.as_micros()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use sos_wire::AgentId;

    fn path(label: u8) -> PathStats {
        let ms = Duration::from_millis;
        PathStats {
            peer: AgentId([7; 16]),
            label,
            streams: 8,
            rtt: ms(59),
            min_rtt: ms(58),
            sent: 1,
            received: 2,
        }
    }

    #[test]
    fn bytes_of_an_ended_session_are_counted_once() {
        let (mut meters, bulk) = (ServiceMeters::default(), ServiceMark::of("default/bulk"));
        let session = SessionUuid([1; 16]);
        meters.begin(session, "default/bulk", Relayed::default());
        let row = |sessions| ServiceRow { service: bulk, sessions, up: 0, down: 0 };
        assert_eq!(meters.rows(), [row(1)]);
        meters.finish(session);
        meters.finish(session);
        assert_eq!(meters.rows(), [row(0)], "a service is listed from its first session on");
    }

    #[test]
    fn services_are_bounded() {
        let mut meters = ServiceMeters::default();
        for i in 0..2_000u32 {
            let mut uuid = [0; 16];
            uuid[..4].copy_from_slice(&i.to_be_bytes());
            meters.begin(SessionUuid(uuid), &format!("default/{i:04}"), Relayed::default());
        }
        let named = |bytes: &[ServiceBytes]| bytes.iter().filter(|row| row.service != FURTHER).count();
        assert_eq!((meters.rows().len(), meters.open.len()), (MAX_SERVICES, 2_000));
        assert_eq!((named(&meters.bytes()), meters.bytes().len()), (MAX_SERVICES, MAX_SERVICES + 1));
    }

    proptest! {
        #[test]
        fn everything_is_in_some_report_up_to_the_bound(paths in 0usize..1_500, services in 0usize..1_200) {
            let given: Vec<_> = (0..paths).map(|i| path((i % 8) as u8)).collect();
            let row = ServiceRow { service: ServiceMark([1; 8]), sessions: 0, up: 0, down: 0 };
            let made = reports(Duration::from_secs(5), &given, &vec![row; services]);
            prop_assert!(made.len() <= MAX_REPORTS);
            prop_assert!(made.iter().all(|r| r.sampled_ms == 5_000 && !(r.paths.is_empty() && r.services.is_empty())));
            let fits = MAX_REPORTS * MAX_PATH_ROWS;
            prop_assert_eq!(made.iter().map(|r| r.paths.len()).sum::<usize>(), paths.min(fits));
            prop_assert_eq!(made.iter().map(|r| r.services.len()).sum::<usize>(), services.min(fits));
        }
    }
}
