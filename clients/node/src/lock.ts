import { type LockLostError, type LocksidecarError, LockLostError as Lost, SessionEndedError } from "./errors";
import type { Grant, GrantListener } from "./grant";
import type { Granted, Session } from "./session";
import { tracedRelease } from "./tracing";
import type { Bind, Json, Outcome, Stopping } from "./types";
import { millis, stoppingOf, type Wire } from "./wire";

/** How a lock is released. */
export interface ReleaseOptions {
  /** What is said about the work, to those who wait with `onSuccess: "skip"` and those who watch. */
  outcome?: Outcome | undefined;
  /** Only with `outcome: "success"`: JSON of at most 4 KiB for them. */
  result?: Json | undefined;
  /** The release is refused unless the lock is entered so many times now. */
  reentry?: number | undefined;
}

/** What a release did. */
export interface ReleaseResult {
  key: string;
  /** False while the lock has been entered more often than released. */
  released: boolean;
  /** How many entries remain. */
  reentry: number;
  heldMs: number;
}

/** What the sidecar knows of a lock that is held. */
export interface CheckResult {
  key: string;
  token: number;
  /** How many times its owner has entered it. */
  reentry: number;
  /** How long it may be relied on if the sidecar is not heard of any more. */
  expiresInMs: number;
  stopping: Stopping | null;
}

/**
 * Lock is a lock that is held: what `client.acquire` returns. `await using` releases it at the end of the block; without
 * it, call `release()`.
 */
export class Lock {
  readonly key: string;
  /** The fencing token: strictly grows for a key, for ever. Hand it to whatever the lock protects. */
  readonly token: number;
  readonly bind: Bind;
  /** The session's public name; null with `bind: "ttl"`. */
  readonly session: string | null;
  /** How many times its owner had entered it with this one. */
  readonly reentry: number;
  /** How long it waited in line, in ms. */
  readonly waitedMs: number;
  /** How long it could be relied on without the sidecar when it was granted, in ms. `check()` tells it of now. */
  readonly expiresInMs: number;
  /** By the clock of the store; informative. */
  readonly acquiredAt: Date;
  /** As in the Web Locks API. */
  readonly mode = "exclusive";

  readonly #session: Session;
  readonly #grant: Grant;
  readonly #entry: string | undefined;
  readonly #listener: GrantListener;
  #released: Promise<ReleaseResult> | undefined;

  /** @internal */
  constructor(session: Session, { wire, grant, entry }: Granted, listener: GrantListener = {}) {
    this.key = wire.key;
    this.token = wire.token;
    this.bind = wire.bind;
    this.session = wire.session;
    this.reentry = wire.reentry;
    this.waitedMs = wire.waited_ms;
    this.expiresInMs = wire.expires_in_ms;
    this.acquiredAt = new Date(wire.acquired_at);
    this.#session = session;
    this.#grant = grant;
    this.#entry = entry;
    this.#listener = listener;
    grant.listen(listener);
  }

  /** The key, under the name that it has in the Web Locks API. */
  get name(): string {
    return this.key;
  }

  /**
   * Aborted when the lock is lost, with a `LockLostError` as its reason: hand it to `fetch`, to timers, to whatever is
   * done under the lock. A release does not abort it.
   */
  get signal(): AbortSignal {
    return this.#grant.signal;
  }

  /** Why the lock is lost; null as long as it is not known to be. */
  get lost(): LockLostError | null {
    return this.#grant.lost;
  }

  /** Somebody asked to stop; null when nobody did. Not heard with `bind: "ttl"`, where `check()` tells it. */
  get stopping(): Stopping | null {
    return this.#grant.stopping;
  }

  /** Aborted when somebody asks to stop, with a `StopRequestedError` as its reason. The lock is held until it is released. */
  get stopSignal(): AbortSignal {
    return this.#grant.stopSignal;
  }

  /**
   * check asks the sidecar whether the lock is held still.
   * Throws a `LockLostError` if it is not, a `NotHolderError` if it was released.
   */
  check(): Promise<CheckResult> {
    return this.#amend({});
  }

  /**
   * extend sets the remaining time of a lock with `bind: "ttl"`, in ms from now. Throws as `check` does, and an
   * `InvalidRequestError` for a session's lock: the sidecar renews that as long as the session lives. `data`, if given,
   * replaces what others see.
   */
  async extend(ttlMs: number, options: { data?: Json | undefined } = {}): Promise<CheckResult> {
    return this.#amend({ ttl_ms: millis("ttlMs", ttlMs), data: options.data });
  }

  /** setData replaces what others see as `holder.data`; null removes it. Throws as `check` does. */
  setData(data: Json): Promise<CheckResult> {
    return this.#amend({ data });
  }

  /**
   * release takes off this entry of the lock, which frees it if it is the last one. A second call returns what the
   * first did; one that failed may be repeated. Throws a `LockLostError` if the lock was lost: then others may have had it
   * meanwhile.
   */
  release(options: ReleaseOptions = {}): Promise<ReleaseResult> {
    this.#released ??= this.#release(options).catch((error) => {
      this.#released = undefined;
      throw error;
    });
    return this.#released;
  }

  /**
   * The end of an `await using` block: releases the lock if that has not been done, and throws as `release` does, so that a
   * block whose lock was lost does not end well. If the block has thrown too, JavaScript makes a `SuppressedError` of both:
   * its `suppressed` is the block's error, its `error` this one.
   */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.release();
  }

  async #release(options: ReleaseOptions): Promise<ReleaseResult> {
    const answer = await tracedRelease(this.key, this.token, (context) =>
      this.#ask(() => this.#session.release(this.key, this.token, { ...options, entry: this.#entry }, context)),
    );
    this.#grant.ignore(this.#listener);
    if (answer["released"] === true) {
      this.#grant.end();
    }
    return releaseResultOf(answer);
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

  /** #ask makes a call about this lock, and notes when it says that the lock is lost. */
  async #ask(call: () => Promise<Wire>): Promise<Wire> {
    // The store decides about a lock that no session owns, whatever the clock here says.
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

/** LockGroup is several locks that were granted together: what `client.acquireMany` returns. */
export class LockGroup {
  #signal: AbortSignal | undefined;

  /** @internal */
  constructor(
    /** In the order in which the keys were named. */
    readonly locks: readonly Lock[],
  ) {}

  /** Aborted when one of them is lost, with its `LockLostError` as the reason. */
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

  /** get returns the lock of a key, or undefined if it is not one of them. */
  get(key: string): Lock | undefined {
    return this.locks.find((lock) => lock.key === key);
  }

  /** release releases all of them, and then throws the first error, if there was one. */
  async release(options: Omit<ReleaseOptions, "reentry"> = {}): Promise<void> {
    const all = await Promise.allSettled(this.locks.map((lock) => lock.release(options)));
    for (const one of all) {
      if (one.status === "rejected") {
        throw one.reason;
      }
    }
  }

  /** As that of a lock: releases all of them, and throws as `release` does. */
  [Symbol.asyncDispose](): Promise<void> {
    return this.release();
  }
}

/** under runs a function and then releases the lock. */
export async function under<T>(lock: Lock, run: () => T | PromiseLike<T>): Promise<T> {
  let value: T;
  try {
    value = await run();
  } catch (error) {
    await lock.release().catch((failure) => failure === error || warn(failure)); // it may have thrown the loss
    throw error;
  }
  await lock.release();
  return value;
}

/** warn is for errors that have nobody to go to. */
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
