import { BadAnswerError, ConnectionError, LocksidecarError } from "./errors";
import { isHeader } from "./http";

interface TracingApi {
  context: { active(): unknown };
  propagation: { inject(context: unknown, carrier: Record<string, string>): void };
  trace: {
    getTracerProvider(): TracerProvider;
    setSpan(context: unknown, span: Span): unknown;
  };
  diag: { error(message: string, ...more: unknown[]): void };
}
interface TracerProvider {
  getTracer(name: string, version: string): Tracer;
  /** Only of the API's own provider. Undefined until the app has an SDK. */
  getDelegateTracer?(name: string, version: string): Tracer | undefined;
}
interface Tracer {
  startSpan(name: string, options: { kind: number; attributes: Attributes }, context: unknown): Span;
}
interface Span {
  setAttributes(attributes: Attributes): unknown;
  setStatus(status: { code: number }): unknown;
  end(): void;
}

type Attributes = { [name: string]: string | number | string[] };

interface Grant {
  token: number;
  reentry: number;
}

/** As in package.json, which a bundler may leave out. */
const version = "0.1.0";
const kindClient = 2;
const statusError = 2;
/** The most characters of a key, which may have so many bytes. */
const maxKey = 512;

let api: TracingApi | null | undefined;

function load(): TracingApi | null {
  try {
    return require("@opentelemetry/api") as TracingApi;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "MODULE_NOT_FOUND") {
      return null;
    }
    throw error;
  }
}

function theApi(): TracingApi | null {
  if (api === undefined) {
    api = load();
  }
  return api;
}

/** traceHeaders are the headers of a context, by default of the active one. */
export function traceHeaders(context?: unknown): Record<string, string> {
  const otel = theApi();
  const headers: Record<string, string> = {};
  otel?.propagation.inject(context ?? otel.context.active(), headers);
  for (const name in headers) {
    if (!isHeader(name, String(headers[name]))) {
      delete headers[name]; // a lock must not fail because of a trace
    }
  }
  return headers;
}

/**
 * traced runs something in a span of the app's trace, if there is an SDK. `run` gets the context of the span for its calls. The
 * span never becomes the active one, so it does not leak into the app. `outcome` returns the attributes of the result. The span has
 * no texts of errors, because they may contain an app's data.
 */
function traced<T>(
  name: "lock.acquire" | "lock.release",
  attributes: () => Attributes,
  run: (context?: unknown) => Promise<T>,
  outcome: (value: T) => Attributes,
  signal?: AbortSignal,
): Promise<T> {
  const otel = theApi();
  const tracer = otel && tracerOf(otel.trace.getTracerProvider());
  return otel && tracer ? inSpan(otel, tracer, name, attributes(), run, outcome, signal) : run();
}

/** tracerOf is the tracer of the SDK. Undefined until the app has one. */
function tracerOf(provider: TracerProvider): Tracer | undefined {
  return provider.getDelegateTracer
    ? provider.getDelegateTracer("locksidecar", version)
    : provider.getTracer("locksidecar", version);
}

async function inSpan<T>(
  otel: TracingApi,
  tracer: Tracer,
  name: string,
  attributes: Attributes,
  run: (context: unknown) => Promise<T>,
  outcome: (value: T) => Attributes,
  signal: AbortSignal | undefined,
): Promise<T> {
  const parent = otel.context.active();
  const span = tracer.startSpan(name, { kind: kindClient, attributes }, parent);
  let value: T;
  try {
    value = await run(otel.trace.setSpan(parent, span));
  } catch (error) {
    end(otel, span, judge(error, signal));
    throw error;
  }
  end(otel, span, outcome(value));
  return value;
}

/** end ends a span. An exporter that throws must not cost the app its lock. */
function end(otel: TracingApi, span: Span, attributes: Attributes): void {
  try {
    span.setAttributes(attributes);
    if (attributes["error.type"] !== undefined) {
      span.setStatus({ code: statusError });
    }
    span.end();
  } catch (error) {
    otel.diag.error("locksidecar: a span could not be ended", error);
  }
}

/** judge returns the attributes of an error, with `error.type` if it needs attention. */
function judge(error: unknown, signal: AbortSignal | undefined): Attributes {
  if (signal?.aborted && error === signal.reason) {
    return { "lock.result": "caller_left" };
  }
  if (!(error instanceof LocksidecarError)) {
    return { "error.type": error instanceof Error ? error.name : typeof error };
  }
  const { code, status = 0 } = error;
  const failed = status >= 500 || error instanceof ConnectionError || error instanceof BadAnswerError;
  return failed ? { "lock.result": code, "error.type": code } : { "lock.result": code };
}

/** aboutKeys returns the attributes of keys. A key that is no text fails later. */
function aboutKeys(keys: readonly string[]): Attributes {
  const given: unknown[] = Array.isArray(keys) ? keys : [];
  const texts = given.filter((key) => typeof key === "string").map((key) => key.slice(0, maxKey));
  const [first = ""] = texts;
  const about: Attributes = texts.length === 1 ? { "lock.key": first } : { "lock.keys": texts };
  const type = typeOf(first);
  if (type !== "" && texts.every((key) => typeOf(key) === type)) {
    about["lock.type"] = type;
  }
  return about;
}

/** typeOf is the part of a key before the first colon, or empty. */
function typeOf(key: string): string {
  return key.slice(0, Math.max(key.indexOf(":"), 0));
}

/** aboutGrants returns the attributes of the answer to an acquire. */
function aboutGrants(grants: readonly Grant[]): Attributes {
  if (grants.length === 0) {
    return { "lock.result": "skipped" };
  }
  const about: Attributes = { "lock.result": grants.every(({ reentry }) => reentry > 1) ? "reentered" : "granted" };
  if (grants.length === 1) {
    about["lock.token"] = (grants[0] as Grant).token;
  }
  return about;
}

/** tracedAcquire runs an acquire in a span. `grantsOf` finds the grants in the result. Without grants it was skipped. */
export function tracedAcquire<T>(
  keys: readonly string[],
  mode: unknown,
  signal: AbortSignal | undefined,
  run: (context?: unknown) => Promise<T>,
  grantsOf: (value: T) => readonly Grant[],
): Promise<T> {
  return traced(
    "lock.acquire",
    () => ({ ...aboutKeys(keys), "lock.mode": mode === "shared" ? "shared" : "exclusive" }),
    run,
    (value) => aboutGrants(grantsOf(value)),
    signal,
  );
}

export function tracedRelease<T>(key: string, token: number, run: (context?: unknown) => Promise<T>): Promise<T> {
  return traced(
    "lock.release",
    () => ({ ...aboutKeys([key]), "lock.token": token }),
    run,
    () => ({ "lock.result": "released" }),
  );
}
