import { type Checks, checkOptions, count, json, ms, text } from "./checks";
import {
  type LockLostError,
  type LocksidecarError,
  LockLostError as Lost,
  NotHolderError,
  SessionEndedError,
} from "./errors";
import type { Grant, GrantListener } from "./grant";
import { holding, type Wanted } from "./holding";
import { mayBeDone } from "./retry";
import type { Granted, Session } from "./session";
import { tracedRelease } from "./tracing";
import type { Bind, Json, Mode, Outcome, Stopping } from "./types";
import { stoppingOf, type Wire } from "./wire";

/** How a lock is released. */
export interface ReleaseOptions {
  /** For waiters with `onSuccess: "skip"`, and for watchers. */
  outcome?: Outcome | undefined;
  /** JSON of at most 4 KiB for them, only with `outcome: "success"`. */
  result?: Json | undefined;
  /** The release is refused unless the lock has this number of entries. */
  reentry?: number | undefined;
}

export const releaseChecks: Checks<ReleaseOptions> = { outcome: text, result: json, reentry: count };
export const dataChecks: Checks<{ data?: Json }> = { data: json };

/** The answer to a release. */
export interface ReleaseResult {
  key: string;
  /** False while entries remain. */
  released: boolean;
  /** The number of remaining entries. */
  reentry: number;
  heldMs: number;
}

/** The state of a held lock. */
export interface CheckResult {
  key: string;
  token: number;
  /** The number of its owner's entries. */
  reentry: number;
  /** How long an app may rely on the lock without news from the sidecar. */
  expiresInMs: number;
  mode: Mode;
  limit: number | null;
  slot: number | null;
  stopping: Stopping | null;
}

/** Lock is a held lock. The end of an `await using` block releases it. Elsewhere call `release()`. */
export class Lock {
  readonly key: string;
  /** The fencing token. It strictly grows for a key. Pass it to the resource that the lock protects. */
  readonly token: number;
  readonly bind: Bind;
  /** The public name of the session; null with `bind: "ttl"`. */
  readonly session: string | null;
  /** The number of this entry of its owner. */
  readonly reentry: number;
  /** The wait in the queue, in ms. */
  readonly waitedMs: number;
  /** For how many ms an app could rely on the grant without news from the sidecar. `check()` has the present value. */
  readonly expiresInMs: number;
  /** By the store's clock; informative. */
  readonly acquiredAt: Date;
  readonly #session: Session;
  readonly #grant: Grant;
  readonly #entry: string | undefined;
  readonly #listener: GrantListener;
  readonly #owner: string | undefined;
  #share: Pick<CheckResult, "mode" | "limit" | "slot">;
  #released: Promise<ReleaseResult> | undefined;
  /** A release had no answer, so it may have been carried out. */
  #owed = false;

  /** @internal */
  constructor(session: Session, { wire, grant, entry, owner }: Granted, listener: GrantListener = {}) {
    this.key = wire.key;
    this.token = wire.token;
    this.bind = wire.bind;
    this.session = wire.session;
    this.reentry = wire.reentry;
    this.waitedMs = wire.waited_ms;
    this.expiresInMs = wire.expires_in_ms;
    this.acquiredAt = new Date(wire.acquired_at);
    this.#share = { mode: wire.mode, limit: wire.limit, slot: wire.slot };
    this.#session = session;
    this.#grant = grant;
    this.#entry = entry;
    this.#owner = owner;
    this.#listener = listener;
    grant.listen(listener);
  }

  /** The key, as in the Web Locks API. */
  get name(): string {
    return this.key;
  }

  /** As in the Web Locks API. */
  get mode(): Mode {
    return this.#share.mode;
  }

  /** The most shared holders at a time, or null. */
  get limit(): number | null {
    return this.#share.limit;
  }

  /** With a limit: a number from 0 to `limit` - 1 that no other holder has. */
  get slot(): number | null {
    return this.#share.slot;
  }

  /** Aborted with a `LockLostError` when the lock is lost, not by a release. Pass it to `fetch`, timers and other work. */
  get signal(): AbortSignal {
    return this.#grant.signal;
  }

  /** The loss, or null if none is known. */
  get lost(): LockLostError | null {
    return this.#grant.lost;
  }

  /** The request to stop, or null. With `bind: "ttl"` only `check()` sets it. */
  get stopping(): Stopping | null {
    return this.#grant.stopping;
  }

  /** Aborted with a `StopRequestedError` when somebody asks to stop. The lock is held until its release. */
  get stopSignal(): AbortSignal {
    return this.#grant.stopSignal;
  }

  /** check asks whether the lock is still held. Throws a `LockLostError`, or after a release a `NotHolderError`. */
  check(): Promise<CheckResult> {
    return this.#amend({});
  }

  /**
   * extend sets the remaining time of a lock with `bind: "ttl"`, in ms from now, and its `data` if given. Throws as `check` does,
   * and an `InvalidRequestError` for the lock of a session, which the sidecar renews.
   */
  async extend(ttlMs: number, options: { data?: Json | undefined } = {}): Promise<CheckResult> {
    ms("ttlMs", ttlMs);
    checkOptions(options, dataChecks, "{ data: null }");
    return this.#amend({ ttl_ms: ttlMs, data: options.data });
  }

  /** update replaces `holder.data`. Null removes it. Throws as `check` does. */
  async update(data: Json): Promise<CheckResult> {
    json("data", data);
    return this.#amend({ data });
  }

  /**
   * downgrade makes an exclusive lock shared, under the same token. Shared calls that wait are let in. Throws as `check` does.
   * There is no upgrade, because two holders would wait for each other: release the lock, and acquire it.
   */
  async downgrade(): Promise<CheckResult> {
    const result = await this.#amend({ mode: "shared" });
    this.#share = result;
    return result;
  }

  /**
   * release releases this entry of the lock. The last entry frees it. A second call returns the same answer; a failed one may be
   * repeated. If the sidecar did not answer, the client itself repeats it until it does. Throws a `LockLostError` if the lock was lost.
   */
  async release(options: ReleaseOptions = {}): Promise<ReleaseResult> {
    checkOptions(options, releaseChecks, '{ outcome: "success" }');
    this.#released ??= this.#release(options).catch((error) => {
      this.#released = undefined;
      throw error;
    });
    return this.#released;
  }

  /** @internal */
  excludes(call: Wanted): boolean {
    if (this.key !== call.key || this.#session.transport.address !== call.address || this.lost || this.#released) {
      return false;
    }
    const enters = call.reentrant && call.owner === this.#owner && this.mode === "exclusive";
    return !enters && !(this.mode === "shared" && call.mode === "shared");
  }

  /** @internal */
  shares(call: Wanted): boolean {
    const isSame = this.key === call.key && this.#session.transport.address === call.address;
    return isSame && this.limit === call.limit && !this.lost && !this.#released;
  }

  /**
   * The end of an `await using` block. It releases the lock, and throws as `release` does. If the block has thrown too, JavaScript
   * makes a `SuppressedError`: its `suppressed` is the error of the block, its `error` that of the release.
   */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.release();
  }

  async #release(options: ReleaseOptions): Promise<ReleaseResult> {
    const call = (context?: unknown) =>
      this.#ask(() => this.#session.release(this.key, this.token, { ...options, entry: this.#entry }, context));
    try {
      return this.#over(await tracedRelease(this.key, this.token, call));
    } catch (error) {
      if (this.#owed && error instanceof NotHolderError && this.#isDone(error)) {
        return this.#over({
          key: this.key,
          released: !error.reentry,
          reentry: error.reentry ?? 0,
          held_ms: this.#heldMs,
        });
      }
      if (mayBeDone(error) && !this.#owed) {
        this.#owed = true;
        this.#session.owe(error, () => call().then((answer) => this.#over(answer)));
      }
      throw error;
    }
  }

  /** #isDone says whether the refusal of a repeated release means that an earlier one was carried out. */
  #isDone({ reason }: NotHolderError): boolean {
    // The store may have forgotten the end of a lock without a session. Nobody else ends it before its time.
    return reason === "released" || (this.bind === "ttl" && reason === "unknown_token" && this.lost === null);
  }

  /** #over notes that this entry has been released. */
  #over(answer: Wire): ReleaseResult {
    const result = releaseResultOf(answer);
    this.#grant.ignore(this.#listener);
    if (result.released) {
      this.#grant.end();
    }
    this.#released ??= Promise.resolve(result);
    return result;
  }

  get #heldMs(): number {
    return Math.max(Date.now() - this.acquiredAt.getTime(), 0);
  }

  async #amend(fields: Wire): Promise<CheckResult> {
    const asked = performance.now();
    const result = checkResultOf(await this.#ask(() => this.#session.amend(this.key, this.token, fields)));
    if (this.bind === "ttl") {
      this.#grant.expire(asked, result.expiresInMs);
    }
    this.#grant.stopping = result.stopping;
    return result;
  }

  /** #ask makes a call about this lock, and notes a loss. */
  async #ask(call: () => Promise<Wire>): Promise<Wire> {
    // For a lock without a session the store decides, not the clock here.
    if (this.lost && this.bind === "session") {
      throw this.lost;
    }
    try {
      return await call();
    } catch (error) {
      if (error instanceof Lost) {
        throw this.#grant.lose(error.reason, error);
      }
      if (error instanceof SessionEndedError && this.bind === "session") {
        this.#session.end("disconnected");
        throw this.lost ?? error;
      }
      throw error;
    }
  }
}

/** LockGroup is the result of `client.acquireMany`. */
export class LockGroup {
  #signal: AbortSignal | undefined;

  /** @internal */
  constructor(
    /** In the order of the keys. */
    readonly locks: readonly Lock[],
  ) {}

  /** Aborted with a `LockLostError` when one of them is lost. */
  get signal(): AbortSignal {
    if (this.#signal === undefined) {
      const any = new AbortController();
      this.#signal = any.signal;
      for (const { signal } of this.locks) {
        if (signal.aborted) {
          any.abort(signal.reason);
        } else {
          signal.addEventListener("abort", () => any.abort(signal.reason), { once: true });
        }
      }
    }
    return this.#signal;
  }

  /** get returns the lock of a key, or undefined. */
  get(key: string): Lock | undefined {
    return this.locks.find((lock) => lock.key === key);
  }

  /** release releases all, and then throws the first error. */
  async release(options: Omit<ReleaseOptions, "reentry"> = {}): Promise<void> {
    const all = await Promise.allSettled(this.locks.map((lock) => lock.release(options)));
    for (const one of all) {
      if (one.status === "rejected") {
        throw one.reason;
      }
    }
  }

  /** As `release`. */
  [Symbol.asyncDispose](): Promise<void> {
    return this.release();
  }
}

/** under runs a function and then releases the lock. The process lives on meanwhile, also if the function only waits for a signal. */
export async function under<T>(lock: Lock, run: () => T | PromiseLike<T>): Promise<T> {
  let value: T;
  const alive = setInterval(() => {}, 2 ** 31 - 1);
  try {
    value = await holding(lock, run);
  } catch (error) {
    await lock.release().catch((failure) => failure === error || warn(failure)); // it may be the loss that the function threw
    throw error;
  } finally {
    clearInterval(alive);
  }
  await lock.release();
  return value;
}

/** warn is for errors that no caller gets. */
export function warn(error: LocksidecarError): void {
  process.emitWarning(`a lock could not be released: ${error.message}`, {
    type: "LocksidecarWarning",
    code: error.code,
  });
}

/** @internal */
export function checkResultOf(w: Wire): CheckResult {
  return {
    key: w["key"] as string,
    token: w["token"] as number,
    reentry: w["reentry"] as number,
    expiresInMs: w["expires_in_ms"] as number,
    mode: (w["mode"] ?? "exclusive") as Mode,
    limit: (w["limit"] ?? null) as number | null,
    slot: (w["slot"] ?? null) as number | null,
    stopping: stoppingOf(w["stopping"] as Wire | null),
  };
}

/** @internal */
export function releaseResultOf(w: Wire): ReleaseResult {
  return {
    key: w["key"] as string,
    released: w["released"] as boolean,
    reentry: w["reentry"] as number,
    heldMs: w["held_ms"] as number,
  };
}
