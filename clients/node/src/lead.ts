import { setTimeout as sleep } from "node:timers/promises";
import { LimitReachedError, LockLostError, LocksidecarError, SessionEndedError, UnavailableError } from "./errors";
import { type Lock, under } from "./lock";
import type { Sessions } from "./sessions";
import { Term } from "./term";
import type { Json, KeyEvent } from "./types";

/** The pause between two campaigns in an outage, if the sidecar does not name one. */
const pauseMs = 1000;

/** lead campaigns, and runs the function for each term. See `client.lead`. */
export async function lead<T>(
  sessions: Sessions,
  campaign: () => Promise<Lock>,
  signal: AbortSignal | undefined,
  run: (term: Term) => T | PromiseLike<T>,
): Promise<T> {
  for (;;) {
    let lock: Lock;
    try {
      lock = await campaign();
    } catch (error) {
      if (signal?.aborted || sessions.closed || !sessions.connected || !mayReturn(error)) {
        throw error;
      }
      const ms = (error instanceof LocksidecarError ? error.retryAfterMs : undefined) ?? pauseMs;
      await sleep(ms, undefined, signal ? { signal } : {}).catch(() => signal?.throwIfAborted());
      continue;
    }
    const term = new Term(lock, signal);
    const result = await lasting(term, run);
    if (result) {
      return result.value;
    }
    signal?.throwIfAborted();
  }
}

/** lasting runs the function for one term, and releases the lock. It returns undefined if the term has ended before the function. */
async function lasting<T>(
  term: Term,
  run: (term: Term) => T | PromiseLike<T>,
): Promise<{ value: Awaited<T> } | undefined> {
  const work = async (): Promise<{ value: Awaited<T> } | undefined> => {
    try {
      const value = await run(term);
      return term.signal.aborted ? undefined : { value };
    } catch (error) {
      if (term.signal.aborted && isEnd(error, term)) {
        return undefined;
      }
      throw error;
    } finally {
      term.end();
    }
  };
  try {
    return await under(term.lock, work);
  } catch (error) {
    if (term.lock.lost !== null && error === term.lock.lost) {
      return undefined; // by the release
    }
    throw error;
  }
}

/** isEnd says whether an error comes from the abort of the term's signal. Node's own calls throw an `AbortError` then. */
function isEnd(error: unknown, term: Term): boolean {
  return (
    error === term.signal.reason ||
    error instanceof LockLostError ||
    (error instanceof Error && error.name === "AbortError")
  );
}

/** mayReturn says whether a sidecar that was there before may grant the lock later. */
function mayReturn(error: unknown): boolean {
  return [UnavailableError, LimitReachedError, SessionEndedError, LockLostError].some((kind) => error instanceof kind);
}

/** LeaderWatch is an iterator over the data of a key's leader. */
export class LeaderWatch implements AsyncIterableIterator<Json> {
  #last: string | undefined;

  constructor(readonly events: AsyncIterableIterator<KeyEvent> & AsyncDisposable) {}

  [Symbol.asyncIterator](): this {
    return this;
  }

  async next(): Promise<IteratorResult<Json, undefined>> {
    for (;;) {
      const event = await this.events.next();
      if (event.done) {
        return { value: undefined, done: true };
      }
      const value = leaderData(event.value);
      const text = JSON.stringify(value);
      if (value !== undefined && text !== this.#last) {
        this.#last = text;
        return { value, done: false };
      }
    }
  }

  async return(): Promise<IteratorResult<Json, undefined>> {
    await this[Symbol.asyncDispose]();
    return { value: undefined, done: true };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.events[Symbol.asyncDispose]();
  }
}

/** leaderData is the data of the leader after an event: null without a leader, undefined if the event does not tell. */
function leaderData(event: KeyEvent): Json | undefined {
  switch (event.type) {
    case "state":
      return event.lock.holder?.data ?? null;
    case "acquired":
      return event.holder ? event.holder.data : undefined;
    case "released":
    case "expired":
      return null;
    default:
      return undefined;
  }
}
