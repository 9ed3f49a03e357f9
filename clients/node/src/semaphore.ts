import { checkKey, checkOptions, count, optionsAndRun } from "./checks";
import { type Lock, under } from "./lock";
import { type AcquireOptions, acquireChecks, type SemaphoreOptions, type TryAcquireResult } from "./options";

/** The calls of a client that a semaphore makes. */
interface Locks {
  acquire(key: string, options: AcquireOptions): Promise<Lock>;
  tryAcquire(key: string, options: AcquireOptions): Promise<TryAcquireResult>;
}

/** Semaphore is a key with at most `limit` holders. Each place is a shared `Lock` with a `slot`. */
export class Semaphore {
  readonly #locks: Locks;

  /** @internal */
  constructor(
    locks: Locks,
    readonly key: string,
    readonly limit: number,
  ) {
    checkKey(key);
    count("limit", limit); // undefined would be no limit
    this.#locks = locks;
  }

  /** acquire waits for a place. As `client.acquire`. */
  async acquire(options: SemaphoreOptions = {}): Promise<Lock> {
    return this.#locks.acquire(this.key, this.#place(options));
  }

  /** tryAcquire returns a result. By default it does not wait. As `client.tryAcquire`. */
  async tryAcquire(options: SemaphoreOptions = {}): Promise<TryAcquireResult> {
    return this.#locks.tryAcquire(this.key, this.#place(options));
  }

  /** run runs a function with a place, and returns its result. As `client.lock`. */
  run<T>(run: (place: Lock) => T | PromiseLike<T>): Promise<T>;
  run<T>(options: SemaphoreOptions, run: (place: Lock) => T | PromiseLike<T>): Promise<T>;
  async run<T>(
    ...rest: [(place: Lock) => T | PromiseLike<T>] | [SemaphoreOptions, (place: Lock) => T | PromiseLike<T>]
  ): Promise<T> {
    const [options, run] = optionsAndRun<SemaphoreOptions, (place: Lock) => T | PromiseLike<T>>(rest, acquireChecks);
    const place = await this.acquire(options);
    return under(place, () => run(place));
  }

  #place(options: SemaphoreOptions): AcquireOptions {
    checkOptions(options, acquireChecks);
    return { ...options, mode: "shared", limit: this.limit };
  }
}
