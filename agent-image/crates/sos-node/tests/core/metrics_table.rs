//! The program's metrics are those of spec/metrics, against which dashboards, alerts and the user documentation are checked.

use sos_node::edge::metrics::Metrics;
use sos_node::status::Status;

#[test]
fn the_metrics_equal_the_table_in_spec() {
    let (metrics, registry) = Metrics::new();
    metrics.count_pass(&["bridge"], false, 0.1);
    metrics.show(&Status::pending("node", String::new()));
    let mut page = String::new();
    prometheus_client::encoding::text::encode(&mut page, &registry).expect("a page");
    assert_eq!(table(&page), include_str!("../../../../../spec/metrics/node.tsv"));
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
