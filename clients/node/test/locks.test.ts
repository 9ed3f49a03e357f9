import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { after, afterEach, before, describe, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import {
  type AcquireOptions,
  Client,
  type ClientOptions,
  InvalidRequestError,
  type LeadOptions,
  Lock,
  LockHeldError,
  LockLostError,
  LocksidecarError,
  NotGrantedError,
  NotHeldError,
  NotHolderError,
  StopRequestedError,
  WaitTimeoutError,
} from "locksidecar";
import { Session } from "../dist/session";
import { aborted, queued, Sidecar, until } from "./sidecar";

let sidecar: Sidecar;
before(async () => {
  sidecar = await Sidecar.start({ ALLOW_FORCE: "true" });
});
afterEach(() => sidecar.closeClients());
after(() => sidecar.close());

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
    await until("the error has its position", async () => {
      const error = await b.acquire("wait", { waitMs: 60 }).catch((error) => error);
      assert.ok(error instanceof WaitTimeoutError);
      assert.ok(error.waitedMs >= 60);
      return error.queuePosition === 1; // none: its time ended before it was in the queue
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

  test("invalid durations are refused", async () => {
    const client = sidecar.client();
    await assert.rejects(client.acquire("nan", { ttlMs: Number.NaN }), /ttlMs: NaN/);
    await assert.rejects(client.acquire("nan", { waitMs: Number.NaN }), /waitMs: NaN/);
    // A timer of Node cannot be this long, and would end at once.
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

  test("unknown options are refused", async () => {
    const client = sidecar.client();
    const wrong = { wait: 50 } as AcquireOptions;
    const refused = { code: "invalid_request", message: /^option wait is not known; the options are waitMs, / };
    await assert.rejects(client.acquire("unknown", wrong), refused);
    await assert.rejects(client.tryAcquire("unknown", wrong), refused);
    await assert.rejects(client.acquireMany(["unknown"], wrong), refused);
    await assert.rejects(
      client.lock("unknown", wrong, () => assert.fail()),
      refused,
    );
    await assert.rejects(
      client.once("unknown", wrong, () => assert.fail()),
      refused,
    );
    await assert.rejects(client.semaphore("unknown", 2).acquire(wrong), refused);
    await assert.rejects(
      client.lead("unknown", { waitMs: 50 } as LeadOptions, () => assert.fail()),
      /waitMs is not known/,
    );
    assert.throws(() => sidecar.client({ timeout: 50 } as ClientOptions), /timeout is not known.* timeoutMs/);
    await assert.rejects(client.acquire("unknown", { ttlMs: "5" as never }), /ttlMs: '5' is not/);
    assert.equal((await client.get("unknown")).state, "free");
  });

  // Proves: client wrong use
  test("what is no object of options, a wrong value and a wrong key are refused by name", async () => {
    const client = sidecar.client();
    const never = () => assert.fail("it runs");
    const circle: { self?: unknown } = {};
    circle.self = circle;
    const refused = async (options: unknown, message: RegExp) => {
      const wrong = options as AcquireOptions;
      const expected = { name: "InvalidRequestError", code: "invalid_request", message };
      await assert.rejects(client.acquire("refused", wrong), expected);
      await assert.rejects(client.tryAcquire("refused", wrong), expected);
      await assert.rejects(client.acquireMany(["refused"], wrong), expected);
      await assert.rejects(client.lock("refused", wrong, never), expected);
      await assert.rejects(client.once("refused", wrong, never), expected);
      await assert.rejects(client.semaphore("refused", 2).acquire(wrong), expected);
      await assert.rejects(client.semaphore("refused", 2).run(wrong, never), expected);
      assert.throws(() => client.locked("refused", wrong, never), expected);
    };
    await refused(5000, /^options: 5000 is not an object of options, such as \{ waitMs: 5000 \}$/);
    await refused(true, /^options: true /);
    await refused("5s", /^options: '5s' /);
    await refused(null, /^options: null /);
    await refused([], /^options: \[\] /);
    await refused(() => {}, /^options: \[Function/);
    await refused({ waitMs: null }, /^waitMs: null is not a number of milliseconds$/);
    await refused({ data: Number.NaN }, /^data: NaN cannot be carried by JSON$/);
    await refused({ data: { rows: [1n] } }, /^data, member 0: 1n cannot/);
    await refused({ data: { run: never } }, /^data, member run: \[Function/);
    await refused({ data: [undefined] }, /^data, member 0: undefined cannot/);
    await refused({ data: new Map([[1, 2]]) }, /^data: Map\(1\)/);
    await refused({ data: { raw: Buffer.from("x") } }, /^data, member raw: .*Buffer/);
    await refused({ data: circle }, /^data cannot be carried by JSON: .*circular/);
    await refused({ owner: Buffer.from("me") }, /^owner: .*Buffer.* is not a text$/);
    await refused({ reentrant: 1 }, /^reentrant: 1 is neither/);
    await refused({ signal: "now" }, /^signal: 'now' is not an AbortSignal$/);
    await refused({ onLost: true }, /^onLost: true is not a function$/);
    const wrongKey = { code: "invalid_request", message: /^key: .*Buffer.* is not a text of 1 to 512 bytes$/ };
    const bytes = Buffer.from("refused") as unknown as string;
    await assert.rejects(client.acquire(bytes), wrongKey);
    await assert.rejects(client.acquireMany([bytes]), wrongKey);
    await assert.rejects(client.acquireMany("refused" as never), /^InvalidRequestError: keys: /);
    await assert.rejects(client.get(bytes), wrongKey);
    assert.throws(() => client.semaphore("refused", undefined as never), /^InvalidRequestError: limit: undefined/);
    await assert.rejects(client.lock("refused", undefined as never), /the function to run: undefined is not/);
    await assert.rejects(
      client.lock("refused", never as never, undefined as never),
      /the function to run: undefined is not/,
    );
    await assert.rejects(client.lead("refused", 5 as never, never), /^InvalidRequestError: options: 5 /);
    assert.throws(() => new Client({ name: Buffer.from("x") as never }), /^InvalidRequestError: name: /);
    assert.throws(() => new Client("/tmp/x.sock" as never), {
      code: "invalid_request",
      message: "options: '/tmp/x.sock' is not an object of options, such as { socketPath: \"/tmp/x.sock\" }",
    });
    assert.equal((await client.get("refused")).state, "free");

    const lock = await client.acquire("refused", { data: { at: new Date(0), gone: undefined } as never, waitMs: 0 });
    assert.deepEqual((await client.get("refused")).holder?.data, { at: "1970-01-01T00:00:00.000Z" });
    await assert.rejects(lock.update(Number.NaN), /^InvalidRequestError: data: NaN/);
    await assert.rejects(lock.extend("1" as never), /^InvalidRequestError: ttlMs: '1'/);
    await assert.rejects(lock.release("success" as never), /such as \{ outcome: "success" \}/);
    await assert.rejects(lock.release({ outcome: "success", result: 1n as never }), /result: 1n/);
    assert.equal((await lock.release()).released, true, "a refused release is none");
    await assert.rejects(
      client.once("refused", () => Number.NaN),
      /the result: NaN cannot/,
    );
    assert.equal((await client.get("refused")).state, "free");
  });

  // Proves: client wrong use
  test("an option that is undefined is not given", async () => {
    const client = sidecar.client({ name: undefined, ttlMs: undefined, timeoutMs: undefined, reconnectMs: undefined });
    const none = Object.fromEntries(
      ["mode", "limit", "ttlMs", "bind", "owner", "reentrant", "data", "requestId", "signal", "onLost", "onStop"].map(
        (name) => [name, undefined],
      ),
    );
    const lock = await client.acquire("undefined", { ...none, waitMs: undefined });
    assert.equal((await client.tryAcquire("undefined", { ...none, waitMs: undefined })).granted, false);
    await lock.release({ outcome: undefined, result: undefined, reentry: undefined });
    assert.deepEqual(await client.once("undefined", { waitMs: undefined, data: undefined }, () => 1), 1);
    assert.equal(await client.semaphore("undefined", 1).run({ ...none }, ({ slot }) => slot), 0);
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
  test("check, update and stop", async () => {
    const [a, b] = [sidecar.client(), sidecar.client()];
    const received: (string | null)[] = [];
    const lock = await a.acquire("stop", { onStop: ({ reason }) => received.push(reason) });
    const state = await lock.check();
    assert.equal(state.token, lock.token);
    assert.equal(state.stopping, null);
    await lock.update(["new"]);
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
    await until("both were received", () => received.length === 2);
    assert.deepEqual(received, ["deploy", "now"]);
    await lock.release();
    await assert.rejects(b.stop("stop"), NotHeldError);
  });

  test("is lost after maxHoldMs: signal, callback, check, release", async () => {
    const client = sidecar.client();
    const delivered: LockLostError[] = [];
    const lock = await client.acquire("max", { maxHoldMs: 300, onLost: (error) => delivered.push(error) });
    const reason = await aborted(lock.signal);
    assert.ok(reason instanceof LockLostError);
    assert.equal(reason.reason, "max_hold");
    assert.equal(reason.token, lock.token);
    assert.equal(lock.lost, reason);
    assert.deepEqual(delivered, [reason]);
    await assert.rejects(lock.check(), LockLostError);
    await assert.rejects(lock.release(), LockLostError);
  });

  test("is lost also if the news comes before the grant", async () => {
    const client = sidecar.client();
    const reasons = await Promise.all(
      Array.from({ length: 300 }, async (_, i) => {
        // The hold may end before the answer. Then the acquire is refused.
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
    const delivered: LockLostError[] = [];
    await client.acquire("listener", { ...options, onLost: (error) => delivered.push(error) });
    await client.forceRelease("listener");
    assert.ok((await thrown) instanceof RangeError);
    process.setUncaughtExceptionCaptureCallback(null);
    assert.equal(delivered[0]?.reason, "forced");
  });

  test("its signal is aborted if the loss came before the first use", async () => {
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

  test("bind ttl: its time counts from the question, also if the answer is read late", async () => {
    const client = sidecar.client();
    await client.acquire("first", { bind: "ttl", ttlMs: 60_000 }); // so the next request is the acquire
    const asking = client.acquire("late", { bind: "ttl", ttlMs: 3000 });
    await new Promise(setImmediate);
    for (const began = performance.now(); performance.now() - began < 3000; ) {
      // a busy app
    }
    const lock = await asking;
    // A timer and no clock, because of two due timers the earlier one runs first.
    const late = sleep(2500, "it counts from the answer", { ref: false });
    const first = await Promise.race([aborted(lock.signal), late]);
    assert.ok(first instanceof LockLostError, "the sidecar granted it three seconds ago");
  });

  // Proves: client own clock
  test("bind ttl: an extension that comes after its end does not undo the loss, and the release asks the store", async () => {
    const [a, b] = [sidecar.client(), sidecar.client()];
    const lock = await a.acquire("late extension", { bind: "ttl", ttlMs: 3000 });
    await b.extend("late extension", lock.token, 3_600_000); // the other client does not know
    assert.equal(((await aborted(lock.signal)) as LockLostError).reason, "expired");
    assert.ok((await lock.extend(3_600_000)).expiresInMs > 0);
    assert.equal(lock.lost?.reason, "expired");
    assert.equal((await lock.release()).released, true);
    assert.equal((await b.get("late extension", { fresh: true })).state, "free");
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

  test("asTask makes the task the owner", async () => {
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

  test("lock inside of lock", async () => {
    const client = sidecar.client();
    const options = { reentrant: true, waitMs: 0 };
    const inner = () => client.lock("nest", options, (lock) => lock.reentry);
    assert.equal(await client.lock("nest", options, inner), 2);
    assert.equal((await client.get("nest")).state, "free");
    await client.lock("nest", { waitMs: 0 }, async () => {
      await assert.rejects(inner(), LockHeldError);
    });
  });
});

describe("several keys", () => {
  // Proves: client groups
  test("concurrent flows of one client wait for each other, in any order of the keys", async () => {
    const client = sidecar.client();
    const keys = ["acc:1", "acc:2", "acc:3", "acc:4"];
    const holders = new Map<string, number>();
    const flow = async (seed: number): Promise<void> => {
      for (let times = 0; times < 10; times++) {
        const wanted = [0, 1].map((step) => keys[(seed + times * 3 + step * (1 + (seed % 3))) % keys.length] as string);
        await using group = await client.acquireMany(wanted, { waitMs: 60_000 });
        for (const key of wanted) {
          assert.equal(holders.get(key), undefined, `${key} has two holders`);
          holders.set(key, seed);
        }
        await new Promise(setImmediate);
        assert.equal(group.signal.aborted, false);
        for (const key of wanted) {
          holders.delete(key);
        }
      }
    };
    const single = async (): Promise<void> => {
      for (let times = 0; times < 20; times++) {
        await client.lock(keys[times % keys.length] as string, { waitMs: 60_000 }, ({ key }) => {
          assert.equal(holders.get(key), undefined, `${key} has two holders`);
        });
      }
    };
    await Promise.all([...Array.from({ length: 12 }, (_, seed) => flow(seed)), single(), single()]);
    for (const key of keys) {
      assert.equal((await client.get(key)).state, "free");
    }
  });
});

describe("a call that waits for a lock of its own client", () => {
  test("is no error, and a warning if the client has held the lock all the time", async (t) => {
    const before = Session.ownKeyMs;
    t.after(() => {
      Session.ownKeyMs = before;
    });
    Session.ownKeyMs = 100;
    const [client, other] = [sidecar.client(), sidecar.client()];
    const warnings: Error[] = [];
    const listen = (warning: Error): void => void warnings.push(warning);
    process.on("warning", listen);
    t.after(() => process.off("warning", listen));

    // No warnings: another pod holds the first lock, the second is passed on meanwhile, the third is a permit of several.
    const [foreign, passed] = [await other.acquire("foreign"), await other.acquire("passed")];
    const [permit, last] = [client.semaphore("of two", 2), other.semaphore("of two", 2)];
    const [mine, theirs] = [await permit.acquire(), await last.acquire()];
    const next = client.acquire("passed");
    await queued(other, "passed", 1);
    const waits = [client.acquire("foreign"), client.acquire("passed"), permit.acquire()];
    await queued(other, "foreign", 1);
    await queued(other, "passed", 2);
    await queued(other, "of two", 1);
    await passed.release();
    const got = await next;

    const own = await client.acquire("own");
    const waiting = client.acquire("own"); // its timer is the last
    await until("the warning", () => warnings.length > 0);
    const more = client.acquire("own");
    await queued(other, "own", 2);
    for (const lock of [own, foreign, got, mine, theirs]) {
      await lock.release();
    }
    await (await waiting).release();
    await Promise.all([more, ...waits].map(async (lock) => (await lock).release()));
    assert.equal(warnings.length, 1);
    const [warning] = warnings as (Error & { code?: string })[];
    assert.equal(warning?.name, "LocksidecarWarning");
    assert.equal(warning?.code, "waits_for_itself");
    assert.match(warning?.message ?? "", new RegExp(`waited 0.1 s for "own", .* \\(token ${own.token}\\)`));
  });
});

describe("a call in the function that has the lock", () => {
  const itself = { code: "invalid_request", message: /holds "itself", and this call would wait .* reentrant: true/ };

  // Proves: client self wait
  test("is refused if it would wait for ever", async () => {
    const [client, other] = [sidecar.client(), sidecar.client()];
    const never = () => assert.fail("it runs");
    await client.lock("itself", async (lock) => {
      await new Promise(setImmediate);
      await assert.rejects(client.lock("itself", never), itself);
      await assert.rejects(client.acquire("itself"), itself);
      await assert.rejects(client.acquire("itself", { reentrant: true, owner: "o" }), itself);
      await assert.rejects(client.acquire("itself", { mode: "shared" }), itself);
      await assert.rejects(client.acquireMany(["another", "itself"]), itself);
      await assert.rejects(client.once("itself", never), itself);
      await assert.rejects(client.lead("itself", never), itself);
      await assert.rejects(client.request("itself", never), itself);
      await assert.rejects(client.semaphore("itself", 2).run(never), itself);
      await assert.rejects(client.lock("itself", { reentrant: true }, never), itself);
      await assert.rejects(other.acquire("itself"), itself, "by another client of the same sidecar");
      await client.lock("another", () => assert.rejects(client.acquire("itself"), itself));
      await Promise.all([client.lock("another", () => {}), client.lock("another", () => {})]);
      await assert.rejects(client.acquire("itself", { waitMs: 20 }), WaitTimeoutError, "its wait has an end");
      assert.equal((await client.tryAcquire("itself")).granted, false);
      await lock.release();
      await (await client.acquire("itself")).release(); // it does not hold it any more
    });
    for (const run of [
      () => client.once("itself", () => assert.rejects(client.acquire("itself"), itself)),
      () => client.lead("itself", () => assert.rejects(client.acquire("itself"), itself)),
      () => client.request("itself", { ifAvailable: true }, () => assert.rejects(client.acquire("itself"), itself)),
    ]) {
      await run();
    }
  });

  // Proves: client self wait
  test("waits if it is no part of the function, and enters if it may", async () => {
    const client = sidecar.client();
    const ran: string[] = [];
    const run = (name: string) => async () => void ran.push(name);
    await Promise.all(["a", "b", "c"].map((name) => client.lock("apart", run(name)))); // of one function
    let later: Promise<void> | undefined;
    await client.lock("apart", async () => {
      later = client.asTask(() => client.lock("apart", run("later")));
      await queued(client, "apart", 1);
    });
    await later;
    assert.deepEqual(ran.toSorted(), ["a", "b", "c", "later"]);
    const options = { reentrant: true };
    assert.equal(await client.lock("apart", options, () => client.lock("apart", options, (it) => it.reentry)), 2);
  });

  // Proves: client self wait
  test("takes as many permits of a semaphore as there are", async () => {
    const client = sidecar.client();
    const [two, reader] = [client.semaphore("permits", 2), { mode: "shared" } as const];
    await two.run(async () => {
      assert.equal(await two.run(({ slot }) => slot), 1);
      await two.run(() =>
        assert.rejects(
          two.run(() => assert.fail("it runs")),
          /would wait for the end of the function/,
        ),
      );
      await assert.rejects(client.acquire("permits"), /would wait for the end of the function/);
    });
    await client.lock("readers", reader, () => client.lock("readers", reader, () => {}));
  });
});
