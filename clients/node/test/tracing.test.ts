import assert from "node:assert/strict";
import { subscribe, unsubscribe } from "node:diagnostics_channel";
import { readFileSync } from "node:fs";
import { createServer } from "node:net";
import { join } from "node:path";
import { after, afterEach, before, beforeEach, describe, test } from "node:test";
import {
  context,
  propagation,
  type Span,
  SpanKind,
  SpanStatusCode,
  type TextMapPropagator,
  trace,
} from "@opentelemetry/api";
import { AsyncLocalStorageContextManager } from "@opentelemetry/context-async-hooks";
import { W3CTraceContextPropagator } from "@opentelemetry/core";
import {
  AlwaysOffSampler,
  BasicTracerProvider,
  InMemorySpanExporter,
  type ReadableSpan,
  type Sampler,
  SimpleSpanProcessor,
  type SpanProcessor,
} from "@opentelemetry/sdk-trace-base";
import {
  BadAnswerError,
  Client,
  InvalidRequestError,
  LockHeldError,
  LockLostError,
  NotHolderError,
  TimeoutError,
  UnreachableError,
  UnsupportedError,
  WaitTimeoutError,
} from "locksidecar";
import { aborted, patienceMs, queued, Sidecar } from "./sidecar";

let sidecar: Sidecar;
before(async () => {
  sidecar = await Sidecar.start({ ALLOW_FORCE: "true" });
});
afterEach(() => sidecar.closeClients());
after(() => sidecar.close());

/** The sent requests about locks. */
const sent: { method: string; path: string; traceparent: string }[] = [];
const started = "locksidecar.request";
function note(message: unknown): void {
  const { method, path, headers } = message as { method: string; path: string; headers: Record<string, string> };
  if (path.startsWith("/v1/locks")) {
    sent.push({ method, path, traceparent: headers["traceparent"] ?? "" });
  }
}
beforeEach(() => {
  sent.length = 0;
  subscribe(started, note);
});
afterEach(() => {
  unsubscribe(started, note);
});

function traceparent(span: Pick<Span, "spanContext">): string {
  const { traceId, spanId, traceFlags } = span.spanContext();
  return `00-${traceId}-${spanId}-0${traceFlags.toString(16)}`;
}

test("without the SDK, calls have the headers of the app's propagator", async () => {
  const remote = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
  const propagator: TextMapPropagator = {
    inject: (_context, carrier, setter) => setter.set(carrier, "traceparent", remote),
    extract: (context) => context,
    fields: () => ["traceparent"],
  };
  const client = sidecar.client();
  await client.acquire("without");
  assert.equal((await client.get("without")).holder?.traceparent, null);
  propagation.setGlobalPropagator(propagator);
  await client.acquire("with");
  assert.equal((await client.get("with")).holder?.traceparent, remote);
  propagation.disable();
});

test("a header that HTTP cannot carry is left out", async () => {
  propagation.setGlobalPropagator({
    inject: (_context, carrier, setter) => setter.set(carrier, "traceparent", "a\r\nLock-Session: forged"),
    extract: (context) => context,
    fields: () => ["traceparent"],
  });
  await (await sidecar.client().acquire("forged")).release();
  assert.deepEqual(
    sent.map((one) => one.traceparent),
    ["", ""],
  );
  propagation.disable();
});

test("without the SDK, calls have the context of the active span", async () => {
  propagation.setGlobalPropagator(new W3CTraceContextPropagator());
  context.setGlobalContextManager(new AsyncLocalStorageContextManager().enable());
  const remote = { traceId: "0af7651916cd43dd8448eb211c80319c", spanId: "b7ad6b7169203331", traceFlags: 1 };
  const span = trace.wrapSpanContext(remote);
  const client = sidecar.client();
  await context.with(trace.setSpan(context.active(), span), async () => (await client.acquire("remote")).release());
  assert.deepEqual(
    sent.map((one) => one.traceparent),
    [traceparent(span), traceparent(span)],
  );
  await (await client.acquire("remote")).release();
  assert.deepEqual(
    sent.slice(2).map((one) => one.traceparent),
    ["", ""],
  );
  disable();
});

const exporter = new InMemorySpanExporter();

/** enable sets the SDK up as an app does. */
function enable(options: { sampler?: Sampler; processor?: SpanProcessor; contextManager?: boolean } = {}): void {
  const { sampler, processor = new SimpleSpanProcessor(exporter), contextManager = true } = options;
  trace.setGlobalTracerProvider(new BasicTracerProvider({ spanProcessors: [processor], ...(sampler && { sampler }) }));
  propagation.setGlobalPropagator(new W3CTraceContextPropagator());
  if (contextManager) {
    context.setGlobalContextManager(new AsyncLocalStorageContextManager().enable());
  }
}

function disable(): void {
  trace.disable();
  propagation.disable();
  context.disable();
}

/** spans returns the spans that ended since the last call. */
function spans(): ReadableSpan[] {
  const found = [...exporter.getFinishedSpans()];
  exporter.reset();
  return found;
}

/** results returns their names, results and types of errors. */
function results(): string[] {
  return spans().map(({ name, attributes, status, events }) => {
    const type = attributes["error.type"];
    assert.equal(status.code, type === undefined ? SpanStatusCode.UNSET : SpanStatusCode.ERROR);
    assert.equal(status.message, undefined);
    assert.deepEqual(events, []);
    return [name, attributes["lock.result"], ...(type === undefined ? [] : [`error: ${String(type)}`])].join(" ");
  });
}

/** inWork runs something in a span of the app. */
async function inWork<T>(run: (work: Span) => Promise<T>): Promise<T> {
  return trace.getTracer("app").startActiveSpan("work", run);
}

describe("with the SDK", () => {
  beforeEach(() => enable());
  afterEach(() => {
    disable();
    exporter.reset();
  });

  test("an acquire and a release are spans of the app's trace", async () => {
    const client = sidecar.client({ name: "web" });
    const [work, token] = await inWork(async (work) => {
      let token: number;
      {
        await using lock = await client.acquire("order:9", { waitMs: 5000, data: { secret: 1 } });
        token = lock.token;
        assert.equal(trace.getActiveSpan(), work);
        await lock.release({ outcome: "success", result: "secret" });
      }
      assert.equal(trace.getActiveSpan(), work);
      return [work, token];
    });
    const both = spans();
    assert.deepEqual(
      both.map(({ name, attributes }) => [name, attributes]),
      ["acquire granted", "release released"].map((text) => {
        const [name, result] = text.split(" ");
        return [
          `lock.${name}`,
          {
            "lock.key": "order:9",
            "lock.type": "order",
            "lock.token": token,
            "lock.result": result,
            ...(name === "acquire" ? { "lock.mode": "exclusive" } : {}),
          },
        ];
      }),
    );
    const { version } = JSON.parse(readFileSync(join(__dirname, "..", "package.json"), "utf8"));
    for (const span of both) {
      assert.equal(span.kind, SpanKind.CLIENT);
      assert.deepEqual(span.parentSpanContext, work.spanContext());
      assert.deepEqual([span.instrumentationScope.name, span.instrumentationScope.version], ["locksidecar", version]);
    }
    assert.deepEqual(
      sent.map(({ method, traceparent }) => [method, traceparent]),
      [
        ["PUT", traceparent(both[0] as ReadableSpan)],
        ["DELETE", traceparent(both[1] as ReadableSpan)],
      ],
    );
  });

  test("other calls have the context of the app's span", async () => {
    const client = sidecar.client();
    const work = await inWork(async (work) => {
      await client.get("look");
      return work;
    });
    assert.deepEqual(
      sent.map((one) => one.traceparent),
      [traceparent(work)],
    );
    assert.deepEqual(results(), []);
  });

  test("without a context manager, the calls have the context of the span", async () => {
    disable();
    enable({ contextManager: false });
    const client = sidecar.client();
    await (await client.acquire("bare")).release();
    const both = spans();
    assert.deepEqual(
      sent.map((one) => one.traceparent),
      both.map(traceparent),
    );
    assert.equal(both.length, 2);
  });

  test("results", async () => {
    const [a, b] = [sidecar.client(), sidecar.client()];
    const lock = await a.acquire("results", { owner: "me", reentrant: true });
    await a.lock("results", { owner: "me", reentrant: true }, () => {});
    assert.deepEqual(results(), ["lock.acquire granted", "lock.acquire reentered", "lock.release released"]);

    assert.equal((await b.tryAcquire("results")).granted, false);
    await assert.rejects(b.acquire("results", { waitMs: 10 }), WaitTimeoutError);
    await assert.rejects(b.acquireMany(["more", "results"], { waitMs: 0 }), LockHeldError);
    assert.equal(await b.request("results", { ifAvailable: true }, (got) => got), null);
    const refused = ["held", "wait_timeout", "held", "held"];
    assert.deepEqual(
      results(),
      refused.map((code) => `lock.acquire ${code}`),
    );

    const once = b.once("results", () => 1);
    await queued(a, "results", 1);
    await lock.release({ outcome: "success", result: 2 });
    assert.equal(await once, 2);
    assert.deepEqual(results().sort(), ["lock.acquire skipped", "lock.release released"]);

    await assert.rejects(b.release("results", lock.token), NotHolderError);
    await assert.rejects(a.acquire("results", { ttlMs: 1 }), InvalidRequestError);
    await assert.rejects(a.acquire(""), InvalidRequestError); // nothing is sent
    await assert.rejects(a.acquireMany(7 as never), InvalidRequestError);
    await a.request("results", () => {});
    await a.locked("results", () => {})();
    const works = ["lock.acquire granted", "lock.release released"];
    assert.deepEqual(results(), [...["lock.release not_holder", "lock.acquire invalid_request"], ...works, ...works]);

    const broken = await a.acquire("results");
    await a.forceRelease("results");
    await aborted(broken.signal);
    await assert.rejects(broken.release(), LockLostError);
    assert.deepEqual(results(), ["lock.acquire granted", "lock.release lock_lost"]);
  });

  test("the mode", async () => {
    const client = sidecar.client();
    await (await client.acquire("doc", { mode: "shared" })).release();
    assert.equal(spans()[0]?.attributes["lock.mode"], "shared");
  });

  test("several keys", async () => {
    const client = sidecar.client();
    await (await client.acquireMany(["account:7", "account:3"])).release();
    const [acquire, ...releases] = spans();
    assert.deepEqual(acquire?.attributes, {
      "lock.keys": ["account:7", "account:3"],
      "lock.type": "account",
      "lock.mode": "exclusive",
      "lock.result": "granted",
    });
    const keys = releases.map(({ attributes }) => attributes["lock.key"]);
    assert.deepEqual(keys.sort(), ["account:3", "account:7"]);
    await (await client.acquireMany(["account:7", "plain"])).release();
    assert.equal(spans()[0]?.attributes["lock.type"], undefined);
  });

  test("an aborted wait is caller_left, for any reason", async () => {
    const [a, b] = [sidecar.client(), sidecar.client()];
    await a.acquire("abort");
    spans();
    for (const reason of [new RangeError("enough"), new UnreachableError("unreachable", "/", "of something else")]) {
      const controller = new AbortController();
      const waiting = b.acquire("abort", { signal: controller.signal });
      await queued(a, "abort", 1);
      controller.abort(reason);
      await assert.rejects(waiting, reason);
      assert.deepEqual(results(), ["lock.acquire caller_left"]);
      await queued(a, "abort", 0);
    }
  });

  test("a withdrawal has the context of its acquire", async () => {
    const client = sidecar.client();
    await client.connect(); // so the next answer is that of the acquire
    const controller = new AbortController();
    const answered = (): void => controller.abort(new RangeError("just now"));
    const name = "locksidecar.answer"; // published when it is parsed
    const got = client.acquire("just", { signal: controller.signal });
    subscribe(name, answered);
    await assert.rejects(got, RangeError);
    unsubscribe(name, answered);
    const [acquire, ...more] = spans();
    assert.deepEqual(more, []);
    assert.equal(acquire?.attributes["lock.result"], "caller_left");
    assert.deepEqual(
      sent.map(({ method, traceparent }) => [method, traceparent]),
      ["PUT", "DELETE"].map((method) => [method, traceparent(acquire as ReadableSpan)]),
    );
  });

  test("one span for all calls of an acquire", async () => {
    const own = await Sidecar.start();
    try {
      const [a, b] = [own.client(), own.client()];
      await a.acquire("restart");
      const [work, waiting] = await inWork(async (work) => [work, b.acquire("restart")] as const);
      await queued(a, "restart", 1);
      spans();
      await own.kill();
      await own.start();
      await waiting;
      const [acquire, ...more] = spans();
      assert.deepEqual(more, []);
      assert.equal(acquire?.attributes["lock.result"], "granted");
      assert.deepEqual(acquire?.parentSpanContext, work.spanContext());
      const tries = sent.filter(({ method }) => method === "PUT").slice(1);
      assert.ok(tries.length > 1, "it was never tried again");
      assert.deepEqual(new Set(tries.map((one) => one.traceparent)), new Set([traceparent(acquire as ReadableSpan)]));
    } finally {
      await own.close();
    }
  });

  test("no answer is an error", async () => {
    const away = new Client({ socketPath: join(sidecar.folder, "none") });
    await assert.rejects(away.acquire("away"), UnreachableError);
    assert.deepEqual(results(), ["lock.acquire unreachable error: unreachable"]);

    const own = await Sidecar.start();
    try {
      const lock = await own.client().acquire("suspended");
      const hasty = own.client({ timeoutMs: 200 });
      spans();
      own.hang();
      await assert.rejects(hasty.release("suspended", lock.token), TimeoutError);
      assert.deepEqual(results(), ["lock.release timeout error: timeout"]);
    } finally {
      own.resume();
      await own.close();
    }
  });

  test("answers of another server are errors, and those of the sidecar from 500", async () => {
    const problem = (status: number, code: string): string => {
      const body = JSON.stringify({ code, detail: "the database is away" });
      return `HTTP/1.1 ${status} No\r\nContent-Length: ${body.length}\r\nConnection: close\r\n\r\n${body}`;
    };
    const answers = ["220 smtp\r\n\r\n", problem(503, "store_unavailable"), problem(429, "limit")];
    const server = createServer((socket) => {
      socket.once("data", () => socket.end(answers.shift() ?? ""));
    });
    const socketPath = join(sidecar.folder, "other");
    await new Promise<void>((resolve) => server.listen(socketPath, resolve));
    const client = new Client({ socketPath });
    await assert.rejects(client.acquire("other"), BadAnswerError);
    await assert.rejects(client.acquire("other"), { code: "store_unavailable" });
    await assert.rejects(client.acquire("other"), { code: "limit" });
    server.close();
    assert.deepEqual(results(), [
      "lock.acquire bad_answer error: bad_answer",
      "lock.acquire store_unavailable error: store_unavailable",
      "lock.acquire limit",
    ]);
  });

  test("an old sidecar is no error of the call", async () => {
    const client = sidecar.client();
    await client.connect();
    const about = await client.describe();
    about.features = about.features.filter((feature) => feature !== "hold");
    await assert.rejects(client.acquire("old", { maxHoldMs: 1000 }), UnsupportedError);
    assert.deepEqual(results(), ["lock.acquire unsupported"]);
  });

  test("an exporter that throws costs no lock", async () => {
    disable();
    const fail = (): never => {
      throw new Error("of the exporter");
    };
    const processor = { onStart: () => {}, onEnd: fail, forceFlush: async () => {}, shutdown: async () => {} };
    enable({ processor });
    const client = sidecar.client();
    const lock = await client.acquire("exporter", { waitMs: patienceMs });
    await assert.rejects(client.acquire("exporter", { waitMs: 0 }), LockHeldError);
    assert.equal((await lock.release()).released, true);
  });

  test("a trace without sampling is marked", async () => {
    disable();
    enable({ sampler: new AlwaysOffSampler() });
    await (await sidecar.client().acquire("unsampled")).release();
    assert.deepEqual(results(), []);
    for (const one of sent) {
      assert.match(one.traceparent, /-00$/);
    }
    assert.equal(sent.length, 2);
  });
});
