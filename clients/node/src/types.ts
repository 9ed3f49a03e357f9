/** A value of JSON. */
export type Json = null | boolean | number | string | Json[] | { [member: string]: Json };

/** What JSON makes of a value: of a `Date` a string, of `undefined` null. So `once` returns it to all callers. */
export type AsJson<T> = unknown extends T
  ? Json
  : T extends null | boolean | number | string
    ? T
    : T extends void
      ? null
      : T extends { toJSON(): infer J }
        ? AsJson<J>
        : T extends readonly (infer E)[]
          ? AsJson<E>[]
          : T extends object
            ? { [K in keyof T]: AsJson<Exclude<T[K], undefined>> | Extract<T[K], undefined> }
            : never;

/** A lock ends with the client's session, or after its time to live. */
export type Bind = "session" | "ttl";

/** A key has one exclusive holder, or shared holders. */
export type Mode = "exclusive" | "shared";

/** The outcome of the work under a lock. */
export type Outcome = "success" | "failure";

/** The sidecar's version and features (`GET /v1`). */
export interface Description {
  /** The sidecar's version. */
  version: string;
  /** The API's version, `v1`. */
  api: string;
  /** The stable names of its features. The client uses no others. */
  features: string[];
}

/** The holder of a lock. */
export interface Holder {
  /** The holder's sidecar: its pod and a random part. */
  instance: string;
  pod: string;
  /** The public name of the session; null with `bind: "ttl"`. */
  session: string | null;
  owner: string | null;
  /** By the store's clock; informative. */
  acquiredAt: Date;
  heldMs: number;
  expiresInMs: number;
  /** The holder's `data`. */
  data: Json;
  /** The W3C trace context of its acquire. */
  traceparent: string | null;
}

/** One of the holders of a shared lock. */
export interface SharedHolder extends Holder {
  /** Null if the sidecar's database role may only read. */
  token: number | null;
  /** With a limit: a number from 0 to `limit` - 1 that no other holder has. */
  slot: number | null;
  stopping: Stopping | null;
}

/** A request to the holder to stop. */
export interface Stopping {
  /** For people. */
  reason: string | null;
  /** Null in an event of the session. `check()` sets it. */
  requestedAt: Date | null;
}

/** A lock as all callers see it. */
export interface LockInfo {
  key: string;
  /** The part of the key before its first `:`, or empty. */
  type: string;
  state: "free" | "held";
  /** The session of this client holds it, or a share of it. False with `bind: "ttl"`. */
  mine: boolean;
  /** The fencing token; null unless `mine`. */
  token: number | null;
  /** Null if the lock is free. */
  mode: Mode | null;
  /** Of shared holders, if they have one. */
  limit: number | null;
  /** Null if the lock is free. Of shared holders, the one that was granted first. */
  holder: Holder | null;
  /** The sidecar of the holder may keep the lock for its next session, so perhaps nobody holds it now. */
  kept: boolean;
  /** The shared holders in the order of their tokens, the first 100. */
  holders: SharedHolder[];
  holdersCount: number;
  queueLength: number;
  stopping: Stopping | null;
}

/** A call that waits for a lock. */
export interface Waiter {
  key: string;
  /** 1 for the first call of the key. */
  position: number;
  pod: string;
  /** The public name of its session; null with `bind: "ttl"`. */
  session: string | null;
  owner: string | null;
  mode: Mode;
  /** The limit that it names, if it has one. */
  limit: number | null;
  waitingMs: number;
  /** The W3C trace context of the call. */
  traceparent: string | null;
}

/** One page of a list. */
export interface LockPage {
  locks: LockInfo[];
  /** The start of the next page; null on the last one. */
  nextCursor: string | null;
}

/** An event of `client.events(key)`. */
export type KeyEvent =
  /** The first event, also after each reconnection. */
  | { type: "state"; key: string; lock: LockInfo }
  /** `holder` is null if the lock has another holder by now. */
  | {
      type: "acquired";
      key: string;
      token: number;
      mode: Mode | null;
      limit: number | null;
      slot: number | null;
      holder: Holder | null;
    }
  | { type: "released"; key: string; token: number; outcome: Outcome | null; result: Json }
  /** The lease of the holder ended without a release. */
  | { type: "expired"; key: string; token: number }
  | { type: "stopping"; key: string; token: number; reason: string | null; requestedAt: Date | null };
