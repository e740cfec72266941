//! Service meters: bytes per service (spec/order.md clause 13), measured without extra packets, and their reports.

use std::collections::BTreeMap;
use std::time::Duration;

use sos_tunnel::{PathStats, Relayed};
use sos_wire::order::{MAX_PATH_ROWS, MAX_SERVICE_ROWS};
use sos_wire::{PathReport, PathRow, ServiceMark, ServiceRow, SessionUuid};

/// Maximum number of metered services; sessions of further services are not metered.
const MAX_SERVICES: usize = 1_024;
/// Maximum number of reports for one sampling time.
const MAX_REPORTS: usize = 64;

/// Bytes of sessions opened by this agent, by service. Sessions are bounded by the tunnel's limit.
#[derive(Debug, Default)]
pub struct ServiceMeters {
    ended: BTreeMap<ServiceMark, (u64, u64)>,
    open: BTreeMap<SessionUuid, (ServiceMark, Relayed)>,
}

impl ServiceMeters {
    /// Adds a session of a service.
    pub fn begin(&mut self, session: SessionUuid, service: ServiceMark, relayed: Relayed) {
        if self.ended.len() < MAX_SERVICES || self.ended.contains_key(&service) {
            self.ended.entry(service).or_default();
            self.open.insert(session, (service, relayed));
        }
    }

    /// Removes an ended session; its bytes stay counted.
    pub fn finish(&mut self, session: SessionUuid) {
        if let Some((service, relayed)) = self.open.remove(&session) {
            add(self.ended.entry(service).or_default(), relayed.bytes());
        }
    }

    /// All services that have had a session.
    #[must_use]
    pub fn rows(&self) -> Vec<ServiceRow> {
        let mut sums: BTreeMap<_, _> = self.ended.iter().map(|(mark, bytes)| (*mark, (0, *bytes))).collect();
        for (service, relayed) in self.open.values() {
            let sum: &mut (u32, (u64, u64)) = sums.entry(*service).or_default();
            sum.0 += 1;
            add(&mut sum.1, relayed.bytes());
        }
        let row = |(service, (sessions, (up, down)))| ServiceRow { service, sessions, up, down };
        sums.into_iter().map(row).collect()
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
        meters.begin(session, bulk, Relayed::default());
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
            meters.begin(SessionUuid(uuid), ServiceMark::of(&i.to_string()), Relayed::default());
        }
        assert_eq!((meters.rows().len(), meters.open.len()), (MAX_SERVICES, MAX_SERVICES));
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
