//! `/healthz`, `/readyz`, `/status` and `/metrics`.

use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::State;
use axum::http::header::USER_AGENT;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::get;
use prometheus_client::registry::Registry;

use crate::status::Status;

/// Time without a heartbeat after which the loop counts as stuck: longer than a pass in which several commands reach their deadlines.
const STUCK_AFTER: Duration = Duration::from_secs(60);

/// Start of the User-Agent of the operator's polls (spec/node-config.md, clause 45). It is not authenticated: a forged poll only keeps the
/// bridge, as any program did before this rule.
const OPERATOR: &str = "sos-operator";

/// State of the loop, for HTTP clients.
#[derive(Debug)]
pub struct Shared {
    snapshot: Mutex<(Status, Instant)>,
    registry: Registry,
    polled: Mutex<Option<Instant>>,
}

impl Shared {
    /// Starts with a status.
    #[must_use]
    pub fn new(status: Status, registry: Registry, now: Instant) -> Arc<Self> {
        Arc::new(Self { snapshot: Mutex::new((status, now)), registry, polled: Mutex::new(None) })
    }

    /// Publish a new status, if any, and a heartbeat of the loop.
    pub fn update(&self, status: Option<&Status>, now: Instant) {
        // The value is replaced as a whole, so a panic under the lock leaves no partial value.
        let mut snapshot = self.snapshot.lock().unwrap_or_else(PoisonError::into_inner);
        snapshot.1 = now;
        if let Some(status) = status {
            snapshot.0 = status.clone();
        }
    }

    /// Time of the operator's last poll.
    pub fn last_poll(&self) -> Option<Instant> {
        *self.polled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note_poll(&self, now: Instant) {
        *self.polled.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
    }

    fn read(&self) -> (Status, Instant) {
        self.snapshot.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Serve from a dedicated thread until the process ends.
///
/// # Errors
/// The address cannot be listened on.
pub fn start(address: SocketAddr, shared: Arc<Shared>) -> std::io::Result<SocketAddr> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    let bound = listener.local_addr()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    std::thread::Builder::new().name("http".into()).spawn(move || {
        let served = runtime.block_on(async {
            axum::serve(tokio::net::TcpListener::from_std(listener)?, router(shared)).await
        });
        if let Err(error) = served {
            tracing::error!(%error, "the HTTP server ended");
        }
    })?;
    Ok(bound)
}

fn router(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/status", get(status))
        .route("/metrics", get(metrics))
        .with_state(shared)
}

async fn healthz(State(shared): State<Arc<Shared>>) -> (StatusCode, &'static str) {
    if shared.read().1.elapsed() < STUCK_AFTER {
        (StatusCode::OK, "ok\n")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "the loop is stuck\n")
    }
}

async fn readyz(State(shared): State<Arc<Shared>>) -> (StatusCode, String) {
    let (status, _) = shared.read();
    let code = if status.applied { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (code, format!("{:?}: {}\n", status.state, status.message))
}

async fn status(State(shared): State<Arc<Shared>>, headers: HeaderMap) -> Result<String, StatusCode> {
    if is_operator(&headers) {
        shared.note_poll(Instant::now());
    }
    serde_json::to_string(&shared.read().0).map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)
}

/// True for a poll of the operator; other clients may read the status, too.
fn is_operator(headers: &HeaderMap) -> bool {
    headers.get(USER_AGENT).is_some_and(|agent| agent.as_bytes().starts_with(OPERATOR.as_bytes()))
}

async fn metrics(State(shared): State<Arc<Shared>>) -> Result<String, StatusCode> {
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &shared.registry)
        .map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
    Ok(text)
}
