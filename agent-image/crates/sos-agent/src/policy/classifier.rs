//! Classifier: covered flows as three lookups: client address, then server address, then server port.
//!
//! One set of all combinations of a service's client prefixes, server prefixes and port ranges would have 262,144 elements if there are 64
//! of each. So packets are classified one field at a time. Client addresses with the same covered servers form one class. Within a class,
//! server addresses with the same covered ports form one class, with a set of ports. Each lookup is one nft map, so a service of 64 x 64 x
//! 64 takes 192 elements. Services may overlap freely.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use ipnet::Ipv4Net;

/// First and last value of a range of one field.
pub type Range = (u32, u32);

/// Flows of one service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// Client addresses.
    pub clients: Vec<Range>,
    /// Server addresses.
    pub servers: Vec<Range>,
    /// Server ports.
    pub ports: Vec<Range>,
    /// The service's SYNs are held until the server has accepted, or until the plain path has been checked.
    pub held: bool,
}

impl Rule {
    /// A rule from prefixes and inclusive port ranges.
    #[must_use]
    pub fn new(
        clients: &[Ipv4Net],
        servers: &[Ipv4Net],
        ports: impl IntoIterator<Item = (u16, u16)>,
    ) -> Self {
        let range = |net: &Ipv4Net| (u32::from(net.network()), u32::from(net.broadcast()));
        Self {
            clients: clients.iter().map(range).collect(),
            servers: servers.iter().map(range).collect(),
            ports: ports.into_iter().map(|(first, last)| (first.into(), last.into())).collect(),
            held: false,
        }
    }
}

/// Number of a class, from 1; 0 means no class.
pub type Class = u16;

/// Class, in the last lookup, of a port whose SYNs are held; other ports have class 0.
pub const HELD: Class = 1;

/// A range of one field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// Class from the previous field; 0 for the first field.
    pub of: Class,
    /// Inclusive range.
    pub range: Range,
    /// Resulting class; for the last field [`HELD`] or 0, by the first rule that names the range.
    pub class: Class,
}

/// The three tables, each sorted and without overlaps within a class.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Classifier {
    /// Client address to class.
    pub clients: Vec<Entry>,
    /// Class and server address to class.
    pub servers: Vec<Entry>,
    /// Class and server port to [`HELD`] or 0; a flow is covered if there is an entry for it.
    pub ports: Vec<Entry>,
}

/// More entries than allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooLarge;

impl Classifier {
    /// Tables for these rules, with at most `limit` entries in total.
    ///
    /// # Errors
    /// The tables would have more entries.
    pub fn build(rules: &[Rule], limit: usize) -> Result<Self, TooLarge> {
        let mut build = Build { rules, limit: limit.min(Class::MAX.into()), ..Build::default() };
        let every: Vec<usize> = (0..rules.len()).collect();
        for (range, of) in intervals(&every, |rule| &rules[rule].clients, build.limit)? {
            let class = build.client_class(of)?;
            build.made.clients.push(Entry { of: 0, range, class });
            build.check()?;
        }
        Ok(build.made)
    }

    /// Total number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.clients.len() + self.servers.len() + self.ports.len()
    }

    /// True if no flow is covered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// True if a flow is covered. Mirrors the nft lookups.
    #[must_use]
    pub fn contains(&self, client: Ipv4Addr, server: Ipv4Addr, port: u16) -> bool {
        self.find(client, server, port).is_some()
    }

    /// True if a covered flow is held. Mirrors the nft lookups.
    #[must_use]
    pub fn holds(&self, client: Ipv4Addr, server: Ipv4Addr, port: u16) -> bool {
        self.find(client, server, port) == Some(HELD)
    }

    /// Tables of one client's flows. Classes are numbered anew, so that the tables depend on this client's services only.
    #[must_use]
    pub fn of_client(&self, client: Ipv4Addr) -> Self {
        let client = u32::from(client);
        let holds = |entry: &&Entry| (entry.range.0..=entry.range.1).contains(&client);
        let Some(found) = self.clients.iter().find(holds) else { return Self::default() };
        let mut numbers = BTreeMap::from([(found.class, 1)]);
        let mut servers: Vec<_> =
            self.servers.iter().filter(|entry| entry.of == found.class).copied().collect();
        for entry in &mut servers {
            let next =
                Class::try_from(numbers.len() + 1).expect("fewer classes than in the tables of all clients");
            (entry.of, entry.class) = (1, *numbers.entry(entry.class).or_insert(next));
        }
        let renumbered = |entry: &Entry| numbers.get(&entry.of).map(|of| Entry { of: *of, ..*entry });
        let mut ports: Vec<_> = self.ports.iter().filter_map(renumbered).collect();
        ports.sort_unstable();
        Self { clients: vec![Entry { of: 0, range: (client, client), class: 1 }], servers, ports }
    }

    fn find(&self, client: Ipv4Addr, server: Ipv4Addr, port: u16) -> Option<Class> {
        let find = |table: &[Entry], of: Class, value: u32| {
            table.iter().find(|e| e.of == of && (e.range.0..=e.range.1).contains(&value)).map(|e| e.class)
        };
        let class = find(&self.clients, 0, client.into());
        let class = class.and_then(|class| find(&self.servers, class, server.into()));
        class.and_then(|class| find(&self.ports, class, port.into()))
    }
}

#[derive(Default)]
struct Build<'a> {
    rules: &'a [Rule],
    limit: usize,
    made: Classifier,
    last: Class,
    client_classes: BTreeMap<Vec<usize>, Class>,
    server_classes: BTreeMap<Vec<usize>, Class>,
    classes_by_servers: BTreeMap<Vec<(Range, Class)>, Class>,
    classes_by_ports: BTreeMap<Vec<(Range, Class)>, Class>,
}

impl Build<'_> {
    fn check(&self) -> Result<(), TooLarge> {
        if self.made.len() > self.limit { Err(TooLarge) } else { Ok(()) }
    }

    /// Class of clients named by exactly these rules: clients with the same servers share a class.
    fn client_class(&mut self, of: Vec<usize>) -> Result<Class, TooLarge> {
        if let Some(class) = self.client_classes.get(&of) {
            return Ok(*class);
        }
        let mut servers = Vec::new();
        for (range, both) in intervals(&of, |rule| &self.rules[rule].servers, self.limit)? {
            servers.push((range, self.server_class(both)?));
        }
        let class = match self.classes_by_servers.get(&servers) {
            Some(class) => *class,
            None => {
                let class = self.next_class()?;
                let entry = |&(range, found)| Entry { of: class, range, class: found };
                self.made.servers.extend(servers.iter().map(entry));
                self.check()?;
                self.classes_by_servers.insert(servers, class);
                class
            }
        };
        self.client_classes.insert(of, class);
        Ok(class)
    }

    /// Class of connections whose addresses are named by exactly these rules: connections with the same ports share a class.
    fn server_class(&mut self, of: Vec<usize>) -> Result<Class, TooLarge> {
        if let Some(class) = self.server_classes.get(&of) {
            return Ok(*class);
        }
        let ports = self.ports(&of)?;
        let class = match self.classes_by_ports.get(&ports) {
            Some(class) => *class,
            None => {
                let class = self.next_class()?;
                let entry = |&(range, held)| Entry { of: class, range, class: held };
                self.made.ports.extend(ports.iter().map(entry));
                self.check()?;
                self.classes_by_ports.insert(ports, class);
                class
            }
        };
        self.server_classes.insert(of, class);
        Ok(class)
    }

    /// Ports of these rules, each with the value of the first rule that names the port.
    fn ports(&self, of: &[usize]) -> Result<Vec<(Range, Class)>, TooLarge> {
        let mut ports: Vec<(Range, Class)> = Vec::new();
        for ((first, last), rules) in intervals(of, |rule| &self.rules[rule].ports, self.limit)? {
            let held = rules.first().is_some_and(|rule| self.rules[*rule].held);
            let held = if held { HELD } else { 0 };
            match ports.last_mut() {
                Some((before, same)) if before.1 + 1 == first && *same == held => before.1 = last,
                _ => ports.push(((first, last), held)),
            }
        }
        Ok(ports)
    }

    fn next_class(&mut self) -> Result<Class, TooLarge> {
        self.last = self.last.checked_add(1).ok_or(TooLarge)?;
        Ok(self.last)
    }
}

/// Splits one field's values at each change in the set of rules that contain the value. Returns each range with its rules, and omits ranges
/// without rules.
fn intervals<'a>(
    rules: &[usize],
    ranges: impl Fn(usize) -> &'a [Range],
    limit: usize,
) -> Result<Vec<(Range, Vec<usize>)>, TooLarge> {
    let mut edges: Vec<(u64, bool, usize)> = Vec::new();
    for &rule in rules {
        for &(first, last) in ranges(rule) {
            edges.push((first.into(), true, rule));
            edges.push((u64::from(last) + 1, false, rule));
        }
    }
    edges.sort_unstable();
    let mut cut: Vec<(Range, Vec<usize>)> = Vec::new();
    let mut inside: BTreeMap<usize, u32> = BTreeMap::new();
    for (index, &(at, begins, rule)) in edges.iter().enumerate() {
        let count = inside.entry(rule).or_default();
        if begins {
            *count += 1;
        } else {
            *count -= 1;
            if *count == 0 {
                inside.remove(&rule);
            }
        }
        let Some(&(next, ..)) = edges.get(index + 1) else { break };
        if next == at || inside.is_empty() {
            continue;
        }
        let bound = |value: u64| u32::try_from(value).expect("an address or one past the last");
        let (first, last, of) = (bound(at), bound(next - 1), inside.keys().copied().collect::<Vec<_>>());
        match cut.last_mut() {
            Some((before, same)) if u64::from(before.1) + 1 == at && *same == of => before.1 = last,
            _ => cut.push(((first, last), of)),
        }
        if cut.len() > limit {
            return Err(TooLarge);
        }
    }
    Ok(cut)
}

/// Maximum number of attempts to find rules that fit together: each attempt takes milliseconds.
const MAX_BUILDS: usize = 32;

/// Tables for as many rules as fit into `limit` entries, and the indices of the remaining rules.
#[must_use]
pub fn fitting(rules: &[Rule], limit: usize) -> (Classifier, Vec<usize>) {
    let mut fit =
        Fit { rules, limit, builds: 0, kept: Vec::new(), left_out: Vec::new(), made: Classifier::default() };
    let every: Vec<usize> = (0..rules.len()).collect();
    fit.take(&every);
    (fit.made, fit.left_out)
}

struct Fit<'a> {
    rules: &'a [Rule],
    limit: usize,
    builds: usize,
    kept: Vec<usize>,
    left_out: Vec<usize>,
    made: Classifier,
}

impl Fit<'_> {
    /// Adds these rules. If they do not fit together, tries each half separately, in order.
    fn take(&mut self, more: &[usize]) {
        if more.is_empty() {
            return;
        }
        if self.builds == MAX_BUILDS {
            self.left_out.extend(more);
            return;
        }
        self.builds += 1;
        let together: Vec<Rule> =
            self.kept.iter().chain(more).map(|rule| self.rules[*rule].clone()).collect();
        match Classifier::build(&together, self.limit) {
            Ok(made) => {
                self.made = made;
                self.kept.extend(more);
            }
            Err(TooLarge) if more.len() == 1 => self.left_out.extend(more),
            Err(TooLarge) => {
                let (first, second) = more.split_at(more.len() / 2);
                self.take(first);
                self.take(second);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Small numbers, so that ranges overlap, touch and nest often.
    fn rule() -> impl Strategy<Value = Rule> {
        let ranges =
            || prop::collection::vec((0u32..12, 0u32..6).prop_map(|(first, n)| (first, first + n)), 1..4);
        (ranges(), ranges(), ranges(), any::<bool>()).prop_map(|(clients, servers, ports, held)| Rule {
            clients,
            servers,
            ports,
            held,
        })
    }

    fn first(rules: &[Rule], client: u32, server: u32, port: u32) -> Option<&Rule> {
        let holds =
            |ranges: &[Range], value| ranges.iter().any(|(first, last)| (*first..=*last).contains(&value));
        rules.iter().find(|r| holds(&r.clients, client) && holds(&r.servers, server) && holds(&r.ports, port))
    }

    fn named(rules: &[Rule], client: u32, server: u32, port: u32) -> bool {
        first(rules, client, server, port).is_some()
    }

    fn without_overlaps(table: &[Entry]) -> bool {
        let mut sorted = table.to_vec();
        sorted.sort_unstable();
        sorted.windows(2).all(|pair| pair[0].of != pair[1].of || pair[0].range.1 < pair[1].range.0)
    }

    proptest! {
        #[test]
        fn covers_exactly_the_flows_of_the_rules(rules in prop::collection::vec(rule(), 0..6)) {
            let made = Classifier::build(&rules, 60_000).unwrap();
            for client in 0..18u32 { for server in 0..18u32 { for port in 0..18u16 {
                prop_assert_eq!(
                    made.contains(client.into(), server.into(), port),
                    named(&rules, client, server, port.into()),
                );
                prop_assert_eq!(
                    made.holds(client.into(), server.into(), port),
                    first(&rules, client, server, port.into()).is_some_and(|rule| rule.held),
                );
            }}}
            prop_assert!([&made.clients, &made.servers, &made.ports].iter().all(|table| without_overlaps(table)));
        }

        #[test]
        fn the_tables_of_one_client_hold_its_flows_only(rules in prop::collection::vec(rule(), 0..6), client in 0..18u32) {
            let all = Classifier::build(&rules, 60_000).unwrap();
            let own = all.of_client(client.into());
            for other in 0..18u32 { for server in 0..18u32 { for port in 0..18u16 {
                let expected = if other == client { all.find(other.into(), server.into(), port) } else { None };
                prop_assert_eq!(own.find(other.into(), server.into(), port), expected);
            }}}
            prop_assert!([&own.servers, &own.ports].iter().all(|table| without_overlaps(table)));
        }

        #[test]
        fn services_of_other_clients_do_not_change_the_tables_of_a_client(
            rules in prop::collection::vec(rule(), 0..6),
            client in 0..18u32,
        ) {
            let names = |rule: &&Rule| rule.clients.iter().any(|(first, last)| (*first..=*last).contains(&client));
            let own: Vec<_> = rules.iter().filter(names).cloned().collect();
            let tables = |rules: &[Rule]| Classifier::build(rules, 60_000).unwrap().of_client(client.into());
            prop_assert_eq!(tables(&rules), tables(&own));
        }

        #[test]
        fn keeps_the_limit_and_returns_the_rules_left_out(rules in prop::collection::vec(rule(), 0..8), limit in 0usize..60) {
            let (made, left_out) = fitting(&rules, limit);
            prop_assert!(made.len() <= limit);
            let kept: Vec<_> = rules.iter().enumerate().filter(|(i, _)| !left_out.contains(i)).map(|(_, r)| r.clone()).collect();
            for client in 0..18u32 { for server in 0..18u32 { for port in 0..18u16 {
                prop_assert_eq!(
                    made.contains(client.into(), server.into(), port),
                    named(&kept, client, server, port.into()),
                );
            }}}
        }
    }

    /// Services, and the regions of those that fit (spec/node-config.md clause 11).
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Row {
        name: String,
        rules: Vec<Service>,
        limit: usize,
        regions: usize,
        left_out: Vec<usize>,
    }

    #[derive(serde::Deserialize)]
    struct Service {
        clients: Vec<Range>,
        servers: Vec<Range>,
        ports: Vec<Range>,
        held: bool,
    }

    #[test]
    fn regions_equal_the_golden_vectors() {
        let text = include_str!("../../../../../spec/vectors/arming/v1.json");
        let rows: Vec<Row> = serde_json::from_str(text).unwrap();
        assert!(rows.len() >= 10);
        for Row { name, rules, limit, regions, left_out } in rows {
            let rule = |Service { clients, servers, ports, held }| Rule { clients, servers, ports, held };
            let rules: Vec<Rule> = rules.into_iter().map(rule).collect();
            let (made, mut others) = fitting(&rules, limit);
            others.sort_unstable();
            assert_eq!((made.len(), others), (regions, left_out), "{name}");
        }
    }

    fn apart(first: u32, count: u32) -> Vec<Range> {
        (0..count).map(|i| (first + 2 * i, first + 2 * i)).collect()
    }

    #[test]
    fn a_service_takes_the_sum_of_its_lists_and_not_their_product() {
        let rule =
            Rule { clients: apart(1, 64), servers: apart(1 << 20, 64), ports: apart(5_000, 64), held: false };
        assert_eq!(Classifier::build(&[rule], 4_096).unwrap().len(), 192);
    }

    #[test]
    fn a_rule_may_cover_the_first_and_last_address() {
        let all = Rule {
            clients: vec![(0, u32::MAX)],
            servers: vec![(0, u32::MAX)],
            ports: vec![(1, 65_535)],
            held: false,
        };
        let made = Classifier::build(&[all], 10).unwrap();
        assert!(made.contains(Ipv4Addr::BROADCAST, Ipv4Addr::UNSPECIFIED, 65_535));
        assert!(!made.contains(Ipv4Addr::BROADCAST, Ipv4Addr::UNSPECIFIED, 0));
    }

    #[test]
    fn many_services_are_fitted_within_bounded_time() {
        let rules: Vec<Rule> = (0..1_000)
            .map(|i| Rule {
                clients: apart(i, 4),
                servers: apart(1 << 20, 4),
                ports: vec![(5_000 + i, 5_010 + i)],
                held: false,
            })
            .collect();
        let began = std::time::Instant::now();
        let (made, left_out) = fitting(&rules, 16_384);
        assert!(made.len() <= 16_384, "{} entries, {} left out", made.len(), left_out.len());
        assert!(began.elapsed() < std::time::Duration::from_secs(20));
    }
}
