//! Results as JSON and as text.

use std::fmt::Write as _;

use serde::Serialize;

use crate::stats::{Latencies, Messages, jain};
use crate::world::{Counts, World};

/// Quantiles of a latency in milliseconds; absent without samples.
#[derive(Debug, Serialize)]
pub struct Quantiles {
    /// Number of samples.
    pub count: u64,
    /// Median.
    pub p50_ms: Option<f64>,
    /// 90th percentile.
    pub p90_ms: Option<f64>,
    /// 99th percentile.
    pub p99_ms: Option<f64>,
    /// Maximum.
    pub max_ms: Option<f64>,
}

impl From<&Latencies> for Quantiles {
    fn from(l: &Latencies) -> Self {
        let [p50_ms, p90_ms, p99_ms] = [0.5, 0.9, 0.99].map(|q| l.quantile_ms(q));
        Self { count: l.count(), p50_ms, p90_ms, p99_ms, max_ms: l.max_ms() }
    }
}

/// Messages of the controller per answered SYN.
#[derive(Debug, Serialize)]
pub struct PerSyn {
    /// Flow-mods that add.
    pub flow_mods_added: f64,
    /// Flow-mods that delete or modify.
    pub flow_mods_deleted: f64,
    /// Packet-outs: orders and SYNs.
    pub packet_outs: f64,
    /// Barrier requests.
    pub barriers: f64,
}

/// Results of one source of SYNs.
#[derive(Debug, Serialize)]
pub struct PerSwitch {
    /// Name of the switch.
    pub name: String,
    /// Datapath id, 16 hex digits.
    pub dpid: String,
    /// SYNs sent to the controller.
    pub sent: u64,
    /// Answered SYNs.
    pub answered: u64,
    /// SYNs that were not answered in time.
    pub lost: u64,
    /// Answers per second.
    pub rate: f64,
    /// Latency from a SYN to its packet-out.
    pub answer: Quantiles,
    /// Number of unanswered SYNs at the end of each interval.
    pub outstanding: Vec<u32>,
    /// Number of answers in each interval.
    pub answered_in: Vec<u64>,
}

/// Results of a run.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Address of the controller.
    pub controller: String,
    /// Description of the load.
    pub load: String,
    /// Number of emulated switches.
    pub switches: usize,
    /// Number of sources of SYNs.
    pub sources: usize,
    /// Time from the first connection until all switches have described their ports, in seconds.
    pub handshake_s: f64,
    /// Time from the end of the handshake until the controller requested SYNs, in seconds.
    pub ready_s: f64,
    /// Duration of the measurement in seconds.
    pub duration_s: f64,
    /// SYNs sent to the controller.
    pub sent: u64,
    /// Answered SYNs.
    pub answered: u64,
    /// Answered SYNs that were redirected to an agent of SOS.
    pub redirected: u64,
    /// SYNs that were not answered in time.
    pub lost: u64,
    /// SYNs that were not sent because too many SYNs were unanswered.
    pub withheld: u64,
    /// SYNs that reached an agent without a preparation, which is an error of the controller.
    pub unprepared: u64,
    /// OpenFlow error messages in both directions.
    pub errors: u64,
    /// LLDP frames that crossed links since the start.
    pub probes: u64,
    /// Answers per second.
    pub rate: f64,
    /// CPU seconds of the controller during the measurement.
    pub cpu_s: Option<f64>,
    /// Answers per CPU second of the controller.
    pub per_cpu_second: Option<f64>,
    /// Latency from a SYN to the packet-out that releases it.
    pub answer: Quantiles,
    /// Latency from a SYN to the entry for its flow at the client's switch, if the controller installs such entries.
    pub entry: Quantiles,
    /// Messages per answer.
    pub per_syn: PerSyn,
    /// Jain's fairness index of the rates of the switches.
    pub fairness: f64,
    /// Length of the intervals of the time series, in seconds.
    pub interval_s: f64,
    /// Results of each source.
    pub per_switch: Vec<PerSwitch>,
}

/// Measurements of the edge, in addition to the counts of a world.
#[derive(Debug, Default)]
pub struct Measured {
    /// Address of the controller.
    pub controller: String,
    /// Description of the load.
    pub load: String,
    /// Seconds until the end of the handshake, until readiness, of the measurement, and of an interval.
    pub seconds: [f64; 4],
    /// CPU seconds of the controller.
    pub cpu_s: Option<f64>,
    /// Messages of the controller.
    pub messages: Messages,
    /// Total of answers and number of unanswered SYNs, by interval and source.
    pub series: Vec<Vec<(u64, u32)>>,
}

#[expect(clippy::cast_precision_loss, reason = "counts of seconds of packets")]
fn ratio(count: u64, by: f64) -> f64 {
    if by > 0.0 { count as f64 / by } else { 0.0 }
}

impl Report {
    /// Build the report of a measured world.
    pub fn new(world: &World, measured: Measured) -> Self {
        let [handshake_s, ready_s, duration_s, interval_s] = measured.seconds;
        let total = |of: fn(&Counts) -> u64| world.counts.iter().map(of).sum::<u64>();
        let (mut answer, mut entry) = (Latencies::default(), Latencies::default());
        for counts in &world.counts {
            answer.merge(&counts.answer);
            entry.merge(&counts.entry);
        }
        let answered = total(|c| c.answered);
        #[expect(clippy::cast_precision_loss, reason = "counts of seconds of packets")]
        let by = answered as f64;
        let m = measured.messages;
        let per_switch = per_switch(world, duration_s, &measured.series);
        Self {
            controller: measured.controller,
            load: measured.load,
            switches: world.switches.len(),
            sources: world.lanes().len(),
            handshake_s,
            ready_s,
            duration_s,
            sent: total(|c| c.sent),
            answered,
            redirected: total(|c| c.redirected),
            lost: total(|c| c.lost),
            withheld: world.withheld,
            unprepared: world.unprepared,
            errors: world.switches.iter().map(|s| s.errors).sum(),
            probes: world.probes,
            rate: ratio(answered, duration_s),
            cpu_s: measured.cpu_s,
            per_cpu_second: measured.cpu_s.filter(|cpu| *cpu > 0.0).map(|cpu| ratio(answered, cpu)),
            answer: (&answer).into(),
            entry: (&entry).into(),
            per_syn: PerSyn {
                flow_mods_added: ratio(m.adds, by),
                flow_mods_deleted: ratio(m.deletes, by),
                packet_outs: ratio(m.packet_outs, by),
                barriers: ratio(m.barriers, by),
            },
            fairness: jain(&per_switch.iter().map(|s| s.rate).collect::<Vec<_>>()),
            interval_s,
            per_switch,
        }
    }

    /// Format the report as text: a few lines, then one line per switch.
    pub fn text(&self) -> String {
        let mut out = String::new();
        let ms = |value: Option<f64>| value.map_or("-".into(), |v| format!("{v:.2}"));
        let q = |q: &Quantiles| {
            format!("p50 {} p90 {} p99 {} max {} ms", ms(q.p50_ms), ms(q.p90_ms), ms(q.p99_ms), ms(q.max_ms))
        };
        let cpu = self.cpu_s.zip(self.per_cpu_second);
        let cpu = cpu.map_or(String::new(), |(s, per)| format!(", {s:.2} CPU s, {per:.0} per CPU second"));
        let mut line = |text: String| writeln!(out, "{text}").expect("a String takes everything");
        line(format!(
            "{}: {} switches, {} send SYNs, {}",
            self.controller, self.switches, self.sources, self.load
        ));
        line(format!(
            "handshake {:.2} s, ready after {:.2} s, measured {:.2} s",
            self.handshake_s, self.ready_s, self.duration_s
        ));
        line(format!(
            "answered {} of {} SYNs ({} to agents, {} lost): {:.0}/s{cpu}",
            self.answered, self.sent, self.redirected, self.lost, self.rate
        ));
        line(format!("SYN to its release: {}", q(&self.answer)));
        line(format!("SYN to its entry:   {} ({} of them)", q(&self.entry), self.entry.count));
        let p = &self.per_syn;
        line(format!(
            "per SYN: {:.2} flow-mods, {:.2} deletes, {:.2} packet-outs, {:.2} barriers; fairness {:.3}",
            p.flow_mods_added, p.flow_mods_deleted, p.packet_outs, p.barriers, self.fairness
        ));
        if self.withheld + self.unprepared + self.errors > 0 {
            line(format!(
                "withheld {}, unprepared {}, errors {}",
                self.withheld, self.unprepared, self.errors
            ));
        }
        line(format!(
            "{:16} {:>9} {:>9} {:>9} {:>9} {:>9} {:>11}",
            "switch", "sent", "answered", "rate/s", "p50 ms", "p99 ms", "outstanding"
        ));
        for s in &self.per_switch {
            let most = s.outstanding.iter().max().copied().unwrap_or(0);
            line(format!(
                "{:16} {:>9} {:>9} {:>9.0} {:>9} {:>9} {:>11}",
                s.name,
                s.sent,
                s.answered,
                s.rate,
                ms(s.answer.p50_ms),
                ms(s.answer.p99_ms),
                most
            ));
        }
        out
    }
}

fn per_switch(world: &World, seconds: f64, series: &[Vec<(u64, u32)>]) -> Vec<PerSwitch> {
    let one = |(index, counts): (usize, &Counts)| {
        let switch = &world.switches[world.lanes()[index].place.switch];
        let so_far: Vec<u64> = series.iter().map(|row| row[index].0).collect();
        let before = std::iter::once(0).chain(so_far.iter().copied());
        PerSwitch {
            name: switch.plan.name.clone(),
            dpid: format!("{:016x}", switch.plan.dpid),
            sent: counts.sent,
            answered: counts.answered,
            lost: counts.lost,
            rate: ratio(counts.answered, seconds),
            answer: (&counts.answer).into(),
            outstanding: series.iter().map(|row| row[index].1).collect(),
            answered_in: so_far.iter().zip(before).map(|(now, then)| now - then).collect(),
        }
    };
    world.counts.iter().enumerate().map(one).collect()
}
