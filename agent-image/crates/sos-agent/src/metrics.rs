//! The page of `/metrics`. Names are `sos_agent_<noun>_<unit>`.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::{Registry, Unit};
use sos_tunnel::{Cause, Stats};
use sos_wire::EndReason;

use crate::policy::service_meters::ServiceBytes;

/// One label named `reason`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Reason {
    /// Label value: one of a small fixed set.
    pub reason: &'static str,
}

/// Side and result of a session.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct End {
    /// `ingress` or `egress`.
    pub role: &'static str,
    /// Reason.
    pub reason: &'static str,
}

/// One label named `decision`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Decision {
    /// Label value.
    pub decision: String,
}

/// One label named `cause`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResentFor {
    cause: &'static str,
}

/// Labels of a service's bytes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Carried {
    service: String,
    direction: &'static str,
}

/// Label of a retransmission's cause.
fn word(cause: Cause) -> &'static str {
    match cause {
        Cause::Died => "died",
        Cause::Stalled => "stalled",
        Cause::Late => "late",
        Cause::Tail => "tail",
    }
}

/// Counters of the agent itself.
#[derive(Debug, Default)]
pub struct Metrics {
    /// Clients accepted.
    pub accepted: Counter,
    /// Clients accepted and reset immediately.
    pub rejected: Family<Reason, Counter>,
    /// Sessions ended.
    pub ended: Family<End, Counter>,
    /// Failed connections to servers.
    pub connect_failures: Family<Reason, Counter>,
    /// Orders accepted.
    pub orders: Counter,
    /// Orders dropped.
    pub orders_dropped: Family<Reason, Counter>,
    /// Beacons sent.
    pub beacons: Counter,
    /// nft transactions that failed.
    pub nft_failures: Counter,
    /// Documents rejected.
    pub config_refused: Counter,
    /// Connections to stream ports from addresses that belong to no peer.
    pub strangers: Counter,
    /// Generation in force.
    pub generation: Gauge,
    /// 1 while new sessions are accepted.
    pub willing: Gauge,
    /// 1 while draining.
    pub draining: Gauge,
    /// 1 while another node may have the site's virtual address.
    pub backup: Gauge,
    /// Connections probed because a peer was lost.
    pub half_open_probed: Counter,
    /// Elements of the nft sets of armed services.
    pub armed: Gauge,
    /// Services that do not fit the nft sets.
    pub left_out: Gauge,
    /// Servers temporarily left to plain TCP.
    pub unreachable: Gauge,
    /// Covered connections that went plain here.
    pub plain: Family<Reason, Counter>,
    /// SYNs held, and server connections opened ahead for clients that have not completed their handshakes.
    pub held: Gauge,
    /// Pods whose connections this agent intercepts.
    pub pods: Gauge,
    /// Preparations in force.
    pub preparations: Gauge,
    /// Controllers known.
    pub controllers: Gauge,
}

/// Label of a session's end reason.
#[must_use]
pub fn reason(reason: EndReason) -> &'static str {
    match reason {
        EndReason::Finished => "finished",
        EndReason::ClientReset => "client_reset",
        EndReason::ServerReset => "server_reset",
        EndReason::ServerRefused => "server_refused",
        EndReason::ServerUnreachable => "server_unreachable",
        EndReason::PeerLost => "peer_lost",
        EndReason::PreparationExpired => "preparation_expired",
        EndReason::InternalLimit => "internal_limit",
    }
}

impl Metrics {
    /// Registers all metrics.
    pub fn register(&self, registry: &mut Registry) {
        let r = registry.sub_registry_with_prefix("sos_agent");
        r.register("accepted", "Clients accepted by the transparent listener", self.accepted.clone());
        r.register("rejected", "Clients accepted and reset immediately", self.rejected.clone());
        r.register("sessions_ended", "Sessions ended, by side and reason", self.ended.clone());
        r.register("connect_failures", "Failed connections to servers", self.connect_failures.clone());
        r.register("orders", "Orders accepted", self.orders.clone());
        r.register("orders_dropped", "Orders dropped", self.orders_dropped.clone());
        r.register("beacons", "Beacons sent", self.beacons.clone());
        r.register("nft_failures", "nft transactions that failed", self.nft_failures.clone());
        r.register("config_refused", "Configuration documents refused", self.config_refused.clone());
        r.register(
            "bugs",
            "Panics, each confined to one session, stream, order or document",
            sos_daemon::bugs::counter(),
        );
        r.register("strangers", "Connections to stream ports from unknown addresses", self.strangers.clone());
        r.register("config_generation", "Generation of the configuration in force", self.generation.clone());
        r.register("willing", "1 while new sessions are accepted", self.willing.clone());
        r.register("draining", "1 while draining", self.draining.clone());
        r.register(
            "backup",
            "1 while another node may have the site's virtual address, so that no new sessions are accepted",
            self.backup.clone(),
        );
        r.register(
            "half_open_probed",
            "Connections of hosts at other sites probed after their agent was lost",
            self.half_open_probed.clone(),
        );
        r.register("armed_regions", "Elements of the nft sets of armed services", self.armed.clone());
        r.register(
            "armed_left_out",
            "Services that do not fit the nft sets and stay plain",
            self.left_out.clone(),
        );
        r.register(
            "unreachable_servers",
            "Servers left to plain TCP because they have not answered recently",
            self.unreachable.clone(),
        );
        r.register("plain", "Covered connections that this agent left plain, by reason", self.plain.clone());
        r.register(
            "intercepted_pods",
            "Pods of this node whose network namespaces the agent has entered",
            self.pods.clone(),
        );
        r.register(
            "held_connections",
            "SYNs held until the server has accepted, and server connections opened ahead that wait for their client",
            self.held.clone(),
        );
        r.register("preparations", "Preparations in force", self.preparations.clone());
        r.register("controllers", "Controllers known", self.controllers.clone());
    }
}

/// Counters of other modules.
#[derive(Debug, Default)]
pub struct Reading {
    /// The tunnel's statistics.
    pub stats: Stats,
    /// Bytes of ingress sessions, by service.
    pub services: Vec<ServiceBytes>,
}

/// Counters of other modules, read when the page is requested.
pub struct Snapshot<F> {
    read: F,
    syns: SynCounters,
}

impl<F> std::fmt::Debug for Snapshot<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshot").finish_non_exhaustive()
    }
}

impl<F: Fn() -> Reading + Send + Sync + 'static> Snapshot<F> {
    /// `read` reads the other modules' counters.
    pub fn new(read: F) -> Self {
        Self { read, syns: SynCounters::default() }
    }
}

/// Counters of the nft table, read at most once a second because each read starts a process.
#[derive(Default)]
struct SynCounters(Mutex<Option<(Instant, Packets)>>);

/// Packets by counter name.
type Packets = Vec<(&'static str, u64)>;

impl SynCounters {
    fn read(&self) -> Packets {
        let mut cached = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some((at, counters)) = &*cached
            && at.elapsed() < Duration::from_secs(1)
        {
            return counters.clone();
        }
        let counters = crate::netns::nft_counters().unwrap_or_default();
        *cached = Some((Instant::now(), counters.clone()));
        counters
    }
}

impl<F: Fn() -> Reading + Send + Sync + 'static> Collector for Snapshot<F> {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let Reading { stats, services } = (self.read)();
        for (name, help, value) in gauges(&stats) {
            let gauge = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
        }
        for (name, help, unit, value) in counters(&stats) {
            let counter = ConstCounter::new(value);
            counter.encode(encoder.encode_descriptor(name, help, unit.as_ref(), counter.metric_type())?)?;
        }
        let kind = MetricType::Counter;
        let help = "Bytes of hosts retransmitted on another stream";
        let mut family = encoder.encode_descriptor("sos_agent_resent", help, Some(&Unit::Bytes), kind)?;
        for cause in Cause::ALL {
            let bytes = stats.bytes_resent_total[cause];
            let labels = ResentFor { cause: word(cause) };
            family.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&bytes, None)?;
        }
        let help = "CPU time spent on compression";
        encoder
            .encode_descriptor("sos_agent_compression", help, Some(&Unit::Seconds), kind)?
            .encode_counter::<NoLabelSet, _, u64>(&stats.compress_time_total.as_secs_f64(), None)?;
        let syns: Vec<_> = self.syns.read();
        let mut family =
            encoder.encode_descriptor("sos_agent_syns", "Bare SYNs by nft's decision", None, kind)?;
        for (decision, packets) in syns {
            let labels = Decision { decision: decision.trim_start_matches("syn_").to_owned() };
            family.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&packets, None)?;
        }
        encode_services(&mut encoder, &services)?;
        encode_first_byte(&mut encoder, &stats)
    }
}

fn encode_services(
    encoder: &mut DescriptorEncoder<'_>,
    services: &[ServiceBytes],
) -> Result<(), std::fmt::Error> {
    let help = "Bytes of accelerated connections that this agent has accepted, by service";
    let mut family =
        encoder.encode_descriptor("sos_agent_service", help, Some(&Unit::Bytes), MetricType::Counter)?;
    for row in services {
        for (direction, bytes) in [("up", row.up), ("down", row.down)] {
            let labels = Carried { service: row.service.clone(), direction };
            family.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&bytes, None)?;
        }
    }
    Ok(())
}

fn encode_first_byte(encoder: &mut DescriptorEncoder<'_>, stats: &Stats) -> Result<(), std::fmt::Error> {
    let help = "Time from the acceptance of a client to the first byte of its server";
    let times = stats.first_byte;
    // The encoder writes the largest number as +Inf.
    let bound = |bound: Option<Duration>| bound.map_or(f64::MAX, |bound| bound.as_secs_f64());
    let buckets: Vec<_> = times.buckets().map(|(upper, count)| (bound(upper), count)).collect();
    encoder
        .encode_descriptor("sos_agent_first_byte", help, Some(&Unit::Seconds), MetricType::Histogram)?
        .encode_histogram::<NoLabelSet>(times.sum.as_secs_f64(), times.count(), &buckets, None)
}

fn gauges(stats: &Stats) -> [(&'static str, &'static str, u64); 6] {
    [
        ("sos_agent_sessions", "Sessions open", stats.sessions),
        ("sos_agent_streams", "Streams open", stats.streams),
        ("sos_agent_streams_encrypted", "Encrypted streams open", stats.streams_encrypted),
        ("sos_agent_streams_quic", "QUIC streams open", stats.streams_quic),
        ("sos_agent_memory_reserved_bytes", "Bytes of memory reserved by sessions", stats.memory_reserved),
        ("sos_agent_reorder_bytes", "Bytes waiting in reorder buffers", stats.reorder_bytes),
    ]
}

type CounterLine = (&'static str, &'static str, Option<Unit>, u64);

fn counters(stats: &Stats) -> [CounterLine; 13] {
    let bytes = || Some(Unit::Bytes);
    [
        ("sos_agent_sessions_begun", "Sessions started", None, stats.sessions_total),
        ("sos_agent_sessions_reset", "Sessions that did not end cleanly", None, stats.sessions_reset_total),
        ("sos_agent_sessions_refused", "Sessions refused at a limit", None, stats.sessions_refused_total),
        ("sos_agent_streams_opened", "Streams opened or accepted", None, stats.streams_total),
        ("sos_agent_streams_lost", "Streams lost", None, stats.streams_lost_total),
        ("sos_agent_handshakes_failed", "Stream handshakes that failed", None, stats.handshakes_failed_total),
        (
            "sos_agent_plain_refused",
            "Plain streams refused because a service requires encryption",
            None,
            stats.plain_refused_total,
        ),
        (
            "sos_agent_quic_fallbacks",
            "Fallbacks of a path's streams from QUIC to TCP",
            None,
            stats.quic_fallbacks_total,
        ),
        ("sos_agent_sent", "Bytes of hosts sent to peers", bytes(), stats.bytes_sent_total),
        ("sos_agent_received", "Bytes of peers delivered to hosts", bytes(), stats.bytes_received_total),
        ("sos_agent_compressed", "Bytes of hosts sent compressed", bytes(), stats.compressed_bytes_total),
        (
            "sos_agent_compressed_wire",
            "Compressed size of the bytes in sos_agent_compressed_bytes_total",
            bytes(),
            stats.compressed_wire_bytes_total,
        ),
        ("sos_agent_credit_stalls", "Times a sender waited for credit", None, stats.credit_stalls_total),
    ]
}

#[cfg(test)]
mod tests {
    use sos_tunnel::Retransmitted;

    use super::*;

    #[test]
    fn the_page_is_well_formed_and_complete() {
        let metrics = Metrics::default();
        metrics.rejected.get_or_create(&Reason { reason: "not_permitted" }).inc();
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        let mut resent = Retransmitted::default();
        resent[Cause::Late] = 5;
        let mut stats =
            Stats { sessions: 3, bytes_sent_total: 7, bytes_resent_total: resent, ..Stats::default() };
        stats.first_byte.observe(Duration::from_millis(40));
        stats.first_byte.observe(Duration::from_secs(60));
        let read = move || Reading { stats, services: carried() };
        registry.register_collector(Box::new(Snapshot::new(read)));
        let mut page = String::new();
        prometheus_client::encoding::text::encode(&mut page, &registry).unwrap();
        for line in [
            "sos_agent_rejected_total{reason=\"not_permitted\"} 1",
            "sos_agent_sessions 3",
            "sos_agent_sent_bytes_total 7",
            "sos_agent_resent_bytes_total{cause=\"late\"} 5",
            "sos_agent_resent_bytes_total{cause=\"died\"} 0",
            "# TYPE sos_agent_syns counter",
            "sos_agent_willing 0",
            "sos_agent_service_bytes_total{service=\"default/bulk\",direction=\"down\"} 2",
            "sos_agent_first_byte_seconds_bucket{le=\"0.001\"} 0",
            "sos_agent_first_byte_seconds_bucket{le=\"0.05\"} 1",
            "sos_agent_first_byte_seconds_bucket{le=\"10.0\"} 1",
            "sos_agent_first_byte_seconds_bucket{le=\"+Inf\"} 2",
            "sos_agent_first_byte_seconds_sum 60.04",
            "sos_agent_first_byte_seconds_count 2",
        ] {
            assert!(page.contains(line), "{line} is missing in:\n{page}");
        }
        assert!(page.ends_with("# EOF\n"));
    }

    fn carried() -> Vec<ServiceBytes> {
        vec![ServiceBytes { service: "default/bulk".to_owned(), up: 1, down: 2 }]
    }

    /// Dashboards, alerts and the user documentation are checked against this table, so a changed name fails here first.
    #[test]
    fn the_metrics_match_the_table_in_spec() {
        let metrics = Metrics::default();
        metrics.rejected.get_or_create(&Reason { reason: "r" }).inc();
        metrics.orders_dropped.get_or_create(&Reason { reason: "r" }).inc();
        metrics.connect_failures.get_or_create(&Reason { reason: "r" }).inc();
        metrics.ended.get_or_create(&End { role: "ingress", reason: "r" }).inc();
        metrics.plain.get_or_create(&Reason { reason: "r" }).inc();
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        let syns =
            SynCounters(Mutex::new(Some((Instant::now() + Duration::from_secs(60), vec![("syn_plain", 1)]))));
        let read = || Reading { services: carried(), ..Reading::default() };
        registry.register_collector(Box::new(Snapshot { read, syns }));
        let mut page = String::new();
        prometheus_client::encoding::text::encode(&mut page, &registry).unwrap();
        assert_eq!(table(&page), include_str!("../../../../spec/metrics/agent.tsv"));
    }

    /// Name, type, labels and meaning of every family of a page, sorted.
    fn table(page: &str) -> String {
        let text_of = |kind: &str, family: &str| {
            let prefix = format!("# {kind} {family} ");
            page.lines().find_map(|line| line.strip_prefix(prefix.as_str())).unwrap_or_default()
        };
        let mut rows = Vec::new();
        for (family, kind) in page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' ')) {
            let name = if kind == "counter" { format!("{family}_total") } else { family.to_owned() };
            let labelled = page.lines().find_map(|line| line.strip_prefix(&format!("{name}{{")));
            let inside = labelled.and_then(|rest| rest.split_once('}')).map_or("", |(inside, _)| inside);
            let labels: Vec<_> =
                inside.split(',').filter_map(|pair| pair.split_once('=')).map(|(label, _)| label).collect();
            let meaning = text_of("HELP", family).trim_end_matches('.');
            rows.push(format!("{name}\t{kind}\t{}\t{meaning}\n", labels.join(",")));
        }
        rows.sort();
        rows.concat()
    }
}
