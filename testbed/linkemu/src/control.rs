//! The control protocol: one JSON object per line as request, and one per line as answer (pure).
//!
//! Requests: `{"op":"stats"}`, `{"op":"set","link":L,"direction":D,"rate":"100mbit",...}`, `{"op":"down",...}`,
//! `{"op":"up",...}`. `direction` is `a2b` or `b2a`; the default is both directions. The default of `link` is all
//! links. Answers have `"ok":true` and for `stats` the links, or `"ok":false` and `error`.

use crate::config::{ConfigError, Direction, DirectionChange};
use crate::link::Link;
use crate::stats::DirectionStats;
use crate::units::Nanos;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use thiserror::Error;

/// Maximum size of an incomplete request line; a client that exceeds it is disconnected.
pub const MAX_LINE: usize = 4096;

/// Reason for rejecting a request.
#[derive(Debug, Error)]
pub enum ControlError {
    /// Not JSON, or a field missing, unknown or of the wrong type.
    #[error("request: {0}")]
    Malformed(#[from] serde_json::Error),
    /// Unknown link.
    #[error("link: {0:?} is not one of {1}")]
    UnknownLink(String, String),
    /// A value has the wrong form.
    #[error(transparent)]
    Value(#[from] ConfigError),
    /// A `set` without a value.
    #[error("set: expected at least one of rate, delay, loss, queue")]
    NothingToSet,
}

#[derive(Debug, Clone, Copy, Deserialize)]
enum DirectionName {
    #[serde(rename = "a2b")]
    AToB,
    #[serde(rename = "b2a")]
    BToA,
}

impl From<DirectionName> for Direction {
    fn from(name: DirectionName) -> Direction {
        match name {
            DirectionName::AToB => Direction::AToB,
            DirectionName::BToA => Direction::BToA,
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Target {
    link: Option<String>,
    direction: Option<DirectionName>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Set {
    link: Option<String>,
    direction: Option<DirectionName>,
    rate: Option<String>,
    delay: Option<String>,
    loss: Option<Value>,
    queue: Option<Value>,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase", deny_unknown_fields)]
enum Request {
    Stats {},
    Set(Set),
    Down(Target),
    Up(Target),
}

/// Access to the statistics of the interfaces, which a [`Link`] does not have.
pub trait EdgeView {
    /// Add the counters of the interfaces of link `index` for `direction` to `stats`.
    fn complete(&mut self, index: usize, direction: Direction, stats: &mut DirectionStats);
    /// True if the interface at `end` (0 for A, 1 for B) of link `index` exists and is up.
    fn attached(&self, index: usize, end: usize) -> bool;
}

/// Execute the request in `line` at `now`; returns the answer.
pub fn answer(line: &str, now: Nanos, links: &mut [Link], edge: &mut dyn EdgeView) -> Value {
    match carry_out(line, now, links, edge) {
        Ok(value) => value,
        Err(error) => json!({"ok": false, "error": error.to_string()}),
    }
}

fn carry_out(
    line: &str,
    now: Nanos,
    links: &mut [Link],
    edge: &mut dyn EdgeView,
) -> Result<Value, ControlError> {
    match serde_json::from_str(line)? {
        Request::Stats {} => return Ok(statistics(now, links, edge)),
        Request::Set(set) => {
            let change = set.change()?;
            let which = set.direction.map(Direction::from);
            for link in chosen(links, set.link.as_deref())? {
                link.change(now, which, change);
            }
        }
        Request::Down(target) => target.set_down(links, true)?,
        Request::Up(target) => target.set_down(links, false)?,
    }
    Ok(json!({"ok": true}))
}

impl Target {
    fn set_down(self, links: &mut [Link], down: bool) -> Result<(), ControlError> {
        let which = self.direction.map(Direction::from);
        for link in chosen(links, self.link.as_deref())? {
            link.set_down(which, down);
        }
        Ok(())
    }
}

impl Set {
    fn change(&self) -> Result<DirectionChange, ControlError> {
        let mut change = DirectionChange::default();
        let text = |value: &Value| match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let values = [
            ("rate", self.rate.clone()),
            ("delay", self.delay.clone()),
            ("loss", self.loss.as_ref().map(text)),
            ("queue", self.queue.as_ref().map(text)),
        ];
        for (key, value) in &values {
            if let Some(value) = value {
                change.set(key, value)?;
            }
        }
        if change == DirectionChange::default() {
            return Err(ControlError::NothingToSet);
        }
        Ok(change)
    }
}

/// The named link, or all links.
fn chosen<'a>(links: &'a mut [Link], name: Option<&str>) -> Result<&'a mut [Link], ControlError> {
    let Some(name) = name else {
        return Ok(links);
    };
    match links.iter().position(|link| link.name() == name) {
        Some(index) => Ok(&mut links[index..=index]),
        None => {
            let known: Vec<&str> = links.iter().map(Link::name).collect();
            Err(ControlError::UnknownLink(name.to_owned(), known.join(", ")))
        }
    }
}

/// Statistics of all links, as in the answer to `stats`.
pub fn statistics(now: Nanos, links: &[Link], edge: &mut dyn EdgeView) -> Value {
    let links: Vec<Value> = links
        .iter()
        .enumerate()
        .map(|(index, link)| link_statistics(now, index, link, edge))
        .collect();
    json!({"ok": true, "links": links})
}

fn link_statistics(now: Nanos, index: usize, link: &Link, edge: &mut dyn EdgeView) -> Value {
    let mut fields = Map::new();
    fields.insert("name".to_owned(), json!(link.name()));
    for (end, key) in ["a", "b"].into_iter().enumerate() {
        let interface =
            json!({"interface": link.ends()[end], "attached": edge.attached(index, end)});
        fields.insert(key.to_owned(), interface);
    }
    for direction in Direction::BOTH {
        let mut stats = link.stats(now, direction);
        edge.complete(index, direction, &mut stats);
        let shaper = link.shaper(direction);
        let view = json!({
            "rate_bps": shaper.shape().rate_bps,
            "delay_us": shaper.shape().delay / 1_000,
            "loss": shaper.shape().loss,
            "down": shaper.is_down(),
            "stats": stats,
        });
        fields.insert(direction.name().to_owned(), view);
    }
    Value::Object(fields)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shaper::Limits;

    struct NoEdge;

    impl EdgeView for NoEdge {
        fn complete(&mut self, _: usize, _: Direction, stats: &mut DirectionStats) {
            stats.dropped.socket = 7;
        }
        fn attached(&self, _: usize, end: usize) -> bool {
            end == 0
        }
    }

    fn links() -> Vec<Link> {
        let limits = Limits {
            run_time: 1_000_000,
            coalesce: true,
            max_held_bytes: 1 << 20,
        };
        [
            "name=one,A=a,B=b,rate=1gbit,delay=5ms",
            "name=two,A=c,B=d,rate=1gbit",
        ]
        .iter()
        .enumerate()
        .map(|(i, text)| Link::new(text.parse().unwrap(), i, limits, 1))
        .collect()
    }

    fn ask(links: &mut [Link], line: &str) -> Value {
        answer(line, 0, links, &mut NoEdge)
    }

    #[test]
    fn set_changes_the_named_link_and_direction_only() {
        let mut links = links();
        let reply = ask(
            &mut links,
            r#"{"op":"set","link":"one","direction":"b2a","rate":"100mbit","loss":0.5}"#,
        );
        assert_eq!(reply, json!({"ok": true}));
        let rates = |i: usize| Direction::BOTH.map(|d| links[i].shaper(d).shape().rate_bps);
        assert_eq!(rates(0), [1_000_000_000, 100_000_000]);
        assert_eq!(rates(1), [1_000_000_000, 1_000_000_000]);
        assert_eq!(links[0].shaper(Direction::BToA).shape().loss, 0.5);
        // The queue `bdp` follows the rate: 100 Mbit/s times 10 ms.
        assert_eq!(
            links[0].shaper(Direction::BToA).shape().queue_bytes,
            125_000
        );
    }

    #[test]
    fn statistics_show_down_and_up() {
        let mut links = links();
        ask(&mut links, r#"{"op":"down","link":"two"}"#);
        let reply = ask(&mut links, r#"{"op":"stats"}"#);
        assert_eq!(reply["links"][0]["a2b"]["down"], json!(false));
        assert_eq!(reply["links"][1]["a2b"]["down"], json!(true));
        assert_eq!(
            reply["links"][1]["b2a"]["stats"]["dropped"]["socket"],
            json!(7)
        );
        assert_eq!(reply["links"][1]["b"]["attached"], json!(false));
        ask(&mut links, r#"{"op":"up"}"#);
        let reply = ask(&mut links, r#"{"op":"stats"}"#);
        assert_eq!(reply["links"][1]["a2b"]["down"], json!(false));
    }

    #[test]
    fn errors_name_the_reason() {
        let mut links = links();
        for (line, needle) in [
            ("not json", "request"),
            (r#"{"op":"fly"}"#, "fly"),
            (r#"{"op":"down","link":"three"}"#, "one, two"),
            (r#"{"op":"set","link":"one"}"#, "at least one"),
            (r#"{"op":"set","link":"one","rate":"fast"}"#, "fast"),
            (r#"{"op":"set","link":"one","speed":"1gbit"}"#, "speed"),
            (r#"{"op":"up","direction":"both"}"#, "both"),
        ] {
            let reply = ask(&mut links, line);
            assert_eq!(reply["ok"], json!(false));
            assert!(reply["error"].as_str().unwrap().contains(needle), "{reply}");
        }
    }
}
