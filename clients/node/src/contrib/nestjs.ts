// A decorator for @nestjs/schedule: each tick of a cron job runs in one process of the fleet.
import { type Checks, checkOptions, text } from "../checks";
import type { Client } from "../client";
import { LimitReachedError, SessionEndedError, UnavailableError } from "../errors";
import type { Lock } from "../lock";
import { runHeld, type TickOptions, TickSkippedError, takeTick, tickChecks } from "./fleet";

/** A time of luxon, as far as it is used here. */
interface Time {
  toMillis(): number;
  minus(duration: { milliseconds: number }): Time;
}

/** The times of a job of cron, as far as they are used here. */
interface Times {
  realDate: boolean;
  source: unknown;
  sendAt(): Time;
  // biome-ignore lint/suspicious/noExplicitAny: a time of luxon, of which the app has the type
  getNextDateFrom(start: any): Time;
}

/** The registry of @nestjs/schedule, as far as it is used here. */
interface Registry {
  getCronJob(name: string): { cronTime: Times };
}

/** What an app passes of `@nestjs/common` and `@nestjs/schedule`. So this module imports neither. */
export interface NestParts<T, O> {
  Cron(time: T, options?: O): MethodDecorator;
  Inject(token: abstract new () => Registry): PropertyDecorator;
  Logger: { log(message: string, context: string): void; warn(message: string, context: string): void };
  SchedulerRegistry: abstract new () => Registry;
}

/** The options of `fleetCron`. */
export interface FleetCronOptions extends TickOptions {
  /** The key of a job's lock is its name behind the prefix, by default `job:`. */
  prefix?: string | undefined;
  /** What a tick is without the sidecar or its store: `fail` (the default) logs an error, `skip` a warning. It never runs. */
  unavailable?: "fail" | "skip" | undefined;
}

const fleetCronChecks: Checks<FleetCronOptions> = { ...tickChecks, prefix: text, unavailable: text };

/** The method of a job gets its lock: the fencing token, and the signal that a loss aborts. */
type Job = (lock: Lock) => Promise<void>;

/**
 * fleetCron makes a decorator in place of `Cron`, which needs the job's name:
 *
 *     const FleetCron = fleetCron({ Cron, Inject, Logger, SchedulerRegistry }, new Client());
 *
 *     @FleetCron("0 3 * * *", { name: "close-books", timeZone: "UTC" })
 *     async closeBooks(lock: Lock) { … }
 *
 * If the lock is lost, the job fails at once with a `LockLostError`. Nest logs the error of a job that fails.
 */
export function fleetCron<T, O extends { name?: string }>(
  nest: NestParts<T, O>,
  client: Client,
  options: FleetCronOptions = {},
) {
  checkOptions(options, fleetCronChecks, "{ minHoldMs: 600_000 }");
  const { prefix = "job:", unavailable = "fail", ...tick } = options;
  const injected = Symbol("SchedulerRegistry");
  return (time: T, job: O & { name: string }) =>
    (target: object, method: string | symbol, descriptor: TypedPropertyDescriptor<Job>): void => {
      const run = descriptor.value;
      const { name } = job;
      if (run === undefined || !name) {
        throw new TypeError(`${String(method)} needs a name of its job, the same one in all processes`);
      }
      if ((job as { runOnInit?: unknown }).runOnInit) {
        throw new TypeError(
          `${String(method)}: runOnInit starts a run that no process has planned; only planned times run once`,
        );
      }
      nest.Inject(nest.SchedulerRegistry)(target, injected);
      descriptor.value = async function (this: { [injected]: Registry }): Promise<void> {
        let lock: Lock;
        await null; // The first tick may come before Nest has registered the job.
        try {
          const at = tickOf(this[injected].getCronJob(name).cronTime, tick.minHoldMs);
          lock = await takeTick(client, prefix + name, at, tick);
        } catch (error) {
          if (error instanceof TickSkippedError) {
            nest.Logger.log(error.message, "FleetCron");
          } else if (unavailable === "skip" && isAway(error)) {
            nest.Logger.warn(`job ${name} does not run: ${error.message}`, "FleetCron");
          } else {
            throw error;
          }
          return;
        }
        await runHeld(lock, () => run.call(this, lock));
      } as Job;
      nest.Cron(time, job)(target, method, descriptor);
    };
}

function isAway(error: unknown): error is Error {
  return [UnavailableError, LimitReachedError, SessionEndedError].some((away) => error instanceof away);
}

/**
 * tickOf returns the last planned time of a job that has come. cron only counts forwards, so this begins a second ago, then two
 * seconds, and so on. Throws a `TickSkippedError` if no planned time has come for `withinMs`.
 */
export function tickOf(times: Times, withinMs = 600_000, nowMs = Date.now()): Date {
  if (times.realDate) {
    return new Date((times.source as Time).toMillis());
  }
  const next = times.sendAt(); // in the time zone of the job
  for (let backMs = 1000; backMs < 2 * withinMs; backMs *= 2) {
    let at = times.getNextDateFrom(next.minus({ milliseconds: next.toMillis() - nowMs + backMs })).toMillis();
    if (at <= nowMs) {
      const after = () => times.getNextDateFrom(next.minus({ milliseconds: next.toMillis() - at })).toMillis();
      // In the hour in which clocks are put back, cron may return the same time again.
      for (let later = after(); later > at && later <= nowMs; later = after()) {
        at = later;
      }
      return new Date(at);
    }
  }
  throw new TickSkippedError(`no planned time of the job has come in the last ${withinMs} ms`);
}
