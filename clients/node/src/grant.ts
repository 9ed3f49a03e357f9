import { LockLostError, type LostReason, StopRequestedError } from "./errors";
import type { Stopping } from "./types";
import type { WireGrant } from "./wire";

/** What a holder wants to be told. */
export interface GrantListener {
  onLost?: ((error: LockLostError) => void) | undefined;
  onStop?: ((stopping: Stopping) => void) | undefined;
}

/**
 * Grant is one grant of one key: what all the Lock objects share that entered it. It hears of its end from its session,
 * from the answers of calls, and, if it is bound to its time alone, from the clock.
 */
export class Grant {
  readonly key: string;
  readonly token: number;
  stopping: Stopping | null = null;
  #lost: LockLostError | null = null;
  // Made when they are asked for: most locks are held for a moment by somebody who never asks.
  #lostController: AbortController | undefined;
  #stopController: AbortController | undefined;
  #expiry: NodeJS.Timeout | undefined;
  readonly #listeners = new Set<GrantListener>();
  // Requests to stop that were heard when nobody listened yet.
  readonly #untold: Stopping[] = [];

  constructor(wire: Pick<WireGrant, "key" | "token">) {
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

  /** listen tells the listener from now on. The first one is also told what came before the grant. */
  listen(listener: GrantListener): void {
    this.#listeners.add(listener);
    for (const stopping of this.#untold.splice(0)) {
      tell(() => listener.onStop?.(stopping));
    }
    const lost = this.#lost;
    if (lost) {
      tell(() => listener.onLost?.(lost));
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
      tell(() => listener.onLost?.(error));
    }
    return error;
  }

  askToStop(stopping: Stopping): void {
    this.stopping = stopping;
    if (this.#listeners.size === 0) {
      this.#untold.push(stopping);
    }
    this.#stopController?.abort(new StopRequestedError(this.key, stopping.reason));
    for (const listener of this.#listeners) {
      tell(() => listener.onStop?.(stopping));
    }
  }

  /**
   * expire is for a lock that no session owns: nobody else says when its time is over. It counts from when the sidecar
   * was asked, by performance.now(): the answer may have been read late.
   */
  expire(asked: number, ms: number): void {
    clearTimeout(this.#expiry);
    this.#expiry = setTimeout(() => this.lose("expired"), Math.max(asked + ms - performance.now(), 0));
    this.#expiry.unref();
  }

  /** end is called when the lock is released: there is nothing left to lose. */
  end(): void {
    clearTimeout(this.#expiry);
    this.#listeners.clear();
  }
}

/** tell calls an app's function. What it throws is the app's own, and must not keep the news from the others. */
function tell(call: () => void): void {
  try {
    call();
  } catch (error) {
    queueMicrotask(() => {
      throw error;
    });
  }
}
