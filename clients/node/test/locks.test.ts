import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { after, afterEach, before, describe, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import {
  InvalidRequestError,
  Lock,
  LockHeldError,
  LockLostError,
  LocksidecarError,
  NotGrantedError,
  NotHeldError,
  NotHolderError,
  StopRequestedError,
  TooLargeError,
  WaitTimeoutError,
} from "locksidecar";
import { aborted, queued, Sidecar, until } from "./sidecar";

let sidecar: Sidecar;
before(async () => {
  sidecar = await Sidecar.start({ ALLOW_FORCE: "true" });
});
afterEach(() => sidecar.closeClients());
after(() => sidecar.remove());

describe("acquire", () => {
  test("holds a lock until it is released; the next token is greater", async () => {
    const [a, b] = [sidecar.client({ name: "a" }), sidecar.client()];
    const lock = await a.acquire("acquire:1", { data: { by: "me" } });
    assert.equal(lock.key, "acquire:1");
    assert.equal(lock.session, "a");
    assert.equal(lock.bind, "session");
    assert.ok(lock.expiresInMs > 0 && lock.acquiredAt instanceof Date);
    await assert.rejects(b.acquire("acquire:1", { waitMs: 0 }), (error) => {
      assert.ok(
        error instanceof LockHeldError && error instanceof NotGrantedError && error instanceof LocksidecarError,
      );
      assert.equal(error.code, "held");
      assert.equal(error.status, 423);
      assert.equal(error.holder?.session, "a");
      assert.deepEqual(error.holder?.data, { by: "me" });
      return true;
    });
    const released = await lock.release();
    assert.equal(released.released, true);
    assert.deepEqual(await lock.release(), released, "a second release asks nobody");
    assert.equal(lock.signal.aborted, false, "a release is no loss");
    const next = await b.acquire("acquire:1", { waitMs: 0 });
    assert.ok(next.token > lock.token);
  });

  test("without waitMs it waits for ever, with it for so long", async () => {
    const [a, b] = [sidecar.client(), sidecar.client()];
    const lock = await a.acquire("wait");
    await until("its place is told", async () => {
      const error = await b.acquire("wait", { waitMs: 60 }).catch((error) => error);
      assert.ok(error instanceof WaitTimeoutError);
      assert.ok(error.waitedMs >= 60);
      return error.queuePosition === 1; // none: its time was up before it stood in line
    });
    const waiting = b.acquire("wait");
    await queued(a, "wait", 1);
    await lock.release();
    assert.ok((await waiting).token > lock.token);
    const forever = a.acquire("wait", { waitMs: Number.POSITIVE_INFINITY });
    await queued(a, "wait", 1);
    await (await waiting).release();
    await forever;
  });

  test("keys of any kind", async () => {
    const client = sidecar.client();
    for (const key of ["a/b", "..", "ä ö?#%", "x:y/z"]) {
      const lock = await client.acquire(key);
      assert.equal(lock.key, key);
      assert.equal((await client.get(key)).mine, true);
      await lock.release();
    }
    await assert.rejects(client.acquire(""), InvalidRequestError);
    await assert.rejects(client.acquire("\ud800"), /key: .*surrogate/);
  });

  test("what is no number never leaves", async () => {
    const client = sidecar.client();
    await assert.rejects(client.acquire("nan", { ttlMs: Number.NaN }), /ttlMs: NaN/);
    await assert.rejects(client.acquire("nan", { waitMs: Number.NaN }), /waitMs: NaN/);
    // More than a timer of Node holds, which would end at once.
    await assert.rejects(client.acquire("long", { waitMs: 2 ** 31 }), { code: "invalid_request", message: /wait_ms/ });
    await client.acquire("long");
    const patient = sidecar.client({ timeoutMs: 2 ** 31 });
    await assert.rejects(patient.acquire("long", { waitMs: 50 }), WaitTimeoutError);
    await assert.rejects(client.acquire("nan", { ttlMs: 1 }), (error) => {
      assert.ok(error instanceof InvalidRequestError);
      assert.match(error.message, /ttl_ms/);
      return true;
    });
  });

  test("tryAcquire is a discriminated union", async () => {
    const [a, b] = [sidecar.client(), sidecar.client()];
    const first = await a.tryAcquire("try", { data: 1 });
    assert.ok(first.granted);
    const second = await b.tryAcquire("try");
    assert.ok(!second.granted);
    assert.equal(second.reason, "held");
    assert.equal(second.holder?.data, 1);
    assert.ok(second.error instanceof LockHeldError);
    const third = await b.tryAcquire("try", { waitMs: 20 });
    assert.ok(!third.granted && third.reason === "wait_timeout");
    await first.lock.release();
  });
});

describe("a held lock", () => {
  test("check, setData and stop", async () => {
    const [a, b] = [sidecar.client(), sidecar.client()];
    const heard: (string | null)[] = [];
    const lock = await a.acquire("stop", { onStop: ({ reason }) => heard.push(reason) });
    const state = await lock.check();
    assert.equal(state.token, lock.token);
    assert.equal(state.stopping, null);
    await lock.setData(["new"]);
    assert.deepEqual((await b.get("stop")).holder?.data, ["new"]);
    await b.stop("stop", { reason: "deploy" });
    const reason = await aborted(lock.stopSignal);
    assert.ok(reason instanceof StopRequestedError);
    assert.equal(reason.reason, "deploy");
    assert.equal(lock.stopping?.reason, "deploy");
    assert.equal(lock.signal.aborted, false);
    const { stopping } = await lock.check();
    assert.equal(stopping?.reason, "deploy");
    assert.ok(stopping?.requestedAt instanceof Date);
    await b.stop("stop", { reason: "now" });
    await until("both were heard", () => heard.length === 2);
    assert.deepEqual(heard, ["deploy", "now"]);
    await lock.release();
    await assert.rejects(b.stop("stop"), NotHeldError);
  });

  test("is lost after maxHoldMs: signal, callback, check, release", async () => {
    const client = sidecar.client();
    const told: LockLostError[] = [];
    const lock = await client.acquire("max", { maxHoldMs: 300, onLost: (error) => told.push(error) });
    const reason = await aborted(lock.signal);
    assert.ok(reason instanceof LockLostError);
    assert.equal(reason.reason, "max_hold");
    assert.equal(reason.token, lock.token);
    assert.equal(lock.lost, reason);
    assert.deepEqual(told, [reason]);
    await assert.rejects(lock.check(), LockLostError);
    await assert.rejects(lock.release(), LockLostError);
  });

  test("is lost even if the news comes before the grant", async () => {
    const client = sidecar.client();
    const reasons = await Promise.all(
      Array.from({ length: 300 }, async (_, i) => {
        // It may be over before the sidecar has answered, which is a no.
        const lock = await client.acquire(`soon:${i}`, { maxHoldMs: 3 }).catch((error) => error);
        return lock instanceof Lock ? ((await aborted(lock.signal)) as LockLostError).reason : lock.code;
      }),
    );
    assert.ok(reasons.includes("max_hold"));
    assert.deepEqual(
      reasons.filter((reason) => reason !== "max_hold" && reason !== "store_unavailable"),
      [],
    );
  });

  test("a listener that throws does not keep the news from others", async () => {
    const client = sidecar.client();
    const options = { owner: "o", reentrant: true };
    const thrown = new Promise<Error>((resolve) => process.setUncaughtExceptionCaptureCallback(resolve));
    const fail = () => {
      throw new RangeError("of the app");
    };
    await client.acquire("listener", { ...options, onLost: fail });
    const told: LockLostError[] = [];
    await client.acquire("listener", { ...options, onLost: (error) => told.push(error) });
    await client.forceRelease("listener");
    assert.ok((await thrown) instanceof RangeError);
    process.setUncaughtExceptionCaptureCallback(null);
    assert.equal(told[0]?.reason, "forced");
  });

  test("that was lost before anybody asked for its signal says so", async () => {
    const client = sidecar.client();
    const lock = await client.acquire("late", { maxHoldMs: 300 });
    await until("it is lost", () => lock.lost !== null);
    assert.equal(lock.signal.aborted, true);
  });

  test("is lost by forceRelease", async () => {
    const [a, b] = [sidecar.client(), sidecar.client()];
    const lock = await a.acquire("force");
    await b.forceRelease("force");
    assert.equal(((await aborted(lock.signal)) as LockLostError).reason, "forced");
    await assert.rejects(b.forceRelease("force"), NotHeldError);
  });

  test("bind ttl: its time counts from when it was asked for, however late the answer is read", async () => {
    const client = sidecar.client();
    await client.acquire("first", { bind: "ttl", ttlMs: 60_000 }); // from now on nothing comes before the call
    const asking = client.acquire("late", { bind: "ttl", ttlMs: 3000 });
    await new Promise(setImmediate);
    for (const began = performance.now(); performance.now() - began < 3000; ) {
      // an app that is busy
    }
    const lock = await asking;
    // A timer, and no clock: of two that are due it is always the earlier one that comes first.
    const late = sleep(2500, "it counts from the answer", { ref: false });
    const first = await Promise.race([aborted(lock.signal), late]);
    assert.ok(first instanceof LockLostError, "the sidecar granted it three seconds ago");
  });

  test("bind ttl: outlives its client, is extended and released by its token, and ends by itself", async () => {
    const [a, b] = [sidecar.client(), sidecar.client()];
    const requestId = randomUUID();
    const lock = await a.acquire("ttl", { bind: "ttl", ttlMs: 60_000, requestId });
    assert.equal((await a.acquire("ttl", { bind: "ttl", ttlMs: 60_000, requestId })).token, lock.token);
    await a.close();
    assert.equal((await b.get("ttl")).state, "held");
    assert.ok((await b.check("ttl", lock.token)).expiresInMs > 30_000);
    assert.ok((await b.extend("ttl", lock.token, 120_000)).expiresInMs > 60_000);
    assert.equal((await b.release("ttl", lock.token)).released, true);
    await assert.rejects(b.release("ttl", lock.token), NotHolderError);
    const shortest = await b.acquire("ttl:2", { bind: "ttl", ttlMs: 500 });
    const short = await b.acquire("ttl", { bind: "ttl", ttlMs: 60_000 });
    assert.ok((await short.extend(500)).expiresInMs <= 500);
    for (const lock of [shortest, short]) {
      assert.equal(((await aborted(lock.signal)) as LockLostError).reason, "expired");
    }
    const session = await b.acquire("no ttl");
    await assert.rejects(session.extend(1000), InvalidRequestError);
  });

  test("minHoldMs keeps it from others after the release", async () => {
    const [a, b] = [sidecar.client(), sidecar.client()];
    await (await a.acquire("min:long", { minHoldMs: 3_600_000 })).release();
    assert.equal((await b.tryAcquire("min:long")).granted, false);
    await (await a.acquire("min", { minHoldMs: 300 })).release();
    await b.acquire("min", { waitMs: 60_000 });
  });
});

describe("reentrancy", () => {
  test("the same owner enters again, and releases as often", async () => {
    const client = sidecar.client();
    const one = await client.acquire("re", { owner: "w1", reentrant: true });
    const two = await client.acquire("re", { owner: "w1", reentrant: true });
    assert.equal(two.token, one.token);
    assert.deepEqual([one.reentry, two.reentry], [1, 2]);
    assert.equal((await client.tryAcquire("re", { owner: "w2", reentrant: true })).granted, false);
    await assert.rejects(one.release({ reentry: 1 }), (error) => {
      assert.ok(error instanceof InvalidRequestError);
      assert.equal(error.reentry, 2);
      return true;
    });
    assert.deepEqual((await one.release({ reentry: 2 })).released, false);
    assert.equal((await client.get("re")).mine, true);
    assert.deepEqual((await two.release()).released, true);
  });

  test("the task is the owner, by choice", async () => {
    const client = sidecar.client();
    await assert.rejects(client.acquire("task", { reentrant: true }), /owner/);
    await client.asTask(async () => {
      await client.acquire("task", { reentrant: true });
      await new Promise(setImmediate);
      const again = await client.acquire("task", { reentrant: true, waitMs: 0 });
      assert.equal(again.reentry, 2);
      assert.equal(
        await client.asTask("another", async () => (await client.tryAcquire("task", { reentrant: true })).granted),
        false,
      );
    });
  });

  test("withLock inside of withLock", async () => {
    const client = sidecar.client();
    const options = { reentrant: true, waitMs: 0 };
    const inner = () => client.withLock("nest", options, (lock) => lock.reentry);
    assert.equal(await client.withLock("nest", options, inner), 2);
    assert.equal((await client.get("nest")).state, "free");
    await client.withLock("nest", { waitMs: 0 }, async () => {
      await assert.rejects(inner(), LockHeldError);
    });
  });
});

describe("the shapes", () => {
  test("await using releases at the end of the block", async () => {
    const client = sidecar.client();
    {
      await using lock = await client.acquire("using");
      assert.equal((await client.get("using")).token, lock.token);
    }
    assert.equal((await client.get("using")).state, "free");
    {
      await using group = await client.acquireMany(["using:1", "using:2"]);
      assert.equal(group.locks.length, 2);
    }
    assert.equal((await client.get("using:2")).state, "free");
  });

  test("the end of an await using block tells of a loss", async () => {
    const client = sidecar.client();
    await assert.rejects(
      async () => {
        await using lock = await client.acquire("lost", { maxHoldMs: 100 });
        await aborted(lock.signal);
      },
      { code: "lock_lost", reason: "max_hold" },
    );
    await assert.rejects(
      async () => {
        await using group = await client.acquireMany(["lost:1", "lost:2"]);
        await client.release("lost:1", group.locks[0]?.token ?? 0); // so that its own release fails
      },
      { code: "not_holder" },
    );
    assert.equal((await client.get("lost:2")).state, "free");
  });

  test("await using does not hide the error of the block", async () => {
    const client = sidecar.client();
    await assert.rejects(
      async () => {
        await using lock = await client.acquire("hide", { maxHoldMs: 100 });
        await aborted(lock.signal);
        throw new RangeError("of the block");
      },
      (both: { name: string; error: Error; suppressed: Error }) => {
        assert.equal(both.name, "SuppressedError");
        assert.ok(both.error instanceof LockLostError);
        assert.ok(both.suppressed instanceof RangeError);
        return true;
      },
    );
  });

  test("withLock returns, throws, and tells of a loss", async () => {
    const client = sidecar.client();
    assert.equal(await client.withLock("with", (lock) => lock.key), "with");
    const failing = client.withLock("with", { waitMs: 0 }, async () => {
      throw new RangeError("of the body");
    });
    await assert.rejects(failing, RangeError);
    assert.equal((await client.get("with")).state, "free");
    const options = { maxHoldMs: 300, waitMs: 0 };
    await assert.rejects(
      client.withLock("with", options, ({ signal }) => aborted(signal)),
      LockLostError,
    );
    // The holder is told first, and then the lock is released: who comes next may have to wait.
    const both = client.withLock("with", { ...options, waitMs: 60_000 }, async ({ signal }) => {
      await aborted(signal);
      throw new RangeError("of the body");
    });
    const warning = new Promise<Error>((resolve) => process.once("warning", resolve));
    await assert.rejects(both, RangeError);
    assert.match((await warning).message, /could not be released.*max_hold/);
  });

  test("locked makes a function that runs under a lock", async () => {
    const client = sidecar.client();
    const render = client.locked(
      (id: number) => `report:${id}`,
      async (id) => (await client.get(`report:${id}`)).mine,
    );
    assert.equal(await render(7), true);
    assert.equal((await client.get("report:7")).state, "free");
  });

  test("request in the shape of the Web Locks API", async () => {
    const client = sidecar.client();
    assert.equal(await client.request("web", async (lock) => `${lock.name} ${lock.mode}`), "web exclusive");
    await client.request("web", { mode: "exclusive" }, async () => {
      assert.equal(await client.request("web", { ifAvailable: true }, (lock) => lock), null);
      const controller = new AbortController();
      const waiting = client.request("web", { signal: controller.signal }, () => {});
      await queued(client, "web", 1);
      controller.abort();
      await assert.rejects(waiting, { name: "AbortError" });
      await queued(client, "web", 0); // else the release may hand it the lock, for a moment
    });
    assert.equal(await client.request("web", { ifAvailable: true }, (lock) => lock?.name), "web");
    assert.equal((await client.get("web")).state, "free");
    for (const options of [
      { steal: true },
      { mode: "shared" },
      { ifAvailable: true, signal: new AbortController().signal },
    ] as const) {
      await assert.rejects(
        client.request("web", options, () => {}),
        { name: "NotSupportedError", code: "not_supported" },
      );
    }
  });

  test("acquireMany: all or none", async () => {
    const [a, b] = [sidecar.client(), sidecar.client()];
    const group = await a.acquireMany(["many:2", "many:1"]);
    assert.deepEqual(
      group.locks.map((lock) => lock.key),
      ["many:2", "many:1"],
    );
    assert.ok(group.get("many:1"));
    await assert.rejects(b.acquireMany(["many:0", "many:1"], { waitMs: 0 }), (error) => {
      assert.ok(error instanceof LockHeldError);
      assert.equal(error.key, "many:1");
      return true;
    });
    assert.equal((await b.get("many:0")).state, "free");
    await b.forceRelease("many:2");
    assert.ok((await aborted(group.signal)) instanceof LockLostError);
    await assert.rejects(group.release(), LockLostError);
    assert.equal((await b.get("many:1")).state, "free", "the others are released all the same");
  });
});

describe("once", () => {
  test("one does it, the others get the result", async () => {
    const [a, b] = [sidecar.client(), sidecar.client()];
    let runs = 0;
    let go = () => {};
    const gate = new Promise<void>((resolve) => {
      go = resolve;
    });
    const run = async () => {
      runs++;
      await gate;
      return { digest: "4711" };
    };
    const first = a.once("once", run);
    await until("the first does it", () => runs === 1);
    const others = [a.once("once", run), b.once("once", run)];
    await queued(a, "once", 2);
    go();
    assert.deepEqual(await Promise.all([first, ...others]), Array(3).fill({ digest: "4711" }));
    assert.equal(runs, 1);
  });

  test("who runs it gets what the others get: JSON", async () => {
    const client = sidecar.client();
    assert.deepEqual(await client.once("json", () => ({ at: new Date(0), no: undefined }) as unknown), {
      at: "1970-01-01T00:00:00.000Z",
    });
    assert.equal(await client.once("json", () => {}), null);
    await assert.rejects(
      client.once("json", () => 1n),
      TypeError,
    );
    assert.equal((await client.get("json")).state, "free");
  });

  test("if it fails, the next in line tries", async () => {
    const [a, b] = [sidecar.client(), sidecar.client()];
    let fail: (() => void) | undefined;
    const first = a.once("fails", () => new Promise((_, reject) => (fail = () => reject(new RangeError("no")))));
    await until("the first does it", () => fail !== undefined); // that the lock is held others may hear before it
    const second = b.once("fails", () => "done");
    await queued(a, "fails", 1);
    fail?.();
    await assert.rejects(first, RangeError);
    assert.equal(await second, "done");
  });

  test("a result that is too large is an error, and the lock is free", async () => {
    const client = sidecar.client();
    await assert.rejects(
      client.once("large", () => "x".repeat(5000)),
      TooLargeError,
    );
    assert.equal((await client.get("large")).state, "free");
  });
});

describe("looking", () => {
  test("get and locks, page by page", async () => {
    const client = sidecar.client();
    await client.acquireMany(["look:1", "look:2", "look:3"]);
    const keys: string[] = [];
    for await (const lock of client.locks({ scope: "all", prefix: "look:", limit: 2 })) {
      assert.equal(lock.mine, true);
      keys.push(lock.key);
    }
    assert.deepEqual(keys, ["look:1", "look:2", "look:3"]);
    assert.ok((await client.page({ type: "look", limit: 1 })).nextCursor);
    assert.equal((await client.get("look:0", { fresh: true })).state, "free");
    assert.ok((await client.about()).features.includes("wait"));
  });

  test("events", async () => {
    const [a, b] = [sidecar.client(), sidecar.client()];
    const seen: string[] = [];
    const watching = (async () => {
      for await (const event of b.events("watched")) {
        seen.push(event.type);
        if (event.type === "released") {
          return event.result;
        }
      }
      return undefined;
    })();
    await until("the watch stands", () => seen.length === 1);
    const lock = await a.acquire("watched");
    await a.stop("watched", { reason: "r" });
    await lock.release({ outcome: "success", result: [1] });
    assert.deepEqual(await watching, [1]);
    assert.deepEqual(seen, ["state", "acquired", "stopping", "released"]);
  });

  test("events ends while it waits: by its signal, by return, by close", async () => {
    const client = sidecar.client();
    const controller = new AbortController();
    const [one, two, three] = [
      client.events("quiet", { signal: controller.signal }),
      client.events("quiet"),
      client.events("quiet"),
    ];
    for (const watch of [one, two, three]) {
      assert.equal((await watch.next()).value?.type, "state");
    }
    const waiting = [one.next(), two.next(), three.next()] as const;
    controller.abort(new RangeError("enough"));
    await assert.rejects(waiting[0], RangeError);
    await two.return?.();
    assert.equal((await waiting[1]).done, true);
    const closed = assert.rejects(waiting[2], { code: "session_ended", name: "ClientClosedError" });
    await client.close();
    await closed;
    assert.equal((await one.next()).done, true);
  });
});
