/** What JSON can say. */
export type Json = null | boolean | number | string | Json[] | { [member: string]: Json };

/** What a lock is bound to: the client's session, or only its time to live. */
export type Bind = "session" | "ttl";

/** What the holder says about the work that was done under the lock. */
export type Outcome = "success" | "failure";

/** What a sidecar can do (`GET /v1`). */
export interface About {
  /** The sidecar's version. */
  version: string;
  /** The API's version, `v1`. */
  api: string;
  /** The stable names of its features. The client sends nothing that is not named there. */
  features: string[];
}

/** Who holds a lock. */
export interface Holder {
  /** The holder's sidecar: its pod and something random. */
  instance: string;
  pod: string;
  /** The session's public name; null for a lock with `bind: "ttl"`. */
  session: string | null;
  owner: string | null;
  /** By the clock of the store; informative. */
  acquiredAt: Date;
  heldMs: number;
  expiresInMs: number;
  /** What the holder gave as `data`. */
  data: Json;
  /** The W3C trace context of the call that acquired it. */
  traceparent: string | null;
}

/** Somebody asked the holder to stop. */
export interface Stopping {
  /** Why, for people. */
  reason: string | null;
  /** Null as long as only the session's event was heard, which does not tell it; `check()` does. */
  requestedAt: Date | null;
}

/** A lock as everybody sees it. */
export interface LockInfo {
  key: string;
  /** The part of the key before its first `:`; empty if it has none. */
  type: string;
  state: "free" | "held";
  /** This client's session holds it. Never true for `bind: "ttl"`. */
  mine: boolean;
  /** The fencing token; null unless `mine`. */
  token: number | null;
  /** Null when the lock is free. */
  holder: Holder | null;
  queueLength: number;
  stopping: Stopping | null;
}

/** One page of a list. */
export interface LockPage {
  locks: LockInfo[];
  /** Where the next page begins; null on the last one. */
  nextCursor: string | null;
}

/** What happens to a key, as `client.events(key)` yields it. */
export type KeyEvent =
  /** The first event, and the first after each reconnection: what the key is like now. */
  | { type: "state"; key: string; lock: LockInfo }
  /** `holder` is null when the lock has changed hands again meanwhile. */
  | { type: "acquired"; key: string; holder: Holder | null }
  | { type: "released"; key: string; outcome: Outcome | null; result: Json }
  /** The holder's lease ended without a release. */
  | { type: "expired"; key: string }
  | { type: "stopping"; key: string; reason: string | null; requestedAt: Date | null };
