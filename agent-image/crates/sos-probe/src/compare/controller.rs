//! Query for the session of a connection in a controller's API (spec/northbound.md).

use std::io::{Error, ErrorKind, Read as _, Result, Write as _};
use std::net::{SocketAddrV4, TcpStream, ToSocketAddrs as _};
use std::str::FromStr;
use std::time::Duration;

use serde::Deserialize;

/// Timeout of a query: answers are immediate, and an unreachable controller must not delay the next query.
const WITHIN: Duration = Duration::from_secs(2);
/// Maximum size of an answer. The answer has only a few lines, because the sessions of only one connection are requested.
const ANSWER_MOST: u64 = 1 << 20;

/// Address of a controller, without TLS, as within a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Controller {
    /// `HOST:PORT`
    place: String,
}

impl FromStr for Controller {
    type Err = String;

    fn from_str(url: &str) -> std::result::Result<Self, String> {
        let place = url.strip_prefix("http://").unwrap_or_default().trim_end_matches('/');
        let (host, port) = place.rsplit_once(':').unwrap_or_default();
        let plain = !host.is_empty()
            && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-".contains(&byte));
        if plain && port.parse::<u16>().is_ok() {
            return Ok(Self { place: place.to_owned() });
        }
        Err("http://HOST:PORT".to_owned())
    }
}

impl Controller {
    /// True if the controller lists a session for the connection from `client` to `server`; `None` without an answer.
    #[must_use]
    pub fn lists(&self, client: &str, server: SocketAddrV4) -> Option<bool> {
        let answer = self.ask(&format!("/v1/sessions?client={client}&server={server}")).ok()?;
        active(&answer, client, &server.to_string())
    }

    fn ask(&self, path: &str) -> Result<Vec<u8>> {
        let place = self.place.to_socket_addrs()?.next().ok_or_else(|| Error::from(ErrorKind::NotFound))?;
        let mut stream = TcpStream::connect_timeout(&place, WITHIN)?;
        stream.set_read_timeout(Some(WITHIN))?;
        stream.set_write_timeout(Some(WITHIN))?;
        // HTTP 1.0: the answer is not chunked, and the connection closes after it
        write!(stream, "GET {path} HTTP/1.0\r\nHost: {}\r\n\r\n", self.place)?;
        let mut answer = Vec::new();
        stream.take(ANSWER_MOST).read_to_end(&mut answer)?;
        Ok(answer)
    }
}

#[derive(Deserialize)]
struct Sessions {
    sessions: Vec<Session>,
}

#[derive(Deserialize)]
struct Session {
    client: String,
    server: String,
    state: String,
}

/// Find one connection in an HTTP answer. Only active sessions count: a session still in set-up may be refused, and its
/// connection goes plain.
fn active(answer: &[u8], client: &str, server: &str) -> Option<bool> {
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n")?;
    let status = answer[..end].split(|byte| *byte == b'\r').next()?;
    if status.split(|byte| *byte == b' ').nth(1)? != b"200" {
        return None;
    }
    let found: Sessions = serde_json::from_slice(&answer[end + 4..]).ok()?;
    Some(
        found
            .sessions
            .iter()
            .any(|one| one.client == client && one.server == server && one.state == "Active"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: &str = "10.0.0.11:4";
    const SERVER: &str = "10.0.0.139:5000";

    fn answer(state: &str) -> String {
        format!(
            "HTTP/1.0 200 OK\r\nServer: x\r\n\r\n{{\"sessions\": [{{\"client\": \"{CLIENT}\", \"server\": \"{SERVER}\", \"state\": \"{state}\", \"labels\": [0]}}], \"total\": 1}}"
        )
    }

    #[test]
    fn only_an_active_session_of_the_same_connection_counts() {
        assert_eq!(active(answer("Active").as_bytes(), CLIENT, SERVER), Some(true));
        assert_eq!(active(answer("Preparing").as_bytes(), CLIENT, SERVER), Some(false));
        assert_eq!(active(answer("Active").as_bytes(), "10.0.0.11:40", SERVER), Some(false));
        assert_eq!(active(answer("Active").as_bytes(), CLIENT, "10.0.0.139:500"), Some(false));
    }

    #[test]
    fn an_invalid_answer_is_none() {
        let whole = answer("Active");
        for wrong in [
            "",
            "HTTP/1.0 200 OK\r\n\r\n",
            "HTTP/1.0 200 OK\r\n\r\n{}",
            &whole.replace("200 OK", "503 No"),
            &whole[..whole.len() - 1],
        ] {
            assert_eq!(active(wrong.as_bytes(), CLIENT, SERVER), None, "{wrong:?}");
        }
    }

    #[test]
    fn a_controllers_address_is_a_url_without_a_path() {
        let given = |url: &str| url.parse::<Controller>();
        assert_eq!(
            given("http://sos-controller-default.sos.svc:8080/").unwrap().place,
            "sos-controller-default.sos.svc:8080"
        );
        for wrong in [
            "",
            "sos:8080",
            "https://sos:8080",
            "http://sos",
            "http://:80",
            "http://sos:x",
            "http://sos:80/path",
            "http://a b:80",
        ] {
            assert!(given(wrong).is_err(), "{wrong}");
        }
    }
}
