//! The health of the process over HTTP (`/healthz`, `/readyz`) and gRPC (`grpc.health.v1.Health`).

use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use http::header::CACHE_CONTROL;
use http::{HeaderValue, StatusCode};
use tonic::service::Routes;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use crate::health::{Health, Report};

impl Health {
    /// The HTTP probes, to be merged into the service's router ahead of its other layers: `/healthz` answers 200 while
    /// the process runs and never looks at the database, `/readyz` answers 200 or 503 with the report.
    pub fn http_probes(&self) -> Router {
        let health = self.clone();
        Router::new()
            .route("/healthz", get(async || probe(StatusCode::OK, serde_json::json!({ "status": "ok" }))))
            .route("/readyz", get(async move || readiness(&health)))
    }

    /// The gRPC probe, and the task that keeps it up to date. The empty service name is SERVING while the process runs;
    /// the name of the service follows readiness. Watching clients learn of a change at once.
    pub async fn grpc_probe(&self, service: &'static str) -> (Routes, impl Future<Output = ()> + Send + use<>) {
        let reporter = HealthReporter::new();
        let server = tonic_health::server::HealthService::from_health_reporter(reporter.clone());
        let routes = Routes::new(tonic_health::pb::health_server::HealthServer::new(server));
        let mut follower = self.follow();
        reporter.set_service_status(service, serving_status(&follower.report())).await;
        let follow = async move {
            loop {
                follower.changed().await;
                reporter.set_service_status(service, serving_status(&follower.report())).await;
            }
        };
        (routes, follow)
    }
}

fn serving_status(report: &Report) -> ServingStatus {
    if report.ready { ServingStatus::Serving } else { ServingStatus::NotServing }
}

fn readiness(health: &Health) -> Response {
    let report = health.report();
    let code = if report.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    probe(code, report)
}

fn probe(code: StatusCode, body: impl serde::Serialize) -> Response {
    (code, [(CACHE_CONTROL, HeaderValue::from_static("no-store"))], Json(body)).into_response()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use http::Request;
    use http_body_util::{BodyExt, Empty};
    use hyper_util::rt::TokioIo;
    use tokio::net::TcpStream;
    use tokio::time::timeout;
    use tonic::Code;
    use tonic::transport::Channel;
    use tonic_health::pb::HealthCheckRequest;
    use tonic_health::pb::health_check_response::ServingStatus as Wire;
    use tonic_health::pb::health_client::HealthClient;

    use super::*;
    use crate::{Limits, Listener, Serving};

    const PATIENCE: Duration = Duration::from_secs(20);

    async fn serve(router: Router) -> Serving {
        Listener::bind("test", ([127, 0, 0, 1], 0).into()).await.unwrap().serve(router, Limits::default())
    }

    async fn channel(serving: &Serving) -> Channel {
        Channel::from_shared(format!("http://{}", serving.address())).unwrap().connect().await.unwrap()
    }

    async fn ask(serving: &Serving, path: &str) -> (u16, serde_json::Value) {
        let io = TokioIo::new(TcpStream::connect(serving.address()).await.unwrap());
        let (mut client, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
        let connection = tokio::spawn(connection);
        let request = Request::get(path).header("host", "test").body(Empty::<Bytes>::new()).unwrap();
        let answer = client.send_request(request).await.unwrap();
        assert_eq!(answer.headers()[CACHE_CONTROL], "no-store");
        let code = answer.status().as_u16();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        drop(client);
        connection.await.unwrap().unwrap();
        (code, serde_json::from_slice(&body).unwrap())
    }

    #[tokio::test]
    async fn readyz_follows_the_state_and_healthz_does_not() {
        let health = Health::new(7);
        let serving = serve(health.http_probes()).await;
        let report = |status: &str, applied: Option<i32>, degraded: &[&str]| serde_json::json!({ "status": status, "applied": applied, "expected": 7, "degraded": degraded });
        assert_eq!(ask(&serving, "/readyz").await, (503, report("starting", None, &[])));
        health.database_seen(6);
        assert_eq!(ask(&serving, "/readyz").await, (503, report("migrating", Some(6), &[])));
        health.database_seen(8);
        health.started();
        assert_eq!(ask(&serving, "/readyz").await, (200, report("ready", Some(8), &["schema_ahead"])));
        health.draining();
        assert_eq!(ask(&serving, "/readyz").await, (503, report("draining", Some(8), &["schema_ahead"])));
        assert_eq!(ask(&serving, "/healthz").await, (200, serde_json::json!({ "status": "ok" })));
    }

    #[tokio::test]
    async fn grpc_health_tells_watchers_of_every_change() {
        let health = Health::new(1);
        let (routes, follow) = health.grpc_probe("edge").await;
        let follow = tokio::spawn(follow);
        let serving = serve(routes.into_axum_router()).await;
        let mut client = HealthClient::new(channel(&serving).await);
        let of = |service: &str| HealthCheckRequest { service: service.to_owned() };

        assert_eq!(client.check(of("")).await.unwrap().into_inner().status(), Wire::Serving);
        let mut changes = client.watch(of("edge")).await.unwrap().into_inner();
        let mut next = async || timeout(PATIENCE, changes.message()).await.unwrap().unwrap().unwrap().status();
        assert_eq!(next().await, Wire::NotServing);
        health.database_seen(1);
        health.started();
        while next().await != Wire::Serving {}
        health.draining();
        while next().await != Wire::NotServing {}
        assert_eq!(client.check(of("")).await.unwrap().into_inner().status(), Wire::Serving);
        assert_eq!(client.check(of("other")).await.unwrap_err().code(), Code::NotFound);
        serving.close().await;
        follow.abort();
    }
}
