// The decorator for @nestjs/schedule, with real application contexts.
import "reflect-metadata";
import assert from "node:assert/strict";
import { type ChildProcess, spawn } from "node:child_process";
import { randomUUID } from "node:crypto";
import { EventEmitter, once } from "node:events";
import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { after, afterEach, before, describe, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { type INestApplicationContext, Inject, Injectable, Logger, Module } from "@nestjs/common";
import { NestFactory } from "@nestjs/core";
import { Cron, ScheduleModule, SchedulerRegistry } from "@nestjs/schedule";
import { CronTime } from "cron";
import { Client, type Lock, LockLostError, UnreachableError } from "locksidecar";
import { TickSkippedError } from "locksidecar/contrib/fleet";
import { type FleetCronOptions, fleetCron, tickOf } from "locksidecar/contrib/nestjs";

const binary = process.env["LOCKSIDECAR_BINARY"] ?? resolve(import.meta.dirname, "../../../../../bin/locksidecar");

describe("nestjs", { timeout: 60_000 }, () => {
  const folder = mkdtempSync(join(tmpdir(), "lsn"));
  const socketPath = join(folder, "s");
  const contexts: INestApplicationContext[] = [];
  let sidecar: ChildProcess;
  let one: Client;
  let two: Client;

  const said = new EventEmitter();
  const say = (level: string) => (message: unknown) => void said.emit(level, message);
  const logger = { log: say("log"), warn: say("warn"), error: say("failed") };

  before(async () => {
    const env = { PATH: process.env["PATH"], LOCKSIDECAR_SOCKET: socketPath, LOCKSIDECAR_ALLOW_FORCE: "true" };
    sidecar = spawn(binary, ["serve"], { env: { ...env, LOCKSIDECAR_LOG_LEVEL: "error" }, stdio: "ignore" });
    process.once("exit", () => sidecar.kill("SIGKILL"));
    while (!existsSync(socketPath)) {
      assert.equal(sidecar.exitCode, null, "the sidecar has ended");
      await sleep(10);
    }
    [one, two] = [new Client({ socketPath }), new Client({ socketPath })];
  });
  afterEach(async () => {
    await Promise.all(contexts.splice(0).map((context) => context.close()));
  });
  after(async () => {
    await Promise.all([one.close(), two.close()]);
    sidecar.kill("SIGKILL");
    rmSync(folder, { recursive: true, force: true });
  });

  /** start starts an app with a job for each second. */
  async function start(client: Client, name: string, run: (lock: Lock) => unknown, options: FleetCronOptions = {}) {
    const FleetCron = fleetCron({ Cron, Inject, Logger, SchedulerRegistry }, client, options);
    @Injectable()
    class Books {
      readonly run = run;
      @FleetCron("* * * * * *", { name, timeZone: "Asia/Tokyo" })
      async close(lock: Lock): Promise<void> {
        await this.run(lock);
      }
    }
    @Module({ imports: [ScheduleModule.forRoot()], providers: [Books] })
    class App {}
    contexts.push(await NestFactory.createApplicationContext(App, { logger }));
  }

  /** heard waits for a line of the log. */
  async function heard(level: "log" | "warn" | "failed", is: (message: unknown) => boolean): Promise<unknown> {
    for (;;) {
      const [message] = await once(said, level);
      if (is(message)) {
        return message;
      }
    }
  }

  test("each tick runs in one of two apps", async () => {
    const name = randomUUID();
    const ticks: string[] = [];
    const run = async (lock: Lock) => {
      const { holder } = await one.get(lock.key, { fresh: true });
      assert.ok(holder);
      assert.equal(lock.key, `job:${name}`);
      ticks.push((holder.data as { tick: string }).tick);
    };
    const failed: unknown[] = [];
    const fail = (message: unknown) => void failed.push(message);
    said.on("failed", fail);
    const taken = heard("log", (message) => /was taken by pod/.test(String(message)));
    await Promise.all([start(one, name, run), start(two, name, run)]);
    await taken;
    while (ticks.length < 3) {
      await heard("log", (message) => /was taken|goes on/.test(String(message)));
    }
    said.off("failed", fail);
    assert.deepEqual(failed, []);
    assert.equal(new Set(ticks).size, ticks.length);
    for (const tick of ticks) {
      assert.match(tick, /:\d\d\.000Z$/); // the planned time, not that of the call
    }
  });

  test("a tick that comes before Nest has registered the job runs", async (t) => {
    t.mock.method(CronTime.prototype, "getTimeout", () => -1, { times: 1 }); // cron then calls at once
    const first = new Promise((resolve, reject) => {
      said.once("failed", reject);
      void start(one, randomUUID(), resolve);
    });
    await first;
    said.removeAllListeners("failed");
  });

  // Only the tested rule ends the job.
  test("a lost lock fails the job at once, and aborts its signal", { timeout: 10_000 }, async () => {
    let signal: AbortSignal | undefined;
    const error = heard("failed", () => true);
    await start(one, randomUUID(), async (lock) => {
      signal ??= lock.signal;
      await two.forceRelease(lock.key);
      await new Promise(() => {});
    });
    assert.ok((await error) instanceof LockLostError);
    assert.ok(signal?.reason instanceof LockLostError);
  });

  test("without the sidecar the job does not run", async () => {
    const exit = once(sidecar, "exit");
    sidecar.kill("SIGKILL");
    await exit;
    let ran = 0;
    const error = heard("failed", () => true);
    await start(one, randomUUID(), () => ran++);
    assert.ok((await error) instanceof UnreachableError);
    const name = randomUUID();
    const warning = heard("warn", (message) => String(message).includes(`job ${name} does not run`));
    await start(two, name, () => ran++, { unavailable: "skip" });
    await warning;
    assert.equal(ran, 0);
  });

  test("a run that no process has planned is refused", () => {
    const FleetCron = fleetCron({ Cron, Inject, Logger, SchedulerRegistry }, one);
    const decorate = FleetCron("* * * * * *", { name: "at start", runOnInit: true } as never);
    const method = { value: async () => {} };
    assert.throws(() => decorate({}, "close", method), /close: runOnInit starts a run that no process has planned/);
    const wrong = { minHoldMs: "600" } as unknown as FleetCronOptions;
    assert.throws(() => fleetCron({ Cron, Inject, Logger, SchedulerRegistry }, one, wrong), /minHoldMs: '600'/);
  });

  test("the tick is the last planned time", () => {
    const at = (times: CronTime, now: string, withinMs?: number) =>
      tickOf(times, withinMs, Date.parse(now)).toISOString();
    const tokyo = new CronTime("0 3 * * *", "Asia/Tokyo");
    assert.equal(at(tokyo, "2026-11-22T18:00:00.000Z"), "2026-11-22T18:00:00.000Z");
    assert.equal(at(tokyo, "2026-11-22T18:04:00.123Z"), "2026-11-22T18:00:00.000Z");
    assert.throws(() => at(tokyo, "2026-11-22T17:59:59.999Z"), TickSkippedError);
    assert.equal(at(new CronTime("30 3 * * *", null, 330), "2026-11-22T22:00:01Z"), "2026-11-22T22:00:00.000Z");
    const often = new CronTime("*/7 * 3 * * *", "UTC");
    assert.equal(at(often, "2026-11-23T04:05:00Z"), "2026-11-23T03:59:56.000Z");
    const date = new Date(Date.now() + 3_600_000);
    assert.equal(tickOf(new CronTime(date)).getTime(), date.getTime());
  });
});
