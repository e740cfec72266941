//! Parsers of quantities: `500mbit`, `29.5ms`, `1%`, `bdp`.
//!
//! Every parser's [`UnitError`] contains the text, so that the error of an invalid `--link` names the value.

use thiserror::Error;

/// Nanoseconds: a duration, or an instant since an arbitrary start.
pub type Nanos = u64;

/// One millisecond.
pub const MILLISECOND: Nanos = 1_000_000;
/// One second.
pub const SECOND: Nanos = 1_000_000_000;

/// Minimum rate: at a lower rate, one packet would take longer than a test.
const MIN_RATE_BPS: f64 = 1_000.0;
/// Maximum rate: far above the capacity of one thread; prevents overflow of picosecond arithmetic.
const MAX_RATE_BPS: f64 = 400e9;
/// Maximum one-way delay, a minute: far above any terrestrial path. Bounds the memory of the delay line.
const MAX_DELAY_NS: f64 = 60e9;
/// Maximum queue: a queue of more than 4 GiB is a typing error.
const MAX_QUEUE_BYTES: f64 = 4.0 * 1024.0 * 1024.0 * 1024.0;

/// An invalid quantity.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum UnitError {
    /// The text is not a number followed by a known unit.
    #[error("{what} {text:?}: expected {expected}")]
    Malformed {
        /// The quantity ("rate", ...).
        what: &'static str,
        /// The text as given.
        text: String,
        /// An example of the right form.
        expected: &'static str,
    },
    /// The number is outside the emulator's range.
    #[error("{what} {text:?} is out of range ({range})")]
    OutOfRange {
        /// The quantity.
        what: &'static str,
        /// The text as given.
        text: String,
        /// The allowed range.
        range: &'static str,
    },
}

/// Limit of the drop-tail queue in front of the serialiser.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueSpec {
    /// Rate times round-trip delay of the link, at least one super-frame.
    Bdp,
    /// Wire bytes.
    Bytes(u64),
    /// The bytes that the rate drains in this time.
    Time(Nanos),
}

/// Splits `12.5ms` into `12.5` and `ms`.
fn number_and_unit(text: &str) -> Option<(f64, &str)> {
    let split = text
        .find(|c: char| !(c.is_ascii_digit() || c == '.'))
        .unwrap_or(text.len());
    let number: f64 = text[..split].parse().ok()?;
    number.is_finite().then_some((number, &text[split..]))
}

fn quantity(
    what: &'static str,
    expected: &'static str,
    text: &str,
    scale: impl Fn(&str) -> Option<f64>,
) -> Result<f64, UnitError> {
    number_and_unit(text.trim())
        .and_then(|(number, unit)| scale(unit).map(|factor| number * factor))
        .ok_or_else(|| UnitError::Malformed {
            what,
            text: text.to_owned(),
            expected,
        })
}

fn within(
    what: &'static str,
    range: &'static str,
    text: &str,
    value: f64,
    bounds: (f64, f64),
) -> Result<f64, UnitError> {
    if (bounds.0..=bounds.1).contains(&value) {
        return Ok(value);
    }
    Err(UnitError::OutOfRange {
        what,
        text: text.to_owned(),
        range,
    })
}

fn time_unit(unit: &str) -> Option<f64> {
    match unit {
        "ns" => Some(1.0),
        "us" => Some(1e3),
        "ms" => Some(1e6),
        "s" => Some(1e9),
        _ => None,
    }
}

/// A rate in bits per second: `500mbit`, `1.5gbit`, `64kbit`, `9600bit` (powers of ten, as in `tc`).
pub fn parse_rate(text: &str) -> Result<u64, UnitError> {
    let value = quantity(
        "rate",
        "a number and bit, kbit, mbit or gbit",
        text,
        |u| match u {
            "bit" => Some(1.0),
            "kbit" => Some(1e3),
            "mbit" => Some(1e6),
            "gbit" => Some(1e9),
            _ => None,
        },
    )?;
    let bounds = (MIN_RATE_BPS, MAX_RATE_BPS);
    Ok(within("rate", "1kbit to 400gbit", text, value, bounds)?.round() as u64)
}

/// A length of time: `29.5ms`, `200us`, `1s`; a bare `0` is allowed.
pub fn parse_delay(text: &str) -> Result<Nanos, UnitError> {
    let unit = |u: &str| {
        if u.is_empty() && text.trim() == "0" {
            Some(0.0)
        } else {
            time_unit(u)
        }
    };
    let value = quantity("delay", "a number and ns, us, ms or s", text, unit)?;
    Ok(within("delay", "0 to 60s", text, value, (0.0, MAX_DELAY_NS))?.round() as Nanos)
}

/// A loss probability: `0.01` or `1%`.
pub fn parse_loss(text: &str) -> Result<f64, UnitError> {
    let value = quantity(
        "loss",
        "a fraction (0.01) or per cent (1%)",
        text,
        |u| match u {
            "" => Some(1.0),
            "%" => Some(0.01),
            _ => None,
        },
    )?;
    within("loss", "0 to 1", text, value, (0.0, 1.0))
}

/// A queue limit: `bdp`, `50ms`, or bytes (`750000`, `1mb`, `512kib`).
pub fn parse_queue(text: &str) -> Result<QueueSpec, UnitError> {
    const EXPECTED: &str = "bdp, a time (50ms) or bytes (750000, 1mb, 512kib)";
    if text.trim() == "bdp" {
        return Ok(QueueSpec::Bdp);
    }
    let is_time = number_and_unit(text.trim()).is_some_and(|(_, u)| time_unit(u).is_some());
    if is_time {
        return parse_delay(text).map(QueueSpec::Time);
    }
    let value = quantity("queue", EXPECTED, text, |u| match u {
        "" | "b" => Some(1.0),
        "kb" => Some(1e3),
        "mb" => Some(1e6),
        "kib" => Some(1024.0),
        "mib" => Some(1024.0 * 1024.0),
        _ => None,
    })?;
    let bytes = within("queue", "0 to 4 GiB", text, value, (0.0, MAX_QUEUE_BYTES))?;
    Ok(QueueSpec::Bytes(bytes.round() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_parsed_as_by_tc() {
        assert_eq!(parse_rate("500mbit"), Ok(500_000_000));
        assert_eq!(parse_rate("1.5gbit"), Ok(1_500_000_000));
        assert_eq!(parse_delay("29.5ms"), Ok(29_500_000));
        assert_eq!(parse_delay("0"), Ok(0));
        assert_eq!(parse_loss("1%"), Ok(0.01));
        assert_eq!(parse_loss("0.01"), Ok(0.01));
        assert_eq!(parse_queue("bdp"), Ok(QueueSpec::Bdp));
        assert_eq!(parse_queue("750000"), Ok(QueueSpec::Bytes(750_000)));
        assert_eq!(parse_queue("1mb"), Ok(QueueSpec::Bytes(1_000_000)));
        assert_eq!(parse_queue("50ms"), Ok(QueueSpec::Time(50_000_000)));
    }

    #[test]
    fn an_invalid_quantity_is_refused_with_its_text() {
        for (message, text) in [
            (parse_rate("fast").map(|_| ()), "fast"),
            (parse_rate("500").map(|_| ()), "500"),
            (parse_rate("0mbit").map(|_| ()), "0mbit"),
            (parse_delay("10").map(|_| ()), "10"),
            (parse_delay("-1ms").map(|_| ()), "-1ms"),
            (parse_loss("2").map(|_| ()), "2"),
            (parse_queue("1e99999mb").map(|_| ()), "1e99999mb"),
        ] {
            let error = message.map_err(|e| e.to_string());
            assert!(error.as_ref().is_err_and(|e| e.contains(text)), "{error:?}");
        }
    }
}
