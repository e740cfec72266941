//! CPU time of the measured process, from /proc (proc(5)).

use std::fs;
use std::io;

/// Clock ticks per second; the same on every supported Linux (USER_HZ).
const TICKS: f64 = 100.0;

/// CPU time (user and system) of all threads of a process so far, in seconds.
///
/// # Errors
/// The process does not exist, or its /proc/PID/stat cannot be read.
pub fn cpu_seconds(pid: u32) -> io::Result<f64> {
    let line = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    parse(&line).ok_or_else(|| io::Error::other(format!("/proc/{pid}/stat cannot be read")))
}

/// Sum of utime and stime, fields 14 and 15. The preceding process name may contain any character, but ends at the last parenthesis.
fn parse(line: &str) -> Option<f64> {
    let (_, rest) = line.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace().skip(11).map(str::parse::<f64>);
    Some((fields.next()?.ok()? + fields.next()?.ok()?) / TICKS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_name_with_parentheses_is_parsed() {
        let line = "12 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 250 50 0 0 20 0";
        assert_eq!(parse(line), Some(3.0));
        assert_eq!(parse("nonsense"), None);
    }

    #[test]
    fn cpu_time_of_the_test_process_is_readable() {
        assert!(cpu_seconds(std::process::id()).expect("we are there") >= 0.0);
    }
}
