//! `/metrics`, `/status`, `/cards`, `/healthz`, `/readyz`.

use std::sync::Arc;
use std::time::Instant;

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use axum::{Json, Router};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;

use crate::context::AgentContext;
use crate::documents::cards::{Cards, page};
use crate::metrics::{Reading, Snapshot};
use crate::tasks::status::status;

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Serves forever. For `/healthz` any answer is success: the runtime is running.
///
/// # Errors
/// The listener fails permanently.
pub async fn serve(listener: TcpListener, context: Arc<AgentContext>) -> std::io::Result<()> {
    let mut registry = Registry::default();
    context.metrics.register(&mut registry);
    let (tunnel, metered) = (context.tunnel().clone(), Arc::clone(&context));
    let read = move || Reading { stats: tunnel.stats(), services: metered.service_bytes() };
    registry.register_collector(Box::new(Snapshot::new(read)));
    let (registry, reported) = (Arc::new(registry), Arc::clone(&context));
    let routes = Router::new()
        .route("/metrics", get(move || metrics(Arc::clone(&registry))))
        .route("/status", get(move || std::future::ready(Json(status(&reported)))))
        .merge(cards(Arc::clone(&context.cards)))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(move || std::future::ready(ready(&context))));
    axum::serve(listener, routes).await
}

/// The route `/cards` (spec/card.md clause 13).
pub fn cards(cards: Arc<Cards>) -> Router {
    let render = move || cards.with(|store| page::page(store, Instant::now()));
    Router::new().route("/cards", get(move || std::future::ready(Json(render()))))
}

/// Renders the page outside the runtime's threads, since reading nft's counters starts a process.
async fn metrics(registry: Arc<Registry>) -> Response {
    let encoded = tokio::task::spawn_blocking(move || {
        let mut page = String::new();
        encode(&mut page, &registry).map(|()| page)
    });
    match encoded.await {
        Ok(Ok(page)) => ([(header::CONTENT_TYPE, OPEN_METRICS)], page).into_response(),
        _ => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

fn ready(context: &AgentContext) -> (StatusCode, &'static str) {
    if context.draining() {
        (StatusCode::SERVICE_UNAVAILABLE, "draining\n")
    } else {
        (StatusCode::OK, "ok\n")
    }
}
