// The ways to hold a lock in a program, to do work once, and to read.
import assert from "node:assert/strict";
import { after, afterEach, before, describe, test } from "node:test";
import { LockHeldError, LockLostError, TooLargeError } from "locksidecar";
import { aborted, queued, Sidecar, until } from "./sidecar";

let sidecar: Sidecar;
before(async () => {
  sidecar = await Sidecar.start({ ALLOW_FORCE: "true" });
});
afterEach(() => sidecar.closeClients());
after(() => sidecar.close());

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

  test("the end of an await using block throws the loss", async () => {
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

  test("lock returns, throws, and throws the loss", async () => {
    const client = sidecar.client();
    assert.equal(await client.lock("with", (lock) => lock.key), "with");
    const failing = client.lock("with", { waitMs: 0 }, async () => {
      throw new RangeError("of the body");
    });
    await assert.rejects(failing, RangeError);
    assert.equal((await client.get("with")).state, "free");
    const options = { maxHoldMs: 300, waitMs: 0 };
    await assert.rejects(
      client.lock("with", options, ({ signal }) => aborted(signal)),
      LockLostError,
    );
    // The holder gets the news before the lock is free, so the next acquire may have to wait.
    const both = client.lock("with", { ...options, waitMs: 60_000 }, async ({ signal }) => {
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
      await queued(client, "web", 0); // else the release may grant it the lock for a moment
    });
    assert.equal(await client.request("web", { ifAvailable: true }, (lock) => lock?.name), "web");
    assert.equal((await client.get("web")).state, "free");
    await client.request("web", { mode: "shared" }, async (one) => {
      assert.equal(one.mode, "shared");
      assert.equal(await client.request("web", { mode: "shared", ifAvailable: true }, (two) => two?.mode), "shared");
      assert.equal(await client.request("web", { ifAvailable: true }, (lock) => lock), null);
    });
    for (const options of [{ steal: true }, { ifAvailable: true, signal: new AbortController().signal }] as const) {
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

  test("all callers get the result as JSON, also the one that runs", async () => {
    const client = sidecar.client();
    assert.deepEqual(await client.once("json", () => ({ at: new Date(0), no: undefined }) as unknown), {
      at: "1970-01-01T00:00:00.000Z",
    });
    assert.equal(await client.once("json", () => {}), null);
    await assert.rejects(
      client.once("json", () => 1n),
      /^InvalidRequestError: the result: 1n cannot/,
    );
    assert.equal((await client.get("json")).state, "free");
  });

  test("if it fails, the next waiter runs", async () => {
    const [a, b] = [sidecar.client(), sidecar.client()];
    let fail: (() => void) | undefined;
    const first = a.once("fails", () => new Promise((_, reject) => (fail = () => reject(new RangeError("no")))));
    await until("the first does it", () => fail !== undefined); // others may see the held lock before that
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

describe("reading", () => {
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
    assert.ok((await client.describe()).features.includes("wait"));
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
    await until("the watch is open", () => seen.length === 1);
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
