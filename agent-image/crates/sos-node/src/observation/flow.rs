//! Flow entries in the text format of ovs-ofctl(8).
//!
//! Open vSwitch normalises matches and actions when it prints them (`dl_type=0x0800` becomes `ip`). The entries of a
//! node-config go through `ovs-ofctl parse-flows` once, which prints them with the same code that prints a switch's
//! table; after that, equal entries have equal text.

use std::fmt;

use sos_daemon::document::ConfigError;

use crate::config::NodeConfig;

/// High 32 bits of the cookie of every base entry; the low 32 bits are those of the config's hash (spec/node-config.md clause 3).
pub const BASE_COOKIE: u64 = 0x534f_0001_0000_0000;
/// Cookie mask that selects base entries.
pub const BASE_COOKIE_MASK: u64 = 0xffff_ffff_0000_0000;
/// Kind 3 in a cookie: session entries of controllers (spec/node-config.md clause 8).
pub const REDIRECT_COOKIE: u64 = 0x534f_0000_0300_0000;
/// Cookie mask that selects session entries of any controller, epoch and number.
pub const REDIRECT_COOKIE_MASK: u64 = 0xffff_0000_ff00_0000;
/// Priority of an entry whose text has none (OpenFlow's default).
const DEFAULT_PRIORITY: u16 = 32_768;

/// Identity of an entry within a switch: adding an entry with the same key replaces the old one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct FlowKey {
    /// The flow table.
    pub table: u8,
    /// The priority.
    pub priority: u16,
    /// The match, as Open vSwitch prints it.
    pub matches: String,
}

impl fmt::Display for FlowKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "table={},priority={}", self.table, self.priority)?;
        if !self.matches.is_empty() {
            write!(out, ",{}", self.matches)?;
        }
        Ok(())
    }
}

/// An entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flow {
    /// Its identity.
    pub key: FlowKey,
    /// Its cookie, which names the owner.
    pub cookie: u64,
    /// Its actions, as Open vSwitch prints them.
    pub actions: String,
}

impl Flow {
    /// True for base entries, of this config or an older one.
    #[must_use]
    pub fn is_base(&self) -> bool {
        self.cookie & BASE_COOKIE_MASK == BASE_COOKIE
    }
}

/// A line not in the format of ovs-ofctl.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unexpected line of ovs-ofctl: `{0}`")]
pub struct FlowParseError(String);

/// The cookie of a config's base entries.
#[must_use]
pub fn base_cookie(config: &NodeConfig) -> u64 {
    BASE_COOKIE | u64::from(config.hash_low())
}

/// The base entries of a config as input for ovs-ofctl, one per line.
#[must_use]
pub fn encode_base_flows(config: &NodeConfig) -> String {
    let cookie = base_cookie(config);
    let line = |flow: &crate::config::BaseFlow| {
        let (matches, actions) = (flow.r#match.as_str(), flow.actions.as_str());
        format!(
            "table={},priority={},cookie={cookie:#x},{matches} actions={actions}\n",
            flow.table, flow.priority
        )
    };
    config.base_flows.iter().map(line).collect()
}

/// Parse the output of `ovs-ofctl parse-flows` for [`encode_base_flows`], and check that each entry still has the table and cookie of the
/// config (a match text could contain another table or cookie).
///
/// # Errors
/// An entry's table or cookie has changed, or two entries have the same key.
pub fn parse_base_flows(config: &NodeConfig, printed: &str) -> Result<Vec<Flow>, ConfigError> {
    let lines = printed.lines().filter(|line| line.contains("FLOW_MOD"));
    let flows: Vec<Flow> = lines
        .map(parse_flow_mod)
        .collect::<Result<_, _>>()
        .map_err(|e| ConfigError::new("baseFlows", e.to_string()))?;
    if flows.len() != config.base_flows.len() {
        let message = format!("{} entries given, {} understood", config.base_flows.len(), flows.len());
        return Err(ConfigError::new("baseFlows", message));
    }
    let mut seen = std::collections::BTreeSet::new();
    for (i, (flow, given)) in flows.iter().zip(&config.base_flows).enumerate() {
        let place = (flow.key.table, flow.key.priority, flow.cookie);
        if place != (given.table, given.priority, base_cookie(config)) {
            let message = "names a table, a priority or a cookie of its own";
            return Err(ConfigError::new(format!("baseFlows[{i}].match"), message));
        }
        if !seen.insert(&flow.key) {
            return Err(ConfigError::new(
                format!("baseFlows[{i}]"),
                format!("`{}` is there twice", flow.key),
            ));
        }
    }
    Ok(flows)
}

/// `OFPT_FLOW_MOD (OF1.3) (xid=0x1): ADD table:1 priority=0 cookie:0x1 actions=NORMAL`
fn parse_flow_mod(line: &str) -> Result<Flow, FlowParseError> {
    let wrong = || FlowParseError(line.to_owned());
    let (_, command) = line.split_once("): ADD ").ok_or_else(wrong)?;
    let (head, actions) = command.split_once(" actions=").ok_or_else(wrong)?;
    let (head, cookie) = head.split_once(" cookie:").unwrap_or((head, "0"));
    let (table, matches) = match head.strip_prefix("table:") {
        Some(rest) => rest.split_once(' ').unwrap_or((rest, "")),
        None => ("0", head),
    };
    let cookie = parse_hex(cookie.split(' ').next().unwrap_or("")).ok_or_else(wrong)?;
    let table = table.parse().map_err(|_| wrong())?;
    let (priority, matches) = split_priority(matches.trim()).ok_or_else(wrong)?;
    let key = FlowKey { table, priority, matches: matches.to_owned() };
    Ok(Flow { key, cookie, actions: actions.to_owned() })
}

/// Parse the output of `ovs-ofctl --no-stats --no-names dump-flows`.
///
/// # Errors
/// A line is not an entry.
pub fn parse_dump(printed: &str) -> Result<Vec<Flow>, FlowParseError> {
    // Only entries have a cookie; reply headers and empty lines have none.
    printed.lines().filter(|line| line.contains("cookie=")).map(parse_dumped).collect()
}

/// ` cookie=0x1, table=1, idle_timeout=5, send_flow_rem priority=7,in_port=2 actions=drop`
fn parse_dumped(line: &str) -> Result<Flow, FlowParseError> {
    let wrong = || FlowParseError(line.to_owned());
    let (head, actions) = line.split_once("actions=").ok_or_else(wrong)?;
    let (mut cookie, mut table, mut rest) = (None, Some(0), "");
    for part in head.trim().split(", ") {
        if let Some(text) = part.strip_prefix("cookie=") {
            cookie = parse_hex(text.trim_end_matches(','));
        } else if let Some(text) = part.strip_prefix("table=") {
            table = text.trim_end_matches(',').parse().ok();
        } else {
            rest = part;
        }
    }
    // Flags such as send_flow_rem precede the match, which contains no spaces. If an entry has neither priority nor match, the last part is
    // a timeout or `importance`, not a match.
    let last = rest.split(' ').next_back().unwrap_or("");
    let matches = if last.contains("_timeout=") || last.starts_with("importance=") { "" } else { last };
    let (priority, matches) = split_priority(matches.trim_end_matches(',')).ok_or_else(wrong)?;
    let key = FlowKey { table: table.ok_or_else(wrong)?, priority, matches: matches.to_owned() };
    Ok(Flow { key, cookie: cookie.ok_or_else(wrong)?, actions: actions.to_owned() })
}

fn split_priority(text: &str) -> Option<(u16, &str)> {
    let Some(rest) = text.strip_prefix("priority=") else { return Some((DEFAULT_PRIORITY, text)) };
    let (number, matches) = rest.split_once(',').unwrap_or((rest, ""));
    Some((number.parse().ok()?, matches))
}

fn parse_hex(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(table: u8, priority: u16, matches: &str, cookie: u64, actions: &str) -> Flow {
        Flow { key: FlowKey { table, priority, matches: matches.into() }, cookie, actions: actions.into() }
    }

    #[test]
    fn parses_the_entries_of_a_switch() {
        let text = " cookie=0x534f00010a0b0c0d, table=1, priority=1000,in_port=2 actions=drop\n \
                    cookie=0x0, hard_timeout=5, send_flow_rem priority=30000,tcp,tcp_flags=+syn-ack actions=CONTROLLER:65535\n \
                    cookie=0x7, actions=NORMAL\n \
                    cookie=0x8, table=1, idle_timeout=9, actions=NORMAL\n \
                    cookie=0x9, in_port=3 actions=drop\n";
        let expected = vec![
            flow(1, 1000, "in_port=2", 0x534f_0001_0a0b_0c0d, "drop"),
            flow(0, 30_000, "tcp,tcp_flags=+syn-ack", 0, "CONTROLLER:65535"),
            flow(0, 32_768, "", 7, "NORMAL"),
            flow(1, 32_768, "", 8, "NORMAL"),
            flow(0, 32_768, "in_port=3", 9, "drop"),
        ];
        assert_eq!(parse_dump(text), Ok(expected));
    }

    #[test]
    fn parses_flow_mods() {
        let line = "OFPT_FLOW_MOD (OF1.3) (xid=0x8): ADD table:1 priority=0 cookie:0x5 actions=NORMAL";
        assert_eq!(parse_flow_mod(line), Ok(flow(1, 0, "", 5, "NORMAL")));
        let line = "OFPT_FLOW_MOD (OF1.3) (xid=0x1): ADD priority=9,dl_dst=02:53:00:00:00:01 cookie:0x5 idle:3 actions=drop";
        assert_eq!(parse_flow_mod(line), Ok(flow(0, 9, "dl_dst=02:53:00:00:00:01", 5, "drop")));
    }

    #[test]
    fn malformed_entries_are_an_error() {
        assert!(parse_dump(" cookie=0x1, table=1000, priority=1 actions=drop").is_err());
        assert!(parse_dump(" cookie=zz, priority=1 actions=drop").is_err());
        assert!(parse_dump(" cookie=0x1, priority=70000 actions=drop").is_err());
    }
}
