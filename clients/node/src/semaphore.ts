import { checkKey, checkOptions, count, optionsAndRun } from "./checks";
import { type Lock, under } from "./lock";
import { type AcquireOptions, acquireChecks, type SemaphoreOptions, type TryAcquireResult } from "./options";

/** The calls of a client that a semaphore makes. */
interface Locks {
  acquire(key: string, options: AcquireOptions): Promise<Lock>;
  tryAcquire(key: string, options: AcquireOptions): Promise<TryAcquireResult>;
}

/** Semaphore is a key with at most `limit` holders. Each permit is a shared `Lock` with a `slot`. */
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

  /** acquire waits for a permit. As `client.acquire`. */
  async acquire(options: SemaphoreOptions = {}): Promise<Lock> {
    return this.#locks.acquire(this.key, this.#permit(options));
  }

  /** tryAcquire returns a result. By default it does not wait. As `client.tryAcquire`. */
  async tryAcquire(options: SemaphoreOptions = {}): Promise<TryAcquireResult> {
    return this.#locks.tryAcquire(this.key, this.#permit(options));
  }

  /** run runs a function with a permit, and returns its result. As `client.lock`. */
  run<T>(run: (permit: Lock) => T | PromiseLike<T>): Promise<T>;
  run<T>(options: SemaphoreOptions, run: (permit: Lock) => T | PromiseLike<T>): Promise<T>;
  async run<T>(
    ...rest: [(permit: Lock) => T | PromiseLike<T>] | [SemaphoreOptions, (permit: Lock) => T | PromiseLike<T>]
  ): Promise<T> {
    const [options, run] = optionsAndRun<SemaphoreOptions, (permit: Lock) => T | PromiseLike<T>>(rest, acquireChecks);
    const permit = await this.acquire(options);
    return under(permit, () => run(permit));
  }

  #permit(options: SemaphoreOptions): AcquireOptions {
    checkOptions(options, acquireChecks);
    return { ...options, mode: "shared", limit: this.limit };
  }
}
