//! What a mount tells who watches it.

use crate::configuration::Newest;
use anyhow::ensure;
use axum::Router;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use meridian_client::Client;
use meridian_client::times::Way;
use meridian_metrics::mount::{Asked, Told};
use meridian_metrics::{Told as Node, http, text};
use meridian_transport::{Ends, Security};
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

/// How long a node may take to answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// A mount that is watched.
struct Watched {
    client: Client,
    /// How its client's connections are secured, which may differ from the door of who watches.
    security: Security,
    region: String,
    at: String,
}

/// Where who watches calls, and how that is secured.
pub type Door = (TcpListener, Security);

/// Takes the address for who watches. Who asks there is shown the client's certificate; whoever is
/// shut out of the cluster is so here.
///
/// # Errors
/// If the address cannot be had, or that certificate is not good for being called.
pub fn open(address: &str, insecure: bool, newest: &Newest) -> anyhow::Result<Door> {
    let door = match insecure {
        true => Security::InsecurePlainText,
        false => newest.security.another_door(),
    };
    ensure!(
        door.may_accept(),
        "the certificate of {} may not be shown to who asks at {address}: make one for it by \
         `meridian certify NAME --role client --watched`, or say --insecure-metrics",
        door.own()
    );
    door.shut_out(newest.topology.revoked.clone());
    Ok((http::listen(address)?, door))
}

/// Serves who watches, until the process ends.
pub async fn serve(
    (listener, door): Door,
    (client, security): (Client, Security),
    region: String,
    at: String,
) {
    let watched = Arc::new(Watched { client, security, region, at });
    let health = watched.clone();
    let routes = Router::new()
        .route("/metrics", get(async move || watched.metrics()))
        .route("/healthz", get(async move || health.health().await))
        .fallback(async || (StatusCode::NOT_FOUND, "there are /metrics and /healthz\n"));
    match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => http::serve(listener, door, routes).await,
        Err(error) => tracing::error!(%error, "metrics are not served"),
    }
}

impl Watched {
    fn metrics(&self) -> Response {
        let asked = |way: Way| Asked {
            what: way.what,
            group: way.groups.join("+"),
            failed: way.times.failed,
            total: Duration::from_micros(way.times.total_us),
            took: way.times.powers(),
        };
        let asked: Vec<_> = self.client.times().into_iter().map(asked).collect();
        let kept = self.client.hits();
        let ends = self.security.ends();
        let told = Told { region: &self.region, at: &self.at, kept, ends, asked: &asked };
        ([(CONTENT_TYPE, text::CONTENT_TYPE)], text::of_mount(&told)).into_response()
    }

    async fn health(&self) -> Response {
        let topology = self.client.topology();
        let region = topology.region_named(&self.region);
        for node in region.into_iter().flat_map(|region| topology.nodes_in(region)) {
            if let Ok(status) = self.client.status(node, PATIENCE).await {
                let told = Node { topology: &topology, status: &status, ends: Ends::default() };
                if told.serves() {
                    let name = &topology.node(node).name;
                    return format!("{name} {}\n", told.sentence()).into_response();
                }
            }
        }
        let why = format!("no node of region {} serves\n", self.region);
        (StatusCode::SERVICE_UNAVAILABLE, why).into_response()
    }
}
