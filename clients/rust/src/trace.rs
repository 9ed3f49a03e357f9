//! Traces: the headers of the app's trace, and with the feature `opentelemetry` the spans `lock.acquire` and `lock.release`. docs/api.md says what they have.

use crate::error::Error;
use crate::transport::Headers;

/// What a span has at its end: the result, and the token of a grant of one key.
type End<'a> = Result<(&'static str, Option<i64>), &'a Error>;

fn own(traceparent: Option<&(String, String)>) -> Headers {
    let Some((parent, state)) = traceparent else { return Headers::new() };
    let mut headers = vec![("Traceparent".to_owned(), parent.clone())];
    if !state.is_empty() {
        headers.push(("Tracestate".to_owned(), state.clone()));
    }
    headers
}

/// What all keys have before their first colon.
#[cfg(any(test, feature = "opentelemetry"))]
fn kind_of(keys: &[String]) -> Option<&str> {
    let mut kinds = keys.iter().map(|key| key.split_once(':').map(|(kind, _)| kind));
    let first = kinds.next()??;
    kinds.all(|kind| kind == Some(first)).then_some(first)
}

#[cfg(not(feature = "opentelemetry"))]
mod with {
    use super::{own, End};
    use crate::transport::Headers;
    use crate::types::Mode;

    /// The trace of an acquire, for its release.
    #[derive(Clone)]
    pub(crate) struct Parent;

    pub(crate) struct Span;

    impl Parent {
        pub fn here() -> Parent {
            Parent
        }
    }

    pub(crate) fn acquire(_: &[String], _: Mode, _: &Parent, traceparent: Option<&(String, String)>) -> (Span, Headers) {
        (Span, own(traceparent))
    }

    pub(crate) fn release(_: &str, _: i64, _: &Parent, traceparent: Option<&(String, String)>) -> (Span, Headers) {
        (Span, own(traceparent))
    }

    impl Span {
        pub fn end(self, _: End<'_>) {}
    }
}

#[cfg(feature = "opentelemetry")]
mod with {
    use opentelemetry::propagation::Injector;
    use opentelemetry::trace::{SpanKind, Status, TraceContextExt, Tracer};
    use opentelemetry::{global, Array, Context, KeyValue, StringValue, Value};

    use super::{kind_of, own, End};
    use crate::transport::Headers;
    use crate::types::Mode;

    /// The trace of an acquire, for its release.
    #[derive(Clone)]
    pub(crate) struct Parent(Context);

    impl Parent {
        pub fn here() -> Parent {
            Parent(Context::current())
        }
    }

    /// A span that ends with the caller, at the latest.
    pub(crate) struct Span(Option<Context>);

    struct Carrier(Headers);

    impl Injector for Carrier {
        fn set(&mut self, key: &str, value: String) {
            self.0.push((key.to_owned(), value));
        }
    }

    fn begin(name: &'static str, parent: &Context, mut attributes: Vec<KeyValue>, keys: &[String], traceparent: Option<&(String, String)>) -> (Span, Headers) {
        match keys {
            [key] => attributes.push(KeyValue::new("lock.key", key.clone())),
            keys => attributes.push(KeyValue::new("lock.keys", Value::Array(Array::String(keys.iter().cloned().map(StringValue::from).collect())))),
        }
        if let Some(kind) = kind_of(keys) {
            attributes.push(KeyValue::new("lock.type", kind.to_owned()));
        }
        let tracer = global::tracer("locksidecar");
        let span = tracer.span_builder(name).with_kind(SpanKind::Client).with_attributes(attributes).start_with_context(&tracer, parent);
        let context = parent.with_span(span);
        let mut headers = Carrier(Headers::new());
        global::get_text_map_propagator(|propagator| propagator.inject_context(&context, &mut headers));
        let headers = if headers.0.is_empty() { own(traceparent) } else { headers.0 };
        (Span(Some(context)), headers)
    }

    pub(crate) fn acquire(keys: &[String], mode: Mode, parent: &Parent, traceparent: Option<&(String, String)>) -> (Span, Headers) {
        let mode = if mode == Mode::Shared { "shared" } else { "exclusive" };
        begin("lock.acquire", &parent.0, vec![KeyValue::new("lock.mode", mode)], keys, traceparent)
    }

    pub(crate) fn release(key: &str, token: i64, acquired: &Parent, traceparent: Option<&(String, String)>) -> (Span, Headers) {
        let here = Context::current();
        let parent = if here.has_active_span() { &here } else { &acquired.0 };
        begin("lock.release", parent, vec![KeyValue::new("lock.token", token)], &[key.to_owned()], traceparent)
    }

    impl Span {
        pub fn end(mut self, end: End<'_>) {
            let Some(context) = self.0.take() else { return };
            let span = context.span();
            match end {
                Ok((result, token)) => {
                    span.set_attribute(KeyValue::new("lock.result", result));
                    if let Some(token) = token {
                        span.set_attribute(KeyValue::new("lock.token", token));
                    }
                }
                Err(e) => {
                    let code = e.code().to_owned();
                    // Only without an answer or with a status from 500: that a lock is held is no failure.
                    if e.problem().status.is_some_and(|status| status >= 500) || e.is_code(&["unreachable", "connection_lost", "timeout", "bad_answer"]) {
                        span.set_attribute(KeyValue::new("error.type", code.clone()));
                        span.set_status(Status::error(""));
                    }
                    span.set_attribute(KeyValue::new("lock.result", code));
                }
            }
            span.end();
        }
    }

    impl Drop for Span {
        fn drop(&mut self) {
            if let Some(context) = self.0.take() {
                context.span().set_attribute(KeyValue::new("lock.result", "caller_left"));
                context.span().end();
            }
        }
    }
}

pub(crate) use with::{acquire, release, Parent};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_type_of_keys() {
        for (keys, want) in
            [(&["job:1"][..], Some("job")), (&["job:1", "job:2"], Some("job")), (&["job:1", "x:2"], None), (&["job"], None), (&["job:1", "job"], None)]
        {
            assert_eq!(kind_of(&keys.iter().map(|key| key.to_string()).collect::<Vec<_>>()), want, "{keys:?}");
        }
    }
}
