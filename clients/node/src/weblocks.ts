import { abortSignal, type Checks, checkOptions, flag, callback as isCallback, text } from "./checks";
import { NotSupportedError } from "./errors";
import { type Lock, under } from "./lock";
import type { TryAcquireResult } from "./options";
import type { Mode } from "./types";

/** The options of `client.request`, as in the Web Locks API. */
export interface LockRequestOptions {
  mode?: Mode | undefined;
  /** Do not wait: the callback gets null if the lock is held. Not together with `signal`. */
  ifAvailable?: boolean | undefined;
  /** Refused: another process cannot lose its lock without harm. See `client.stop` and `client.forceRelease`. */
  steal?: boolean | undefined;
  /** Ends the wait. */
  signal?: AbortSignal | undefined;
}

const requestChecks: Checks<LockRequestOptions> = { mode: text, ifAvailable: flag, steal: flag, signal: abortSignal };

/** The work under the lock. `lock` is null only with `ifAvailable`. */
export type LockRequestCallback<T, L> = (lock: L) => T | PromiseLike<T>;

/** The calls of a client that a request makes. */
interface Locks {
  lock<T>(
    key: string,
    options: { mode?: Mode | undefined; signal?: AbortSignal | undefined },
    run: LockRequestCallback<T, Lock>,
  ): Promise<T>;
  tryAcquire(key: string, options: { mode?: Mode | undefined }): Promise<TryAcquireResult>;
}

/** request is `navigator.locks.request` with a lock of the whole fleet. */
export async function request<T>(
  client: Locks,
  name: string,
  options: LockRequestOptions,
  callback: LockRequestCallback<T, Lock | null>,
): Promise<T> {
  refuse(options, callback);
  const { mode, signal } = options;
  if (!options.ifAvailable) {
    return client.lock(name, { mode, signal }, callback);
  }
  const got = await client.tryAcquire(name, { mode });
  return got.granted ? under(got.lock, () => callback(got.lock)) : callback(null);
}

function refuse(options: LockRequestOptions, callback: unknown): void {
  isCallback("the last argument, which gets the lock", callback);
  checkOptions(options, requestChecks, "{ ifAvailable: true }");
  const { ifAvailable, steal, signal } = options;
  if (steal) {
    throw new NotSupportedError(
      "steal: a lock cannot be taken from a process elsewhere without harm; client.stop(name) asks its holder to end, " +
        "client.forceRelease(name) breaks the lock where the sidecar allows it",
    );
  }
  if (ifAvailable && signal) {
    throw new NotSupportedError(
      "ifAvailable and signal: a request that does not wait cannot be aborted; give one of them",
    );
  }
}
