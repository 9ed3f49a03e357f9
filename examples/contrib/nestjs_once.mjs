// A NestJS app in two processes: each tick of its cron job runs in one of them. In TypeScript, write `@FleetCron(…)` above the method.
// Install with `npm install locksidecar @nestjs/common @nestjs/core @nestjs/schedule reflect-metadata rxjs`.
import "reflect-metadata";
import { fork } from "node:child_process";
import { on } from "node:events";
import { fileURLToPath } from "node:url";
import { Inject, Logger, Module } from "@nestjs/common";
import { NestFactory } from "@nestjs/core";
import { Cron, ScheduleModule, SchedulerRegistry } from "@nestjs/schedule";
import { Client } from "locksidecar";
import { fleetCron } from "locksidecar/contrib/nestjs";

/** Starts the app, and says what has become of each tick. */
async function pod() {
  const client = new Client({ name: "nestjs_once" });
  const FleetCron = fleetCron({ Cron, Inject, Logger, SchedulerRegistry }, client);
  class Books {
    async close(lock) {
      const { holder } = await client.get(lock.key, { fresh: true });
      process.send({ tick: holder.data.tick, ran: lock.token }); // each write of the job has its token
    }
  }
  decorate([FleetCron("* * * * * *", { name: "close-books" })], Books.prototype, "close");
  class App {}
  Module({ imports: [ScheduleModule.forRoot()], providers: [Books] })(App);
  const log = (message) => {
    const [, tick, why] = /^(tick:\S+) (was taken)/.exec(message) ?? [];
    if (tick) process.send({ tick, skipped: why });
  };
  await NestFactory.createApplicationContext(App, { logger: { log, warn: console.warn, error: console.error } });
}

/** What a compiler makes of a decorator. */
function decorate(decorators, target, method) {
  const descriptor = Object.getOwnPropertyDescriptor(target, method);
  Object.defineProperty(target, method, Reflect.decorate(decorators, target, method, descriptor));
}

async function main() {
  // With two sidecars on one database, the processes are in different pods.
  const { LOCKSIDECAR_SOCKET: socket, LOCKSIDECAR_SOCKET_2: second = socket } = process.env;
  const news = new AbortController();
  const pods = [socket, second].map((LOCKSIDECAR_SOCKET) =>
    fork(fileURLToPath(import.meta.url), ["pod"], { env: { ...process.env, LOCKSIDECAR_SOCKET } }),
  );
  try {
    const ticks = new Map();
    const ends = await Promise.any(
      pods.map(async (child, i) => {
        for await (const [{ tick, ran, skipped }] of on(child, "message", { signal: news.signal })) {
          console.log(`process ${i + 1}, ${tick}: ${ran ? `ran, fencing token ${ran}` : skipped}`);
          const ends = [...(ticks.get(tick) ?? []), ran ? "ran" : "skipped"];
          ticks.set(tick, ends);
          if (ends.length === 2) return ends;
        }
      }),
    );
    process.exitCode = ends.sort().join() === "ran,skipped" ? 0 : 1;
  } finally {
    news.abort();
    for (const child of pods) child.kill("SIGKILL");
  }
}

await (process.argv[2] ? pod() : main());
