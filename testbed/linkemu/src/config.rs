//! Specification of a link: `--link A=veth1,B=veth2,rate=500mbit,delay=29.5ms,loss=0,queue=bdp`.

use crate::units::{self, Nanos, QueueSpec, UnitError};
use std::str::FromStr;
use thiserror::Error;

/// One GSO super-frame of 64 KiB on the wire (45 packets of 1538 bytes). A `bdp` queue is never smaller: a
/// host's stack sends whole super-frames, and a smaller queue would drop the tail of each on an idle link.
pub const MIN_BDP_QUEUE_BYTES: u64 = 45 * 1538;

/// Longest interface name that Linux allows (IFNAMSIZ without the final zero).
const MAX_INTERFACE_NAME: usize = 15;

/// An invalid link specification.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ConfigError {
    /// A value has the wrong form.
    #[error("{key}: {source}")]
    Value {
        /// The key whose value is wrong.
        key: String,
        /// The error in the value.
        source: UnitError,
    },
    /// A part is not `key=value`, or the key is unknown.
    #[error(
        "{0:?}: expected key=value with key A, B, name, rate, delay, loss, queue, or a2b./b2a. before one of the last four"
    )]
    UnknownKey(String),
    /// A required key is missing.
    #[error("{0} is missing")]
    Missing(&'static str),
    /// An interface name that Linux would reject, or the same name twice.
    #[error("interface {0:?}: expected two different names of 1 to 15 characters")]
    Interface(String),
}

/// Direction of traffic through a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From interface A to interface B.
    AToB,
    /// From interface B to interface A.
    BToA,
}

impl Direction {
    /// Both directions, in the order of arrays indexed by [`Direction::index`].
    pub const BOTH: [Direction; 2] = [Direction::AToB, Direction::BToA];

    /// Index into per-direction arrays; also the index of the interface on which the emulator receives frames of this
    /// direction.
    pub const fn index(self) -> usize {
        match self {
            Direction::AToB => 0,
            Direction::BToA => 1,
        }
    }

    /// The name used on the command line and by the control protocol.
    pub const fn name(self) -> &'static str {
        match self {
            Direction::AToB => "a2b",
            Direction::BToA => "b2a",
        }
    }

    /// The direction of this name, if the name is valid.
    pub fn from_name(name: &str) -> Option<Direction> {
        Direction::BOTH.into_iter().find(|d| d.name() == name)
    }
}

/// Characteristics of one direction, as specified.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DirectionSpec {
    /// Bits per second on the wire, Ethernet framing included.
    pub rate_bps: u64,
    /// Propagation delay, one way.
    pub delay: Nanos,
    /// Probability that a packet is lost on the line after the queue.
    pub loss: f64,
    /// Limit of the queue before the serialiser.
    pub queue: QueueSpec,
}

/// A change of some characteristics of one direction; `None` keeps the current value.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct DirectionChange {
    /// New rate in bits per second.
    pub rate_bps: Option<u64>,
    /// New one-way delay.
    pub delay: Option<Nanos>,
    /// New loss probability.
    pub loss: Option<f64>,
    /// New queue limit.
    pub queue: Option<QueueSpec>,
}

impl DirectionChange {
    /// Parse `text` as the value of `key` (`rate`, `delay`, `loss` or `queue`).
    pub fn set(&mut self, key: &str, text: &str) -> Result<(), ConfigError> {
        let wrap = |source| ConfigError::Value {
            key: key.to_owned(),
            source,
        };
        match key {
            "rate" => self.rate_bps = Some(units::parse_rate(text).map_err(wrap)?),
            "delay" => self.delay = Some(units::parse_delay(text).map_err(wrap)?),
            "loss" => self.loss = Some(units::parse_loss(text).map_err(wrap)?),
            "queue" => self.queue = Some(units::parse_queue(text).map_err(wrap)?),
            _ => return Err(ConfigError::UnknownKey(key.to_owned())),
        }
        Ok(())
    }

    /// This change, completed by the values of `base`.
    pub fn or(self, base: DirectionChange) -> DirectionChange {
        DirectionChange {
            rate_bps: self.rate_bps.or(base.rate_bps),
            delay: self.delay.or(base.delay),
            loss: self.loss.or(base.loss),
            queue: self.queue.or(base.queue),
        }
    }

    /// `spec` with this change applied.
    pub fn apply(self, spec: DirectionSpec) -> DirectionSpec {
        DirectionSpec {
            rate_bps: self.rate_bps.unwrap_or(spec.rate_bps),
            delay: self.delay.unwrap_or(spec.delay),
            loss: self.loss.unwrap_or(spec.loss),
            queue: self.queue.unwrap_or(spec.queue),
        }
    }
}

/// A link between two interfaces.
#[derive(Debug, Clone, PartialEq)]
pub struct LinkSpec {
    /// Name in the control protocol; `A-B` of the interfaces by default.
    pub name: String,
    /// Interfaces A and B.
    pub ends: [String; 2],
    /// Characteristics, indexed by [`Direction::index`].
    pub directions: [DirectionSpec; 2],
}

/// The queue limit in wire bytes of `direction` within a link of these directions.
///
/// `Bdp` uses the delays of both directions, because a sender's window must fill the round trip.
pub fn queue_bytes(directions: &[DirectionSpec; 2], direction: Direction) -> u64 {
    let spec = &directions[direction.index()];
    let drained_in = |time: Nanos| {
        let bytes = u128::from(spec.rate_bps) * u128::from(time) / 8 / u128::from(units::SECOND);
        u64::try_from(bytes).unwrap_or(u64::MAX)
    };
    match spec.queue {
        QueueSpec::Bytes(bytes) => bytes,
        QueueSpec::Time(time) => drained_in(time),
        QueueSpec::Bdp => {
            let round_trip = directions[0].delay + directions[1].delay;
            drained_in(round_trip).max(MIN_BDP_QUEUE_BYTES)
        }
    }
}

#[derive(Default)]
struct LinkParts {
    name: Option<String>,
    ends: [Option<String>; 2],
    common: DirectionChange,
    own: [DirectionChange; 2],
}

impl LinkParts {
    fn take(&mut self, part: &str) -> Result<(), ConfigError> {
        let (key, value) = part
            .split_once('=')
            .ok_or_else(|| ConfigError::UnknownKey(part.to_owned()))?;
        match key {
            "A" => self.ends[0] = Some(value.to_owned()),
            "B" => self.ends[1] = Some(value.to_owned()),
            "name" => self.name = Some(value.to_owned()),
            _ => match key.split_once('.') {
                Some((prefix, rest)) => {
                    let direction = Direction::from_name(prefix)
                        .ok_or_else(|| ConfigError::UnknownKey(key.to_owned()))?;
                    self.own[direction.index()].set(rest, value)?;
                }
                None => self.common.set(key, value)?,
            },
        }
        Ok(())
    }

    fn direction(&self, direction: Direction) -> Result<DirectionSpec, ConfigError> {
        let merged = self.own[direction.index()].or(self.common);
        Ok(DirectionSpec {
            rate_bps: merged.rate_bps.ok_or(ConfigError::Missing("rate"))?,
            delay: merged.delay.unwrap_or(0),
            loss: merged.loss.unwrap_or(0.0),
            queue: merged.queue.unwrap_or(QueueSpec::Bdp),
        })
    }
}

fn checked_ends(ends: [Option<String>; 2]) -> Result<[String; 2], ConfigError> {
    let [a, b] = ends;
    let a = a.ok_or(ConfigError::Missing("A"))?;
    let b = b.ok_or(ConfigError::Missing("B"))?;
    for end in [&a, &b] {
        let fits = (1..=MAX_INTERFACE_NAME).contains(&end.len());
        if !fits || end.contains(['/', ' ', '\0']) {
            return Err(ConfigError::Interface(end.clone()));
        }
    }
    if a == b {
        return Err(ConfigError::Interface(b));
    }
    Ok([a, b])
}

impl FromStr for LinkSpec {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<LinkSpec, ConfigError> {
        let mut parts = LinkParts::default();
        for part in text.split(',') {
            parts.take(part)?;
        }
        let directions = [
            parts.direction(Direction::AToB)?,
            parts.direction(Direction::BToA)?,
        ];
        let ends = checked_ends(parts.ends)?;
        let name = parts
            .name
            .unwrap_or_else(|| format!("{}-{}", ends[0], ends[1]));
        Ok(LinkSpec {
            name,
            ends,
            directions,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(text: &str) -> Result<LinkSpec, ConfigError> {
        text.parse()
    }

    #[test]
    fn a_value_applies_to_both_directions_unless_overridden() -> Result<(), ConfigError> {
        let spec = link("A=w0,B=e0,rate=500mbit,delay=29.5ms,loss=1%,queue=50ms,b2a.rate=1gbit")?;
        assert_eq!(spec.name, "w0-e0");
        assert_eq!(spec.directions[0].rate_bps, 500_000_000);
        assert_eq!(spec.directions[1].rate_bps, 1_000_000_000);
        assert_eq!(spec.directions[1].delay, 29_500_000);
        assert_eq!(spec.directions[1].loss, 0.01);
        assert_eq!(queue_bytes(&spec.directions, Direction::AToB), 3_125_000);
        assert_eq!(queue_bytes(&spec.directions, Direction::BToA), 6_250_000);
        Ok(())
    }

    #[test]
    fn a_bdp_queue_uses_both_delays_and_holds_a_super_frame() -> Result<(), ConfigError> {
        let long = link("name=l,A=a,B=b,rate=1gbit,a2b.delay=20ms,b2a.delay=30ms")?;
        assert_eq!(queue_bytes(&long.directions, Direction::AToB), 6_250_000);
        let short = link("A=a,B=b,rate=1gbit")?;
        let queue = queue_bytes(&short.directions, Direction::AToB);
        assert_eq!(queue, MIN_BDP_QUEUE_BYTES);
        Ok(())
    }

    #[test]
    fn errors_name_the_invalid_part() {
        for (text, needle) in [
            ("A=a,rate=1gbit", "B"),
            ("A=a,B=b", "rate"),
            ("A=a,B=a,rate=1gbit", "\"a\""),
            ("A=a,B=b,rate=1gbit,speed=3", "speed"),
            ("A=a,B=b,rate=1gbit,c2d.rate=1gbit", "c2d.rate"),
            ("A=a,B=b,rate=1gbit,delay=soon", "soon"),
            (
                "A=a,B=interfacenametoolong,rate=1gbit",
                "interfacenametoolong",
            ),
            ("", ""),
        ] {
            let message = link(text).map_err(|e| e.to_string());
            assert!(
                message.as_ref().is_err_and(|m| m.contains(needle)),
                "{text}: {message:?}"
            );
        }
    }
}
