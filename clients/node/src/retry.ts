import { setTimeout as sleep } from "node:timers/promises";
import {
  BadAnswerError,
  ConnectionError,
  ConnectionLostError,
  DrainingError,
  LimitReachedError,
  SessionEndedError,
  UnavailableError,
  UnreachableError,
} from "./errors";

const firstPauseMs = 20;
const longestPauseMs = 1000;

/** Patience limits how long a call goes on in an outage of the sidecar, such as its restart. */
export class Patience {
  #until: number | undefined;
  #pauseMs = firstPauseMs;

  /** A pause keeps the process alive by default. */
  constructor(
    readonly limitMs: number,
    readonly keepsAlive = true,
  ) {}

  /** pause waits before the next try. Throws `cause` if the limit is over, and the signal's reason if it is aborted. */
  async pause(cause: unknown, signal?: AbortSignal): Promise<void> {
    this.#until ??= performance.now() + this.limitMs;
    const left = this.#until - performance.now();
    if (left <= 0) {
      throw cause;
    }
    try {
      await sleep(Math.min(this.#pauseMs, left), undefined, { ref: this.keepsAlive, ...(signal && { signal }) });
    } catch {
      signal?.throwIfAborted();
    }
    this.#pauseMs = Math.min(this.#pauseMs * 2, longestPauseMs);
  }

  renew(): void {
    this.#until = undefined;
    this.#pauseMs = firstPauseMs;
  }
}

/** brokeOff says whether a call failed because its connection or session ended. */
export function brokeOff(error: unknown): boolean {
  return error instanceof SessionEndedError || error instanceof ConnectionLostError;
}

/** isAway says whether a call failed because the sidecar is not there, or shuts down. */
export function isAway(error: unknown): boolean {
  return brokeOff(error) || error instanceof UnreachableError || error instanceof DrainingError;
}

/** hasNoAnswer says whether the outcome of a call is unknown. */
export function hasNoAnswer(error: unknown): boolean {
  return error instanceof ConnectionError || error instanceof BadAnswerError;
}

/** mayBeDone says whether the outcome of a release is unknown. A sidecar that cannot reach its store does not know it either. */
export function mayBeDone(error: unknown): boolean {
  return hasNoAnswer(error) || error instanceof UnavailableError || error instanceof LimitReachedError;
}

/** abortable waits for a shared promise. The signal ends the wait only. */
export function abortable<T>(promise: Promise<T>, signal: AbortSignal | undefined): Promise<T> {
  if (signal === undefined) {
    return promise;
  }
  return new Promise((resolve, reject) => {
    const abort = (): void => reject(signal.reason);
    if (signal.aborted) {
      abort();
    }
    signal.addEventListener("abort", abort, { once: true });
    promise.then(resolve, reject).finally(() => signal.removeEventListener("abort", abort));
  });
}
