//! Verdict on two downloads between the same hosts: one covered by a service, and one plain. Pure.

use crate::transfer::Report;

/// A download, and its session at a controller.
#[derive(Debug, Default)]
pub struct Download {
    /// The server's port.
    pub port: u16,
    /// Its outcome.
    pub report: Report,
    /// True if the controller had a session for the download; `None` without a query or an answer.
    pub listed: Option<bool>,
}

/// Criteria of the verdict.
#[derive(Debug, Clone, Copy)]
pub struct Measure {
    /// Minimum gain: the verdict is FAILED if the service is slower than plain TCP times this factor.
    pub least_gain: f64,
    /// True if a controller was to be queried for sessions.
    pub asked: bool,
}

/// The lines to print, and the result.
#[derive(Debug)]
pub struct Verdict {
    /// Lines; the last one is `passed` or `FAILED`.
    pub lines: Vec<String>,
    /// True if the verdict is `passed`.
    pub good: bool,
}

impl Download {
    /// Goodput in Mbit/s.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "no transfer has 2^52 bytes")]
    pub fn mbps(&self) -> f64 {
        if self.report.seconds > 0.0 {
            self.report.bytes as f64 * 8.0 / 1e6 / self.report.seconds
        } else {
            0.0
        }
    }

    fn line(&self, name: &str) -> String {
        let Report { bytes, seconds, failure, .. } = &self.report;
        let state = failure.unwrap_or("intact");
        format!(
            "{name:8}port {:<6}{bytes:>12} bytes in {seconds:.1} s, {:.1} Mbit/s, {state}",
            self.port,
            self.mbps()
        )
    }

    fn wrong(&self) -> Vec<String> {
        let Report { ok, bytes, own, seen, failure, detail, .. } = &self.report;
        let mut found = Vec::new();
        if !ok {
            found.push(format!("it is {}: {detail}", failure.unwrap_or("error")));
        } else if *bytes == 0 {
            found.push("no bytes arrived".to_owned());
        }
        if !own.is_empty() && !seen.is_empty() && own != seen {
            found.push(format!("the server saw {seen}, the client is {own}"));
        }
        found.into_iter().map(|what| format!("port {}: {what}", self.port)).collect()
    }
}

/// Judge a plain download and, if there is one, a download that a service covers.
#[must_use]
pub fn judge(plain: &Download, covered: Option<&Download>, measure: Measure) -> Verdict {
    let mut lines = vec![plain.line("plain")];
    let mut wrong = plain.wrong();
    if plain.listed == Some(true) {
        wrong.push(format!(
            "port {} is accelerated: name a port that no SosService covers (test.plainPort)",
            plain.port
        ));
    }
    match covered {
        Some(covered) => compare(plain, covered, measure, &mut lines, &mut wrong),
        None => lines.push(
            "no port of a SosService was named (test.port): nothing was accelerated, and nothing compared"
                .to_owned(),
        ),
    }
    let good = wrong.is_empty();
    lines.extend(wrong.into_iter().map(|what| format!("wrong: {what}")));
    lines.push(if good { "passed" } else { "FAILED" }.to_owned());
    Verdict { lines, good }
}

fn compare(
    plain: &Download,
    covered: &Download,
    measure: Measure,
    lines: &mut Vec<String>,
    wrong: &mut Vec<String>,
) {
    let port = covered.port;
    lines.push(covered.line("service"));
    wrong.extend(covered.wrong());
    match covered.listed {
        _ if !measure.asked => {
            lines.push(
                "no controller was asked about the second download, so its acceleration is unknown"
                    .to_owned(),
            );
        }
        Some(true) => {}
        Some(false) => wrong.push(format!(
            "port {port} was not accelerated: no controller listed a session (kubectl get sossvc -A says why)"
        )),
        None if !covered.report.ok => {} // the connection may not have been opened at all
        None => wrong.push(format!(
            "port {port}: the controller did not answer, so its acceleration is unknown (test.controller)"
        )),
    }
    if plain.report.ok && covered.report.ok && plain.mbps() > 0.0 {
        let gain = covered.mbps() / plain.mbps();
        lines.push(format!("with the service {gain:.1} times as fast as plain TCP"));
        if gain < measure.least_gain {
            wrong.push(format!("that is less than {} times (test.leastGain)", measure.least_gain));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASKED: Measure = Measure { least_gain: 0.5, asked: true };

    fn download(port: u16, bytes: u64, listed: Option<bool>) -> Download {
        let own = "10.0.0.11:4".to_owned();
        let report = Report { ok: true, seen: own.clone(), own, bytes, seconds: 1.0, ..Report::default() };
        Download { port, report, listed }
    }

    fn plain() -> Download {
        download(5001, 1_000_000, Some(false))
    }

    fn covered() -> Download {
        download(5000, 4_000_000, Some(true))
    }

    fn changed(mut which: Download, change: impl Fn(&mut Download)) -> Download {
        change(&mut which);
        which
    }

    #[test]
    fn two_good_downloads_pass_with_their_gain() {
        let verdict = judge(&plain(), Some(&covered()), ASKED);
        assert!(verdict.good);
        assert!(verdict.lines.contains(&"with the service 4.0 times as fast as plain TCP".to_owned()));
        assert!(
            verdict.lines[0].starts_with("plain   port 5001")
                && verdict.lines[0].contains("8.0 Mbit/s, intact")
        );
        assert!(
            verdict.lines[1].starts_with("service port 5000") && verdict.lines[1].contains("32.0 Mbit/s")
        );
        assert_eq!(verdict.lines.last().unwrap(), "passed");
    }

    #[test]
    fn any_failure_fails_the_verdict() {
        let broken = |which| {
            changed(which, |found| {
                found.report.ok = false;
                found.report.failure = Some("corrupt");
                found.report.detail = "at 7".to_owned();
            })
        };
        let other = changed(covered(), |found| found.report.seen = "10.0.0.126:9".to_owned());
        let cases = [
            (changed(plain(), |found| found.report.bytes = 0), covered(), "port 5001: no bytes arrived"),
            (broken(plain()), covered(), "port 5001: it is corrupt: at 7"),
            (plain(), broken(covered()), "port 5000: it is corrupt: at 7"),
            (plain(), other, "the server saw 10.0.0.126:9, the client is 10.0.0.11:4"),
            (download(5001, 9, Some(true)), covered(), "name a port that no SosService covers"),
            (plain(), download(5000, 4_000_000, Some(false)), "was not accelerated"),
            (plain(), download(5000, 4_000_000, None), "the controller did not answer"),
            (plain(), download(5000, 100_000, Some(true)), "less than 0.5 times"),
        ];
        for (plain, covered, words) in cases {
            let verdict = judge(&plain, Some(&covered), ASKED);
            assert!(!verdict.good && verdict.lines.join("\n").contains(words), "{words}: {verdict:?}");
            assert_eq!(verdict.lines.last().unwrap(), "FAILED");
        }
    }

    #[test]
    fn a_refused_connection_is_the_only_reported_failure() {
        let report =
            Report { failure: Some("refused"), detail: "no listener".to_owned(), ..Report::default() };
        let verdict = judge(&plain(), Some(&Download { port: 5000, report, listed: None }), ASKED);
        assert_eq!(verdict.lines[2..], ["wrong: port 5000: it is refused: no listener", "FAILED"]);
    }

    #[test]
    fn untried_parts_are_reported() {
        let alone = judge(&plain(), None, ASKED);
        assert!(alone.good && alone.lines.iter().any(|line| line.contains("nothing compared")));
        let unasked =
            judge(&plain(), Some(&download(5000, 4_000_000, None)), Measure { asked: false, ..ASKED });
        assert!(unasked.good && unasked.lines.iter().any(|line| line.contains("no controller was asked")));
        assert!(!judge(&changed(plain(), |found| found.report.bytes = 0), None, ASKED).good);
    }
}
