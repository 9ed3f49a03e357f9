import { AsyncLocalStorage } from "node:async_hooks";
import { randomUUID } from "node:crypto";
import { acquire, acquireMany } from "./acquire";
import { callback, checkKey, checkOptions, count, json, ms, optionsAndRun, text } from "./checks";
import { endpointOf } from "./endpoint";
import { ClientClosedError, InvalidRequestError, LockHeldError, WaitTimeoutError } from "./errors";
import { apart, holding, waitsForItself } from "./holding";
import { LeaderWatch, lead } from "./lead";
import {
  type CheckResult,
  checkResultOf,
  dataChecks,
  Lock,
  LockGroup,
  type ReleaseOptions,
  type ReleaseResult,
  releaseChecks,
  releaseResultOf,
  under,
  warn,
} from "./lock";
import {
  type AcquireManyOptions,
  type AcquireOptions,
  acquireChecks,
  type ClientOptions,
  clientChecks,
  type EventsOptions,
  eventsChecks,
  forceChecks,
  getChecks,
  type LeadOptions,
  type ListOptions,
  leadChecks,
  type NotGranted,
  type OnceOptions,
  pageChecks,
  type Skipped,
  stopChecks,
  type TryAcquireOptions,
  type TryAcquireResult,
  type WaitersOptions,
  waitersChecks,
} from "./options";
import { mayBeDone } from "./retry";
import { Semaphore } from "./semaphore";
import { Sessions } from "./sessions";
import { podSocket } from "./socket";
import type { Term } from "./term";
import { tracedRelease } from "./tracing";
import { Transport } from "./transport";
import type { AsJson, Description, Json, KeyEvent, LockInfo, LockPage, Waiter } from "./types";
import { KeyWatch } from "./watch";
import { type LockRequestCallback, type LockRequestOptions, request } from "./weblocks";
import { lockInfoOf, lockPath, query, requireFeature, type Wire, waiterOf } from "./wire";

const defaultTimeoutMs = 10_000;
const defaultReconnectMs = 30_000;

type Run<T> = (lock: Lock) => T | PromiseLike<T>;

/**
 * Client gets locks from the sidecar of this pod.
 *
 * It has one session, opened by the first call, which owns its locks. When the process dies, they are free at once. When the
 * session is lost, as in a restart of the sidecar, its locks are lost, and the next call opens another session. An idle client
 * does not keep the process alive, also while it holds locks. A function under a lock does. Make one client for each process and
 * each worker thread.
 */
export class Client {
  /** The path of the sidecar's socket, or its URL over TCP. */
  readonly address: string;
  readonly #sessions: Sessions;
  readonly #tasks = new AsyncLocalStorage<string>();
  readonly #watches = new Set<KeyWatch>();

  /** Opens nothing yet. Throws an `InvalidRequestError` for NaN and Infinity, for unknown options, and for a URL that is none. */
  constructor(options: ClientOptions = {}) {
    const path = typeof options === "string" ? options : podSocket;
    checkOptions(options, clientChecks, `{ socketPath: ${JSON.stringify(path)} }`);
    const { name, ttlMs, timeoutMs, reconnectMs } = options;
    const endpoint = endpointOf(options);
    this.address = endpoint.address;
    this.#sessions = new Sessions(new Transport(endpoint), {
      name,
      ttlMs,
      timeoutMs: timeoutMs ?? defaultTimeoutMs,
      reconnectMs: reconnectMs ?? defaultReconnectMs,
    });
  }

  /**
   * acquire waits for a lock. Use it with `await using`, or release it in a `finally`.
   *
   * Throws a `WaitTimeoutError` after `waitMs`, and with 0 a `LockHeldError`. Both have the holder. A wait goes on after a restart
   * of the sidecar, at the end of the queue. Throws an `UnreachableError` if there is no sidecar, and the signal's reason.
   */
  async acquire(key: string, options: AcquireOptions = {}): Promise<Lock> {
    const got = await this.#get(key, options, -1);
    if (got instanceof Lock) {
      return got;
    }
    throw new InvalidRequestError('onSuccess: "skip" has no lock to return; use client.once or client.tryAcquire');
  }

  /** shared waits for a share of a lock: shared holders do not exclude each other. As `acquire` with `mode: "shared"`. */
  shared(key: string, options: AcquireOptions = {}): Promise<Lock> {
    return this.acquire(key, { ...options, mode: "shared" });
  }

  /** tryAcquire returns a result where `acquire` throws a `NotGrantedError`. By default it does not wait. */
  tryAcquire(key: string, options?: AcquireOptions): Promise<TryAcquireResult>;
  tryAcquire(key: string, options: TryAcquireOptions): Promise<TryAcquireResult | Skipped>;
  async tryAcquire(key: string, options: TryAcquireOptions = {}): Promise<TryAcquireResult | Skipped> {
    try {
      const got = await this.#get(key, options, 0);
      return got instanceof Lock ? { granted: true, lock: got } : got;
    } catch (error) {
      if (error instanceof LockHeldError || error instanceof WaitTimeoutError) {
        const reason = error.code as NotGranted["reason"];
        return { granted: false, reason, key: error.key, holder: error.holder, error };
      }
      throw error;
    }
  }

  /**
   * acquireMany acquires 1 to 100 different keys, all or none. There are no deadlocks, whatever the order of the keys. Throws as
   * `acquire`; `error.key` is the first held key.
   */
  async acquireMany(keys: readonly string[], options: AcquireManyOptions = {}): Promise<LockGroup> {
    if (!Array.isArray(keys)) {
      throw new InvalidRequestError("keys: they are a list of 1 to 100 texts");
    }
    keys.forEach(checkKey);
    const fields = this.#fields(options, -1);
    for (const key of keys) {
      this.#refuseToWait(key, fields, options);
    }
    const { session, got } = await acquireMany(this.#sessions, keys, fields, options);
    return new LockGroup(got.map((granted) => new Lock(session, granted, options)));
  }

  /**
   * lock runs a function under a lock, returns its result, and releases the lock. If the function throws, its error goes on,
   * and a failed release is a process warning. If not, a lost lock is a `LockLostError`. With `reentrant`, calls to lock inside
   * of the function enter the lock again.
   */
  lock<T>(key: string, run: Run<T>): Promise<T>;
  lock<T>(key: string, options: AcquireOptions, run: Run<T>): Promise<T>;
  async lock<T>(key: string, ...rest: [Run<T>] | [AcquireOptions, Run<T>]): Promise<T> {
    const [options, run] = optionsAndRun<AcquireOptions, Run<T>>(rest, acquireChecks);
    if (options.reentrant && options.owner === undefined && this.#tasks.getStore() === undefined) {
      return this.#tasks.run(newTask(), () => this.lock(key, options, run));
    }
    const lock = await this.acquire(key, options);
    return under(lock, () => run(lock));
  }

  /**
   * semaphore is a key with at most `limit` holders in all pods. All that use the key name the same limit, or get a
   * `LimitMismatchError`.
   */
  semaphore(key: string, limit: number): Semaphore {
    return new Semaphore(this, key, limit);
  }

  /** request is `navigator.locks.request` of the Web Locks API, for locks of the whole fleet. */
  request<T>(name: string, callback: LockRequestCallback<T, Lock>): Promise<T>;
  request<T>(
    name: string,
    options: LockRequestOptions & { ifAvailable?: false | undefined },
    callback: LockRequestCallback<T, Lock>,
  ): Promise<T>;
  request<T>(name: string, options: LockRequestOptions, callback: LockRequestCallback<T, Lock | null>): Promise<T>;
  request<T>(name: string, ...rest: [unknown] | [LockRequestOptions, unknown]): Promise<T> {
    const [options, callback] = rest.length === 1 ? [{}, rest[0]] : rest;
    return request(this, name, options, callback as LockRequestCallback<T, Lock | null>);
  }

  /**
   * once does work once: of all concurrent calls for a key, one runs `run`, and the others wait for its result. All get it as JSON
   * of at most 4 KiB. If `run` fails, the next waiter runs its own. A later call runs again. Throws as `acquire`, and what its own
   * `run` throws.
   */
  once<T>(key: string, run: Run<T>): Promise<AsJson<T>>;
  once<T>(key: string, options: OnceOptions, run: Run<T>): Promise<AsJson<T>>;
  async once<T>(key: string, ...rest: [Run<T>] | [OnceOptions, Run<T>]): Promise<AsJson<T>> {
    const [options, run] = optionsAndRun<OnceOptions, Run<T>>(rest, acquireChecks);
    const got = await this.#get(key, { ...options, onSuccess: "skip" }, -1);
    if (!(got instanceof Lock)) {
      return got.result as AsJson<T>;
    }
    let result: Json;
    try {
      const value = (await holding(got, () => run(got))) ?? null;
      json("the result", value);
      result = JSON.parse(JSON.stringify(value)); // all callers get the same
    } catch (error) {
      await releaseFailed(got);
      throw error;
    }
    try {
      await got.release({ outcome: "success", result });
    } catch (error) {
      if (!mayBeDone(error)) {
        await releaseFailed(got); // it is too large, for example: the others cannot get it, so the next one runs its own
      }
      throw error;
    }
    return result as AsJson<T>;
  }

  /** locked makes a function that runs under a lock: `client.locked((id) => "report:" + id, render)`. */
  locked<A extends unknown[], T>(
    key: string | ((...args: A) => string),
    run: (...args: A) => T | PromiseLike<T>,
  ): (...args: A) => Promise<T>;
  locked<A extends unknown[], T>(
    key: string | ((...args: A) => string),
    options: AcquireOptions,
    run: (...args: A) => T | PromiseLike<T>,
  ): (...args: A) => Promise<T>;
  locked<A extends unknown[], T>(
    key: string | ((...args: A) => string),
    ...rest: [(...args: A) => T | PromiseLike<T>] | [AcquireOptions, (...args: A) => T | PromiseLike<T>]
  ): (...args: A) => Promise<T> {
    const [options, run] = optionsAndRun<AcquireOptions, (...args: A) => T | PromiseLike<T>>(rest, acquireChecks);
    return (...args) => this.lock(typeof key === "string" ? key : key(...args), options, () => run(...args));
  }

  /**
   * asTask runs a function as a task: all that it calls and awaits has the same `owner` for `reentrant`. By default the owner is
   * random. A task inside a task is another task: it may wait for a lock of the function that starts it, and must not be awaited there then.
   */
  asTask<T>(run: () => T): T;
  asTask<T>(owner: string, run: () => T): T;
  asTask<T>(...rest: [() => T] | [string, () => T]): T {
    const [owner, run] = rest.length === 1 ? [newTask(), rest[0]] : rest;
    text("owner", owner);
    callback("the function to run", run);
    return apart(() => this.#tasks.run(owner, run));
  }

  /** get shows a lock, free or held. With `fresh` the sidecar asks the store. */
  async get(key: string, options: { fresh?: boolean | undefined } = {}): Promise<LockInfo> {
    checkOptions(options, getChecks, "{ fresh: true }");
    return lockInfoOf(
      await this.#sessions.read((session) =>
        session.call("GET", lockPath(key), { noCache: options.fresh, shares: true }),
      ),
    );
  }

  /** locks lists all held locks by key. */
  async *locks(options: ListOptions = {}): AsyncGenerator<LockInfo, void, undefined> {
    checkOptions(options, pageChecks, '{ scope: "pod" }');
    let cursor: string | null | undefined;
    do {
      const page: LockPage = await this.page({ ...options, cursor: cursor ?? undefined });
      yield* page.locks;
      cursor = page.nextCursor;
    } while (cursor !== null);
  }

  /** page returns one page of the list. `cursor` is the `nextCursor` of the page before. */
  async page(options: ListOptions & { cursor?: string | undefined } = {}): Promise<LockPage> {
    checkOptions(options, pageChecks, '{ scope: "pod" }');
    const { scope, prefix, type, limit, cursor } = options;
    const path = `/v1/locks${query({ scope, prefix, type, limit, cursor })}`;
    const answer = await this.#sessions.read((session) => {
      requireFeature(session.description, "list", "a list of locks");
      return session.call("GET", path);
    });
    return {
      locks: (answer["locks"] as Wire[]).map(lockInfoOf),
      nextCursor: (answer["next_cursor"] ?? null) as string | null,
    };
  }

  /**
   * waiters lists the calls of all pods that wait, by key and in the order of each queue: `client.waiters(key)`, or those of the whole
   * namespace.
   */
  async *waiters(about: string | WaitersOptions = {}): AsyncGenerator<Waiter, void, undefined> {
    const options = typeof about === "string" ? { key: about } : about;
    checkOptions(options, waitersChecks, '{ prefix: "order:" }');
    const { key, prefix, limit } = options;
    const path = key === undefined ? "/v1/waiters" : lockPath(key, "/waiters");
    let cursor: string | undefined;
    do {
      const answer = await this.#sessions.read((session) => {
        requireFeature(session.description, "waiters", "a list of waiting calls");
        return session.call("GET", path + query({ prefix, limit, cursor }));
      });
      yield* (answer["waiters"] as Wire[]).map(waiterOf);
      cursor = (answer["next_cursor"] ?? undefined) as string | undefined;
    } while (cursor !== undefined);
  }

  /**
   * stop asks the holder of a lock in any pod to stop, or all shared holders, or the one that has the token. They may go on.
   * Throws a `NotHeldError` if there is none.
   */
  async stop(key: string, options: { reason?: string | undefined; token?: number | undefined } = {}): Promise<void> {
    checkOptions(options, stopChecks, '{ reason: "deploy" }');
    requireFeature(await this.#sessions.describe(), "stop", "a request to stop");
    const { reason, token } = options;
    await this.#sessions.call({
      method: "POST",
      path: lockPath(key, `/stop${query({ token })}`),
      body: { reason },
      about: { key },
    });
  }

  /**
   * lead waits until it is the leader, and runs a function. At the end of a term it campaigns again. A term ends, and its `signal` is
   * aborted, when the lock is lost or somebody asks to stop. If the function returns before, lead gives up the leadership and returns
   * its result. Errors of the function go on, but for those of its aborted signal. A campaign goes on through an outage of the sidecar
   * or its store, if the client has reached them before. `options.signal` ends it, also within a term: lead throws its reason.
   *
   * The client hears of a loss, and of a request to stop, at once while the sidecar answers. If the sidecar hangs, the lock is lost when its
   * lease ends by this process's clock. Until the client has reached a sidecar, lead throws an `UnavailableError`, `LimitReachedError` or
   * `SessionEndedError`. It always throws what will not pass, such as an `InvalidRequestError`, `ForbiddenError` or `ClientClosedError`.
   */
  lead<T>(key: string, run: (term: Term) => T | PromiseLike<T>): Promise<T>;
  lead<T>(key: string, options: LeadOptions, run: (term: Term) => T | PromiseLike<T>): Promise<T>;
  async lead<T>(
    key: string,
    ...rest: [(term: Term) => T | PromiseLike<T>] | [LeadOptions, (term: Term) => T | PromiseLike<T>]
  ): Promise<T> {
    const [options, run] = optionsAndRun<LeadOptions, (term: Term) => T | PromiseLike<T>>(
      rest,
      leadChecks,
      "{ ttlMs: 10_000 }",
    );
    const { data, ttlMs, maxHoldMs, minHoldMs, signal } = options;
    const how = { data, ttlMs, maxHoldMs, minHoldMs, signal };
    return lead(this.#sessions, () => this.acquire(key, how), signal, run);
  }

  /** leader returns the data of the leader: null without a leader, or if it has no data. */
  async leader(key: string): Promise<Json> {
    return (await this.get(key)).holder?.data ?? null;
  }

  /**
   * watchLeader yields the data of the leader, now and after each change: null without a leader. As `events` in all else. The next
   * leader's data comes when it is elected. A later `update` is not an event.
   */
  watchLeader(key: string, options: EventsOptions = {}): AsyncIterableIterator<Json> & AsyncDisposable {
    return new LeaderWatch(this.events(key, options));
  }

  /**
   * forceRelease breaks a lock of any holder, or of all shared holders, or of the one that has the token. It returns when the lock is free, at the latest when its lease ends. The holder may
   * still be working. Throws a `ForbiddenError` without `LOCKSIDECAR_ALLOW_FORCE`, and a `NotHeldError` if there is no holder.
   */
  async forceRelease(
    key: string,
    options: { token?: number | undefined; signal?: AbortSignal | undefined } = {},
  ): Promise<void> {
    checkOptions(options, forceChecks, "{ token: 42 }");
    const path = lockPath(key, query({ force: true, token: options.token }));
    await this.#sessions.call({
      method: "DELETE",
      path,
      timeoutMs: undefined,
      waits: true,
      signal: options.signal,
      about: { key },
    });
  }

  /** release releases a lock by its token: one with `bind: "ttl"` from anywhere, or one of this client. */
  async release(key: string, token: number, options: ReleaseOptions = {}): Promise<ReleaseResult> {
    count("token", token);
    checkOptions(options, releaseChecks, '{ outcome: "success" }');
    const release = async (context: unknown) => (await this.#sessions.caller()).release(key, token, options, context);
    return releaseResultOf(await tracedRelease(key, token, release));
  }

  /** check asks whether a lock is held under its token, and sets its data if given. Throws as `lock.check()`. */
  async check(key: string, token: number, options: { data?: Json | undefined } = {}): Promise<CheckResult> {
    count("token", token);
    checkOptions(options, dataChecks, "{ data: null }");
    return checkResultOf(await this.#sessions.read((session) => session.amend(key, token, { data: options.data })));
  }

  /** extend sets the remaining time of a lock with `bind: "ttl"` by its token, in ms from now, and its data if given. */
  async extend(
    key: string,
    token: number,
    ttlMs: number,
    options: { data?: Json | undefined } = {},
  ): Promise<CheckResult> {
    count("token", token);
    ms("ttlMs", ttlMs);
    checkOptions(options, dataChecks, "{ data: null }");
    const fields = { ttl_ms: ttlMs, data: options.data };
    return checkResultOf(await this.#sessions.read((session) => session.amend(key, token, fields)));
  }

  /**
   * events yields the events of a key from all pods: `for await (const event of client.events(key))`. The first is its `state`,
   * also after each reconnection. Delivery is best effort. It keeps the process alive only while a `next()` waits.
   * `state.lock.mine` is always false.
   */
  events(key: string, options: EventsOptions = {}): AsyncIterableIterator<KeyEvent> & AsyncDisposable {
    checkKey(key);
    checkOptions(options, eventsChecks, "{ signal }");
    const check = async (): Promise<void> =>
      requireFeature(await this.#sessions.describe(), "events", "an event stream");
    const { transport, options: limits } = this.#sessions;
    const watch = new KeyWatch(transport, key, { ...limits, check }, options.signal, () => this.#watches.delete(watch));
    this.#watches.add(watch);
    return watch;
  }

  /** connect opens the session now, so a missing sidecar shows at the start. */
  async connect(): Promise<void> {
    await this.#sessions.open();
  }

  /** describe returns the version and the features of the sidecar. */
  describe(): Promise<Description> {
    return this.#sessions.describe();
  }

  /** close ends the session and releases its locks. Waiting calls and event streams throw a `ClientClosedError`. */
  async close(): Promise<void> {
    for (const watch of [...this.#watches]) {
      watch.fail(new ClientClosedError());
    }
    await this.#sessions.close();
  }

  /** As `close`. */
  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  async #get(key: string, options: TryAcquireOptions, defaultWaitMs: number): Promise<Lock | Skipped> {
    checkKey(key);
    const fields = { ...this.#fields(options, defaultWaitMs), on_success: options.onSuccess };
    this.#refuseToWait(key, fields, options);
    const { session, got } = await acquire(this.#sessions, key, fields, options);
    if ("grant" in got) {
      return new Lock(session, got, options);
    }
    return { granted: false, reason: "skipped", key: got.key, holder: null, result: got.result };
  }

  /** #refuseToWait refuses a call that would wait for ever, for the end of the function that makes it. */
  #refuseToWait(key: string, fields: Wire, options: AcquireOptions): void {
    const { reentrant = false, mode = "exclusive", limit, requestId, signal } = options;
    const owner = fields["owner"] as string | undefined;
    // A signal ends the wait, and a call that names its request may get the same grant.
    const isForEver = (fields["wait_ms"] as number) < 0 && signal === undefined && requestId === undefined;
    if (isForEver && waitsForItself({ address: this.address, key, owner, reentrant, mode, limit })) {
      throw new InvalidRequestError(
        `key: the function that makes this call holds ${JSON.stringify(key)}, and this call would wait for the end of the function for ever. ` +
          "Enter the lock again with reentrant: true in both calls, or give waitMs. Work that is not awaited may wait in a task of its own, client.asTask",
      );
    }
  }

  #fields(options: AcquireOptions, defaultWaitMs: number): Wire {
    checkOptions(options, acquireChecks);
    const { waitMs = defaultWaitMs, reentrant } = options;
    const owner = options.owner ?? (reentrant ? this.#tasks.getStore() : undefined);
    if (reentrant && owner === undefined) {
      throw new InvalidRequestError(
        "reentrant needs an owner: give one, or call it inside of client.asTask or of a client.lock that is reentrant",
      );
    }
    return {
      wait_ms: waitMs === Number.POSITIVE_INFINITY ? -1 : waitMs,
      ttl_ms: options.ttlMs,
      mode: options.mode === "exclusive" ? undefined : options.mode, // a sidecar without shared locks knows no mode
      limit: options.limit,
      bind: options.bind,
      owner,
      reentrant,
      max_hold_ms: options.maxHoldMs,
      min_hold_ms: options.minHoldMs,
      data: options.data,
      request_id: options.requestId ?? randomUUID(),
    };
  }
}

function newTask(): string {
  return `task-${randomUUID()}`;
}

/** releaseFailed releases a lock whose work failed. The error of the work goes on, so that of the release is a warning. */
async function releaseFailed(lock: Lock): Promise<void> {
  if (lock.lost === null) {
    await lock.release({ outcome: "failure" }).catch(warn);
  }
}
