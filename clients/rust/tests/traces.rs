//! Spans of the app's traces, with OpenTelemetry's SDK.

mod common;

use std::time::Duration;

use common::start;
use locksidecar::{Error, Options};
use opentelemetry::trace::{FutureExt, SpanKind, Status, TraceContextExt, Tracer};
use opentelemetry::{global, Context};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};

#[tokio::test]
async fn spans_of_acquires_and_releases() {
    let exporter = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build();
    global::set_tracer_provider(provider.clone());
    global::set_text_map_propagator(TraceContextPropagator::new());
    let (sidecar, client) = start();
    let request = global::tracer("app").start("request");
    let around = Context::current().with_span(request);
    let parent = around.span().span_context().clone();
    async {
        client
            .lock("job:1", Options::new(), |_| async {
                assert_eq!(Context::current().span().span_context(), &parent, "the span of the acquire is that of the work");
                let held = client.get_fresh("job:1").await?.holder.unwrap();
                assert!(held.traceparent.unwrap().contains(&parent.trace_id().to_string()));
                assert!(client.try_acquire("job:1", Options::new()).await?.is_none());
                let waits = client.acquire("job:1", Options::new());
                assert!(tokio::time::timeout(Duration::from_millis(50), locksidecar::apart(waits)).await.is_err());
                Ok::<_, Error>(())
            })
            .await
            .unwrap();
        drop(client.acquire_many(["job:1", "x"], Options::new().shared()).await.unwrap());
    }
    .with_context(around.clone())
    .await;
    sidecar.kill();
    client.acquire("job:2", Options::new().wait(Duration::ZERO)).with_context(around).await.unwrap_err();
    common::until("the releases have ended", || async {
        let spans = exporter.get_finished_spans().unwrap();
        if spans.iter().filter(|span| span.name == "lock.release").count() == 3 {
            Ok(())
        } else {
            Err(format!("{spans:?}"))
        }
    })
    .await;
    let spans = exporter.get_finished_spans().unwrap();
    let get = |span: &SpanData, name: &str| span.attributes.iter().find(|a| a.key.as_str() == name).map(|a| a.value.to_string());
    let found = |name: &str, result: &str| {
        let result = Some(result.to_owned());
        spans.iter().filter(|span| span.name == name && get(span, "lock.result") == result).cloned().collect::<Vec<_>>()
    };
    let granted = found("lock.acquire", "granted");
    assert_eq!(granted.len(), 2, "{spans:#?}");
    assert_eq!(
        (get(&granted[0], "lock.key").as_deref(), get(&granted[0], "lock.type").as_deref(), get(&granted[0], "lock.mode").as_deref()),
        (Some("job:1"), Some("job"), Some("exclusive"))
    );
    assert!(get(&granted[0], "lock.token").is_some() && get(&granted[1], "lock.type").is_none() && get(&granted[1], "lock.keys").is_some());
    assert_eq!(found("lock.acquire", "held").len(), 1);
    assert_eq!(found("lock.acquire", "held")[0].status, Status::Unset, "a held lock is no failure");
    assert_eq!(found("lock.acquire", "caller_left").len(), 1);
    assert!(found("lock.release", "released").iter().all(|span| get(span, "lock.token").is_some()));
    let failed = spans.iter().filter(|span| matches!(span.status, Status::Error { .. })).collect::<Vec<_>>();
    assert!(failed.iter().all(|span| get(span, "error.type").is_some()) && failed.len() == 1, "{failed:#?}");
    for span in spans.iter().filter(|span| span.name.starts_with("lock.")) {
        assert!(span.span_kind == SpanKind::Client && span.parent_span_id == parent.span_id(), "{span:#?}");
    }
    provider.shutdown().unwrap();
}
