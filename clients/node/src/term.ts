import type { Lock } from "./lock";

/** Term is a term as leader. */
export class Term {
  readonly #over = new AbortController();

  /** @internal */
  constructor(
    readonly lock: Lock,
    signal: AbortSignal | undefined,
  ) {
    for (const end of [lock.signal, lock.stopSignal, ...(signal ? [signal] : [])]) {
      const abort = (): void => this.#over.abort(end.reason);
      if (end.aborted) {
        abort();
      }
      end.addEventListener("abort", abort, { once: true, signal: this.signal });
    }
  }

  /** The fencing token. Pass it to all that the leader changes. */
  get token(): number {
    return this.lock.token;
  }

  /** Aborted when the lock is lost, somebody asks to stop, or the function has ended. The work must end then. */
  get signal(): AbortSignal {
    return this.#over.signal;
  }

  /** @internal */
  end(): void {
    this.#over.abort();
  }
}
