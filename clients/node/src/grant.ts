import { LockLostError, type LostReason, StopRequestedError } from "./errors";
import type { Lease } from "./lease";
import type { Stopping } from "./types";
import type { WireGrant } from "./wire";

export interface GrantListener {
  onLost?: ((error: LockLostError) => void) | undefined;
  onStop?: ((stopping: Stopping) => void) | undefined;
}

/**
 * Grant is one grant of one key. All entries of its owner share it. Its end comes from the session, from the answer of a call,
 * or, with `bind: "ttl"`, from the clock.
 */
export class Grant {
  readonly key: string;
  readonly token: number;
  stopping: Stopping | null = null;
  /** When it came, by performance.now(). */
  readonly since = performance.now();
  #lost: LockLostError | null = null;
  // Made on first use, because most apps use neither.
  #lostController: AbortController | undefined;
  #stopController: AbortController | undefined;
  #expiry: NodeJS.Timeout | undefined;
  // When the question was sent whose answer set the expiry. Infinity: it was released.
  #asked = -Infinity;
  readonly #listeners = new Set<GrantListener>();
  // Requests to stop that came before the first listener.
  readonly #undelivered: Stopping[] = [];

  constructor(
    wire: Pick<WireGrant, "key" | "token">,
    /** The lease of a lock of the session. */
    readonly lease?: Lease,
  ) {
    this.key = wire.key;
    this.token = wire.token;
  }

  get lost(): LockLostError | null {
    return this.#lost;
  }

  get signal(): AbortSignal {
    if (this.#lostController === undefined) {
      this.#lostController = new AbortController();
      if (this.#lost) {
        this.#lostController.abort(this.#lost);
      }
    }
    return this.#lostController.signal;
  }

  get stopSignal(): AbortSignal {
    if (this.#stopController === undefined) {
      this.#stopController = new AbortController();
      if (this.stopping) {
        this.#stopController.abort(new StopRequestedError(this.key, this.stopping.reason));
      }
    }
    return this.#stopController.signal;
  }

  /** listen adds a listener. The first one also gets the news from before the grant. */
  listen(listener: GrantListener): void {
    this.#listeners.add(listener);
    for (const stopping of this.#undelivered.splice(0)) {
      deliver(() => listener.onStop?.(stopping));
    }
    const lost = this.#lost;
    if (lost) {
      deliver(() => listener.onLost?.(lost));
    }
  }

  ignore(listener: GrantListener): void {
    this.#listeners.delete(listener);
  }

  lose(reason: LostReason, error = new LockLostError(this.key, this.token, reason)): LockLostError {
    if (this.#lost) {
      return this.#lost;
    }
    clearTimeout(this.#expiry);
    this.#lost = error;
    this.#lostController?.abort(error);
    for (const listener of this.#listeners) {
      deliver(() => listener.onLost?.(error));
    }
    return error;
  }

  askToStop(stopping: Stopping): void {
    this.stopping = stopping;
    if (this.#listeners.size === 0) {
      this.#undelivered.push(stopping);
    }
    this.#stopController?.abort(new StopRequestedError(this.key, stopping.reason));
    for (const listener of this.#listeners) {
      deliver(() => listener.onStop?.(stopping));
    }
  }

  /**
   * expire sets the end of a lock without a session. It counts from the question, because an answer may be read late: also after
   * that to a newer question, or to the release. Then it sets nothing.
   */
  expire(asked: number, ms: number): void {
    if (asked < this.#asked) {
      return;
    }
    this.#asked = asked;
    clearTimeout(this.#expiry);
    this.#expiry = setTimeout(() => this.lose("expired"), Math.max(asked + ms - performance.now(), 0));
    this.#expiry.unref();
  }

  end(): void {
    this.#asked = Infinity;
    clearTimeout(this.#expiry);
    this.#listeners.clear();
  }
}

/** deliver calls a function of the app. If it throws, the other listeners still get the news. */
function deliver(call: () => void): void {
  try {
    call();
  } catch (error) {
    queueMicrotask(() => {
      throw error;
    });
  }
}
