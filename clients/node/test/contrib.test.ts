// The shared part of the integrations, and the coordinator for node-cron with real tasks.
import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { EventEmitter, once } from "node:events";
import { after, afterEach, before, describe, test } from "node:test";
import { type Client, LockLostError, UnreachableError } from "locksidecar";
import { runHeld, TickSkippedError, takeTick } from "locksidecar/contrib/fleet";
import { FleetCoordinator } from "locksidecar/contrib/node-cron";
import cron, { type TaskContext } from "node-cron";
import { Sidecar } from "./sidecar";

/** For work that only the tested rule ends. */
const soon = { timeout: 10_000 };

describe("integrations", () => {
  let sidecar: Sidecar;
  let one: Client;
  let two: Client;
  const tasks = new Set<{ destroy(): unknown }>();

  before(async () => {
    sidecar = await Sidecar.start({ ALLOW_FORCE: "true", TTL: "1h", DRAIN_TIMEOUT: "0s" });
    one = sidecar.client();
    two = sidecar.client();
  });
  afterEach(() => {
    for (const task of tasks) {
      task.destroy();
    }
    tasks.clear();
  });
  after(() => sidecar.close());

  const skipped = (why: RegExp) => (error: unknown) => error instanceof TickSkippedError && why.test(error.message);

  test("a tick runs once, and runs of a job do not overlap", async () => {
    const job = randomUUID();
    const at = new Date(Date.now() - 1000);
    const lock = await takeTick(one, job, at);
    await assert.rejects(takeTick(two, job, at), skipped(/was taken by pod/));
    await assert.rejects(takeTick(two, job, new Date(at.getTime() + 1)), skipped(/an earlier run goes on in pod/));
    assert.deepEqual((await two.get(job)).holder?.data, { tick: `tick:${job}@${at.toISOString()}` });
    await lock.release();
    for (const client of [one, two]) {
      await assert.rejects(takeTick(client, job, at), skipped(/was taken by pod/));
    }
    const next = await takeTick(two, job, new Date(at.getTime() + 2));
    assert.ok(next.token > lock.token);
    await next.release();
  });

  test("a late process skips the tick", async () => {
    const late = new Date(Date.now() - 31_000);
    await assert.rejects(takeTick(one, randomUUID(), late, { minHoldMs: 60_000 }), skipped(/late, more than half/));
    await (await takeTick(one, randomUUID(), late, { minHoldMs: 64_000 })).release();
  });

  test("a lost lock ends work that does not look at the signal", soon, async () => {
    const lock = await one.acquire(randomUUID());
    const ended = assert.rejects(
      runHeld(lock, () => new Promise<never>(() => {})),
      LockLostError,
    );
    await two.forceRelease(lock.key);
    await ended;
    await assert.rejects(
      runHeld(lock, () => assert.fail("it runs without its lock")),
      LockLostError,
    );
  });

  /** schedule runs a task each second by a coordinator, and tells its events. */
  function schedule(name: string, fleet: FleetCoordinator, run: (context: TaskContext) => unknown): EventEmitter {
    const options = { name, distributed: true, runCoordinator: fleet, timezone: "Asia/Tokyo", logger };
    const task = cron.schedule("* * * * * *", run, options);
    tasks.add(task);
    const events = new EventEmitter();
    for (const event of ["execution:finished", "execution:failed", "execution:skipped"] as const) {
      task.on(event, (context) => void events.emit(event, context));
    }
    return events;
  }

  const said: string[] = [];
  const say = (message: string | Error, error?: Error): void => void said.push(`${message} ${error ?? ""}`);
  const logger = { info: say, warn: say, error: say, debug: say };

  test("node-cron: each tick runs in one of two processes", async () => {
    const name = randomUUID().slice(0, 8);
    const ran: string[] = [];
    const ended = [one, two].map((client) => {
      const fleet = new FleetCoordinator(client);
      const run = fleet.locked((context: TaskContext, lock) => {
        assert.ok(lock.token > 0);
        ran.push(context.date.toISOString());
      });
      const events = schedule(name, fleet, run);
      return [once(events, "execution:skipped"), once(events, "execution:finished")] as const;
    });
    const first = await Promise.race(ended.map(([skip]) => skip));
    assert.equal(first[0].reason, "not-elected");
    await Promise.race(ended.map(([, finish]) => finish));
    assert.equal(new Set(ran).size, ran.length);
  });

  test("node-cron: a lost lock fails the execution", soon, async () => {
    const name = randomUUID().slice(0, 8);
    const fleet = new FleetCoordinator(one, { prefix: "" });
    const events = schedule(
      name,
      fleet,
      fleet.locked(async (_: TaskContext, lock) => {
        await two.forceRelease(lock.key);
        await new Promise(() => {});
      }),
    );
    const [context] = await once(events, "execution:failed");
    assert.ok(context.execution.error instanceof LockLostError);
  });

  test("node-cron: a task that was not made by locked has its lock until its end", async () => {
    const name = randomUUID().slice(0, 8);
    const events = schedule(name, new FleetCoordinator(one, { prefix: "" }), async () => {
      assert.equal((await two.get(name)).state, "held");
    });
    await once(events, "execution:finished");
  });

  test("node-cron: without the sidecar or the coordinator nothing runs", async () => {
    const dead = await Sidecar.start();
    const client = dead.client();
    await client.connect();
    await dead.kill();
    const fleet = new FleetCoordinator(client);
    await assert.rejects(fleet.shouldRun(`x:${new Date().toISOString()}`, 1), UnreachableError);
    const [context] = await once(
      schedule(randomUUID().slice(0, 8), fleet, () => assert.fail("it runs")),
      "execution:skipped",
    );
    assert.equal(context.reason, "coordinator-error");
    assert.match(said.join("\n"), /there is no sidecar|cannot reach|ENOENT|ECONNREFUSED/);
    await assert.rejects(fleet.shouldRun("x", 1), TypeError);
    await assert.rejects(fleet.locked(() => assert.fail("it runs"))({ task: { name: "x" } }), /has no lock/);
    await dead.close();
  });
});
