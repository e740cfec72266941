//! Subscribes to port changes in Open vSwitch's database (RFC 7047, 4.1.5), so that a port's move to another VLAN is noticed immediately, not at
//! the next regular pass. A notification only triggers a pass, which reads the new state.

use std::io::{BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};

/// Interval between attempts to connect to the database.
const RETRY: Duration = Duration::from_secs(1);

/// Counter of database notifications.
#[derive(Debug)]
pub struct Watch {
    changes: Arc<AtomicU64>,
}

impl Watch {
    /// Watch a database until the process ends; reconnects whenever the connection fails.
    #[must_use]
    pub fn start(socket: PathBuf) -> Self {
        let changes = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&changes);
        thread::spawn(move || {
            loop {
                if let Err(error) = follow(&socket, &counted) {
                    tracing::debug!(%error, socket = %socket.display(), "cannot watch the database");
                }
                thread::sleep(RETRY);
            }
        });
        Self { changes }
    }

    /// A number that changes whenever a port may have changed.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }
}

#[derive(Deserialize)]
struct Message {
    method: Option<String>,
    #[serde(default)]
    params: Value,
    #[serde(default)]
    id: Value,
}

fn follow(socket: &Path, changes: &AtomicU64) -> std::io::Result<()> {
    let stream = UnixStream::connect(socket)?;
    send(&stream, &request())?;
    for message in serde_json::Deserializer::from_reader(BufReader::new(&stream)).into_iter() {
        match answer(&message?) {
            Some(reply) => send(&stream, &reply)?,
            None => _ = changes.fetch_add(1, Ordering::Relaxed),
        }
    }
    Ok(())
}

fn send(mut stream: &UnixStream, message: &Value) -> std::io::Result<()> {
    stream.write_all(message.to_string().as_bytes())
}

/// Request to monitor ports, their numbers and their VLANs.
fn request() -> Value {
    let tables = json!({
        "Bridge": {"columns": ["ports"]},
        "Port": {"columns": ["tag", "trunks", "vlan_mode"]},
        "Interface": {"columns": ["ofport"]},
    });
    json!({"method": "monitor", "params": ["Open_vSwitch", null, tables], "id": 1})
}

/// The answer to an echo request; None for other messages, such as changes and the reply to the monitor request.
fn answer(message: &Message) -> Option<Value> {
    (message.method.as_deref() == Some("echo"))
        .then(|| json!({"result": message.params, "error": null, "id": message.id}))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn changes_are_counted_and_echo_requests_answered() {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("db.sock");
        let listener = UnixListener::bind(&socket).expect("a socket");
        let watch = Watch::start(socket);
        let (stream, _) = listener.accept().expect("a connection");
        let mut sent = serde_json::Deserializer::from_reader(&stream).into_iter::<Value>();
        let asked = sent.next().expect("a request").expect("JSON");
        assert_eq!(
            (asked["method"].as_str(), &asked["params"][0]),
            (Some("monitor"), &json!("Open_vSwitch"))
        );
        send(&stream, &json!({"id": 1, "result": {}, "error": null})).expect("sent");
        send(&stream, &json!({"id": null, "method": "update", "params": [null, {}]})).expect("sent");
        send(&stream, &json!({"id": "echo", "method": "echo", "params": [7]})).expect("sent");
        let echoed = sent.next().expect("an answer").expect("JSON");
        assert_eq!(echoed, json!({"id": "echo", "result": [7], "error": null}));
        assert_eq!(watch.changes(), 2);
    }
}
