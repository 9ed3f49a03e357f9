// What the client's calls take, and what they return when there is no lock.
import type { LockLostError, NotGrantedError } from "./errors";
import type { Lock } from "./lock";
import type { Bind, Holder, Json, Stopping } from "./types";

/** How a client reaches its sidecar. All durations are in ms. */
export interface ClientOptions {
  /** The sidecar's Unix socket; by default `LOCKSIDECAR_SOCKET`, else `/run/locksidecar/locksidecar.sock`. */
  socketPath?: string | undefined;
  /** Shown to others as the holder's session, 1 to 255 bytes; by default a short random id. */
  name?: string | undefined;
  /** The default `ttlMs` of its locks: how long they outlive a dead sidecar. 500 to 86,400,000. */
  ttlMs?: number | undefined;
  /** How long the sidecar may take to answer, beyond what a call is allowed to wait for. 10,000 by default. */
  timeoutMs?: number | undefined;
  /** How long calls that wait, and event streams, bear with a sidecar that has gone away. 30,000 by default. */
  reconnectMs?: number | undefined;
}

/** How a lock is acquired. All durations are in ms. */
export interface AcquireOptions {
  /** How long to wait in line: 0 tries once, without it (or with Infinity or -1) for ever. At most 86,400,000. */
  waitMs?: number | undefined;
  /** How long the lock outlives a dead sidecar; with `bind: "ttl"`, how long it lasts at all. 500 to 86,400,000. */
  ttlMs?: number | undefined;
  /**
   * `session` (the default): the lock ends with this client. `ttl`: it belongs to nobody, ends after its `ttlMs`, and obeys
   * every caller that sends its token, which can be guessed.
   */
  bind?: Bind | undefined;
  /** Who in this client asks, for `reentrant`; shown to others. 1 to 255 bytes. By default the task of `client.asTask`. */
  owner?: string | undefined;
  /** The same owner enters a lock again that it holds. Everybody else waits, this client included. */
  reentrant?: boolean | undefined;
  /** After so long the sidecar takes the lock, whatever is being done. At most 86,400,000. */
  maxHoldMs?: number | undefined;
  /** Nobody else gets the lock before so long after the grant, even if it is released. At most 86,400,000. */
  minHoldMs?: number | undefined;
  /** At most 4 KiB, shown to others as part of `holder`. */
  data?: Json | undefined;
  /**
   * A UUID: the same id gets the same grant, in this client or with `bind: "ttl"` anywhere. By default each call has its own.
   * A call with one that is aborted leaves what it got: ask again with it.
   */
  requestId?: string | undefined;
  /** Ends the wait: the call then throws the signal's reason. */
  signal?: AbortSignal | undefined;
  /** Called when the lock is lost, as `lock.signal` is aborted. */
  onLost?: ((error: LockLostError) => void) | undefined;
  /** Called each time somebody asks to stop. */
  onStop?: ((stopping: Stopping) => void) | undefined;
}

/** How several locks are acquired. */
export type AcquireManyOptions = Omit<AcquireOptions, "reentrant">;

/** How a lock is tried. `waitMs` is 0 by default. */
export interface TryAcquireOptions extends AcquireOptions {
  /** `skip`: when the holder releases with `outcome: "success"` while this call waits, hear of it instead of getting the lock. */
  onSuccess?: "acquire" | "skip" | undefined;
}

/** Somebody else has the lock. */
export interface NotGranted {
  granted: false;
  /** Whether the call waited. */
  reason: "held" | "wait_timeout";
  key: string;
  /** Who has it; null when it has just become free. */
  holder: Holder | null;
  /** What `client.acquire` would have thrown: a `LockHeldError` or a `WaitTimeoutError`. */
  error: NotGrantedError;
}

/** The holder did what was to be done while this call waited. */
export interface Skipped {
  granted: false;
  reason: "skipped";
  key: string;
  holder: null;
  /** What it released with; null for nothing. */
  result: Json;
}

/** What `client.tryAcquire` returns. */
export type TryAcquireResult = { granted: true; lock: Lock } | NotGranted;

/** How `client.once` waits, and holds the lock. */
export type OnceOptions = Omit<AcquireOptions, "bind" | "requestId" | "reentrant">;

/** Which locks are listed. */
export interface ListOptions {
  /** `pod` (the default): those that this sidecar granted; `session`: this client's; `all`: of the whole namespace. */
  scope?: "session" | "pod" | "all" | undefined;
  /** Only keys that begin with it. */
  prefix?: string | undefined;
  /** Only keys whose part before the first `:` is this. */
  type?: string | undefined;
  /** The most locks of one page: 1 to 1000, by default 100. */
  limit?: number | undefined;
}

/** How a key is watched. */
export interface EventsOptions {
  /** Ends the iteration, which then throws the signal's reason. */
  signal?: AbortSignal | undefined;
}
