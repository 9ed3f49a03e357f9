import assert from "node:assert/strict";
import { after, afterEach, before, describe, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import {
  type Client,
  InvalidRequestError,
  LimitMismatchError,
  type Lock,
  LockHeldError,
  type LockLostError,
  NotHeldError,
  WaitTimeoutError,
} from "locksidecar";
import { aborted, queued, Sidecar, until } from "./sidecar";

let sidecar: Sidecar;
before(async () => {
  sidecar = await Sidecar.start({ ALLOW_FORCE: "true", TTL: "1h" });
});
afterEach(() => sidecar.closeClients());
after(() => sidecar.close());

const shared = { mode: "shared" } as const;

async function free(client: Client, key: string): Promise<void> {
  await until(`${key} is free`, async () => {
    const { state, queueLength } = await client.get(key, { fresh: true });
    return state === "free" && queueLength === 0;
  });
}

describe("shared locks", () => {
  test("readers share a lock, and writers do not", async () => {
    const [a, b] = [sidecar.client({ name: "a" }), sidecar.client({ name: "b" })];
    const [one, two] = [await a.acquire("doc", shared), await b.acquire("doc", { ...shared, waitMs: 0 })];
    assert.deepEqual([one.mode, one.limit, one.slot], ["shared", null, null]);
    assert.ok(two.token > one.token);
    await assert.rejects(b.acquire("doc", { waitMs: 0 }), (error) => {
      assert.ok(error instanceof LockHeldError);
      assert.deepEqual([error.mode, error.limit, error.holdersCount], ["shared", null, 2]);
      return true;
    });
    const info = await b.get("doc", { fresh: true });
    assert.deepEqual([info.mode, info.limit, info.holdersCount, info.token], ["shared", null, 2, two.token]);
    const seen = info.holders.map(({ token, slot, session, stopping }) => [token, slot, session, stopping]);
    assert.deepEqual(seen, [
      [one.token, null, "a", null],
      [two.token, null, "b", null],
    ]);
    assert.equal(info.holder?.session, "a");
    await one.release();
    await two.release();
    await using lock = await a.acquire("doc");
    assert.equal(lock.mode, "exclusive");
    assert.deepEqual((await a.get("doc")).holders, []);
  });

  test("the calls that wait are listed in their order", async () => {
    const [a, b] = [sidecar.client({ name: "a" }), sidecar.client({ name: "b" })];
    const place = await a.acquire("listed:1", { ...shared, limit: 1 });
    const reader = b.acquire("listed:1", { ...shared, limit: 1 });
    await queued(a, "listed:1", 1);
    const writer = a.acquire("listed:1", { owner: "me" });
    await queued(a, "listed:1", 2);
    const elsewhere = await b.acquire("listed:2");
    const more = b.acquire("listed:2", { bind: "ttl" });
    await queued(a, "listed:2", 1);
    const seen: unknown[] = [];
    for await (const it of a.waiters("listed:1")) {
      assert.ok(it.waitingMs >= 0 && it.pod !== "");
      seen.push([it.key, it.position, it.session, it.owner, it.mode, it.limit]);
    }
    assert.deepEqual(seen, [
      ["listed:1", 1, "b", null, "shared", 1],
      ["listed:1", 2, "a", "me", "exclusive", null],
    ]);
    const keys: string[] = [];
    for await (const { key, session } of b.waiters({ prefix: "listed:", limit: 1 })) {
      keys.push(`${key} ${session}`);
    }
    assert.deepEqual(keys, ["listed:1 b", "listed:1 a", "listed:2 null"]);
    await place.release();
    await (await reader).release();
    await (await writer).release();
    await elsewhere.release();
    await (await more).release();
    for await (const it of a.waiters({ prefix: "listed:" })) {
      assert.fail(JSON.stringify(it));
    }
  });

  test("nobody overtakes a waiting writer", async () => {
    const [a, b] = [sidecar.client(), sidecar.client()];
    const reader = await a.acquire("fifo", shared);
    const writer = b.acquire("fifo");
    await queued(a, "fifo", 1);
    const readers = [a.acquire("fifo", shared), b.acquire("fifo", shared)];
    await queued(a, "fifo", 3);
    assert.equal((await b.tryAcquire("fifo", shared)).granted, false);
    await reader.release();
    const lock = await writer;
    assert.equal((await a.get("fifo", { fresh: true })).queueLength, 2);
    await lock.release();
    for (const one of await Promise.all(readers)) {
      assert.ok(one.token > lock.token);
      await one.release();
    }
    await free(a, "fifo");
  });

  test("downgrade keeps the token, and lets readers in", async () => {
    const [a, b] = [sidecar.client(), sidecar.client()];
    const lock = await a.acquire("down");
    const reader = b.acquire("down", { ...shared, limit: 2 });
    await queued(a, "down", 1);
    const { mode, token, limit, slot } = await lock.downgrade();
    assert.deepEqual([mode, token, limit, slot], ["shared", lock.token, 2, 0]);
    assert.deepEqual([lock.mode, lock.limit, lock.slot], ["shared", 2, 0]);
    assert.equal((await reader).slot, 1);
    assert.equal((await lock.check()).mode, "shared");
  });

  test("a stop, or a break, is for all holders, or for one", async () => {
    const [a, b] = [sidecar.client(), sidecar.client()];
    const [one, two] = [await a.acquire("all", shared), await a.acquire("all", shared)];
    await b.stop("all", { reason: "one", token: two.token });
    await aborted(two.stopSignal);
    assert.equal((await one.check()).stopping, null);
    await b.stop("all", { reason: "all" });
    await aborted(one.stopSignal);
    assert.equal(one.stopping?.reason, "all");
    await b.forceRelease("all", { token: one.token });
    assert.equal(((await aborted(one.signal)) as LockLostError).reason, "forced");
    await two.check();
    await assert.rejects(b.stop("all", { token: one.token }), NotHeldError);
    await b.forceRelease("all");
    await aborted(two.signal);
    await free(b, "all");
  });

  test("an abort, or the end of a wait, leaves no share", async () => {
    const [a, b] = [sidecar.client(), sidecar.client()];
    const lock = await a.acquire("leave");
    const controller = new AbortController();
    const waiting = b.acquire("leave", { ...shared, signal: controller.signal });
    await queued(a, "leave", 1);
    controller.abort();
    await assert.rejects(waiting, { name: "AbortError" });
    await assert.rejects(b.acquire("leave", { ...shared, waitMs: 50 }), WaitTimeoutError);
    await queued(a, "leave", 0);
    await lock.release();
    await free(a, "leave");
  });

  test("an abort that comes with the grant leaves no share", async () => {
    const [a, b] = [sidecar.client(), sidecar.client()];
    for (let i = 0; i < 20; i++) {
      const lock = await a.acquire("race");
      const controller = new AbortController();
      const waiting = b.acquire("race", { ...shared, limit: 2, signal: controller.signal });
      await queued(a, "race", 1);
      const released = lock.release();
      await sleep(i / 10); // a moment somewhere around the grant
      controller.abort();
      await Promise.all([
        released,
        waiting.then(
          (got) => got.release(),
          () => {},
        ),
      ]);
      await free(a, "race");
    }
  });
});

describe("semaphore", () => {
  test("has as many places as its limit, with slots", async () => {
    const [a, b] = [sidecar.client().semaphore("gpu", 2), sidecar.client().semaphore("gpu", 2)];
    const [one, two] = [await a.acquire(), await b.acquire({ waitMs: 0 })];
    assert.deepEqual([one.slot, two.slot, one.limit, one.mode], [0, 1, 2, "shared"]);
    const full = await a.tryAcquire();
    assert.ok(!full.granted);
    assert.deepEqual([full.error.limit, full.error.holdersCount, full.error.mode], [2, 2, "shared"]);
    const third = b.run((place) => place.slot);
    await queued(sidecar.client(), "gpu", 1);
    await one.release();
    assert.equal(await third, 0); // the smallest that is free
    await two.release();
    await assert.rejects(
      a.run(() => Promise.reject(new Error("mine"))),
      /mine/,
    );
    await free(sidecar.client(), "gpu");
  });

  test("another limit is refused", async () => {
    const client = sidecar.client();
    await client.semaphore("limit", 2).acquire();
    for (const options of [shared, { ...shared, limit: 3 }]) {
      await assert.rejects(client.acquire("limit", options), (error) => {
        assert.ok(error instanceof LimitMismatchError);
        assert.deepEqual([error.code, error.limit, error.key, error.status], ["limit_mismatch", 2, "limit", 409]);
        return true;
      });
    }
    await assert.rejects(client.acquire("other", { limit: 2 }), InvalidRequestError);
    await assert.rejects(client.semaphore("other", 0).acquire(), InvalidRequestError);
  });

  test("places are never more than the limit, and slots are unique", async () => {
    const inside = new Set<number>();
    const work = async (place: Lock): Promise<void> => {
      assert.ok(place.slot !== null && place.slot < 3 && !inside.has(place.slot));
      inside.add(place.slot);
      await sleep(1);
      inside.delete(place.slot);
    };
    const clients = [sidecar.client(), sidecar.client()];
    await Promise.all(Array.from({ length: 40 }, (_, i) => (clients[i % 2] as Client).semaphore("storm", 3).run(work)));
    await free(sidecar.client(), "storm");
  });
});
