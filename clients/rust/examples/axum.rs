//! A web service whose report is written by one of its instances at a time.
//!
//! `cargo run --example axum`, then `curl -X POST localhost:8080/reports/daily`

use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::post;
use axum::{Json, Router};
use locksidecar::{Client, Error, Options};
use serde_json::{json, Value};

/// What a handler can fail with. `?` makes it of an error of the client.
struct Failed(Error);

impl From<Error> for Failed {
    fn from(e: Error) -> Failed {
        Failed(e)
    }
}

impl axum::response::IntoResponse for Failed {
    fn into_response(self) -> axum::response::Response {
        let status = if self.0.is_held() { StatusCode::CONFLICT } else { StatusCode::SERVICE_UNAVAILABLE };
        (status, self.0.to_string()).into_response()
    }
}

/// If the browser goes away, axum drops this future: first the work ends, then its lock is released.
async fn write_report(State(client): State<Client>, Path(name): Path<String>) -> Result<Json<Value>, Failed> {
    let options = Options::new().wait(Duration::from_millis(500));
    let token = client
        .lock(&format!("report:{name}"), options, |lock| async move {
            // Pass the token to what the lock protects, and let that refuse a smaller one than it has seen.
            tokio::time::sleep(Duration::from_millis(100)).await;
            Ok::<_, Failed>(lock.token())
        })
        .await?;
    Ok(Json(json!({"report": name, "token": token})))
}

pub fn app(client: Client) -> Router {
    Router::new().route("/reports/{name}", post(write_report)).with_state(client)
}

#[allow(dead_code)] // the tests have a main of their own
#[tokio::main]
async fn main() -> std::io::Result<()> {
    let client = Client::new(); // one for the process; each handler has a clone
    let listener = tokio::net::TcpListener::bind("127.0.0.1:8080").await?;
    axum::serve(listener, app(client)).await
}
