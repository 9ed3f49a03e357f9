import { AsyncLocalStorage } from "node:async_hooks";

/** A lock of a function, as far as it matters for the calls that the function makes. */
interface Held {
  /** Whether a call would wait for the release of this lock. */
  excludes(call: Wanted): boolean;
  /** Whether it is a share of the call's semaphore. */
  shares(call: Wanted): boolean;
}

/** A call that would wait. */
export interface Wanted {
  address: string;
  key: string;
  owner: string | undefined;
  reentrant: boolean;
  mode: string;
  limit: number | undefined;
}

interface Functions {
  lock: Held;
  outer: Functions | undefined;
}

/** The functions under a lock that the code that runs now belongs to. */
const functions = new AsyncLocalStorage<Functions | undefined>();

/** holding runs a function under a lock. */
export function holding<T>(lock: Held, run: () => T): T {
  return functions.run({ lock, outer: functions.getStore() }, run);
}

/** apart runs a function that belongs to no function under a lock. */
export function apart<T>(run: () => T): T {
  return functions.run(undefined, run);
}

/**
 * waitsForItself says whether a call in a function would wait for a lock that is released at the end of this function. It is certain only if
 * the function awaits the call. A call that nobody awaits is an exception that nothing here can see.
 */
export function waitsForItself(call: Wanted): boolean {
  let shares = 0;
  for (let at = functions.getStore(); at !== undefined; at = at.outer) {
    if (at.lock.excludes(call)) {
      return true;
    }
    shares += at.lock.shares(call) ? 1 : 0;
  }
  return call.limit !== undefined && shares >= call.limit;
}
