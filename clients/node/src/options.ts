import { abortSignal, type Checks, callback, count, flag, json, ms, text, wait } from "./checks";
import type { LockLostError, NotGrantedError } from "./errors";
import type { Lock } from "./lock";
import type { Bind, Holder, Json, Mode, Stopping } from "./types";

/** The options of a client. All durations are in ms. */
export interface ClientOptions {
  /** The sidecar's Unix socket; by default `LOCKSIDECAR_SOCKET`, else that of a pod or of this user, as `locksidecar serve` has it. */
  socketPath?: string | undefined;
  /**
   * Names the sidecar instead: `https://HOST:PORT`, `http://HOST:PORT` or `unix:///PATH`; by default `LOCKSIDECAR_URL`, which wins over
   * `LOCKSIDECAR_SOCKET`.
   */
  url?: string | undefined;
  /** The file with the token for a sidecar over TCP, read again when it changes; by default `LOCKSIDECAR_TOKEN_FILE`. */
  tokenFile?: string | undefined;
  /** The file with the CA of the sidecar's certificate, in PEM; by default `LOCKSIDECAR_CA_FILE`, else Node's own list. */
  caFile?: string | undefined;
  /** The public name of the session, 1 to 255 bytes; by default a short random id. */
  name?: string | undefined;
  /** The default `ttlMs` of its locks. 500 to 86,400,000. */
  ttlMs?: number | undefined;
  /** The most time for an answer, in addition to a wait. 10,000 by default. */
  timeoutMs?: number | undefined;
  /** How long waiting calls and event streams go on in an outage of the sidecar. 30,000 by default. */
  reconnectMs?: number | undefined;
}

/** The options of an acquire. All durations are in ms. */
export interface AcquireOptions {
  /** How long to wait in the queue: 0 tries once; -1, Infinity and the default wait for ever. At most 86,400,000. */
  waitMs?: number | undefined;
  /** `shared`: the shared holders do not exclude each other. Calls get the lock in their order, so no mode starves. */
  mode?: Mode | undefined;
  /** With `shared`, at most so many holders at a time: 1 to 1000. All of a key name the same. See `client.semaphore`. */
  limit?: number | undefined;
  /** How long the lock outlives a dead sidecar. With `bind: "ttl"`, how long it lasts. 500 to 86,400,000. */
  ttlMs?: number | undefined;
  /**
   * `session` (the default): the lock ends with this client. `ttl`: it outlives the process and ends after its `ttlMs`. Any caller
   * with key and token can release it, and tokens can be guessed.
   */
  bind?: Bind | undefined;
  /** The owner in this client, for `reentrant`; shown to others. 1 to 255 bytes. By default the task of `client.asTask`. */
  owner?: string | undefined;
  /** The owner may enter its lock again. All others wait, also in this client. */
  reentrant?: boolean | undefined;
  /** After this time the sidecar releases the lock. At most 86,400,000. */
  maxHoldMs?: number | undefined;
  /** Until this time after the grant nobody else gets the lock, even if it is released. At most 86,400,000. */
  minHoldMs?: number | undefined;
  /** At most 4 KiB, shown to others as part of `holder`. */
  data?: Json | undefined;
  /**
   * A UUID. The same one gets the same grant: in this client, with `bind: "ttl"` anywhere. By default each call has its own. If a
   * call that names one is aborted, its grant stays: ask again with the same UUID.
   */
  requestId?: string | undefined;
  /** Ends the wait. The call throws the signal's reason. */
  signal?: AbortSignal | undefined;
  /** Called when the lock is lost. */
  onLost?: ((error: LockLostError) => void) | undefined;
  /** Called for each request to stop. */
  onStop?: ((stopping: Stopping) => void) | undefined;
}

/** The options of `client.acquireMany`. */
export type AcquireManyOptions = Omit<AcquireOptions, "reentrant" | "limit">;

/** The options of an acquire of `client.semaphore`. */
export type SemaphoreOptions = Omit<AcquireOptions, "reentrant" | "mode" | "limit">;

/** The options of `client.lead`. */
export type LeadOptions = Pick<AcquireOptions, "data" | "ttlMs" | "maxHoldMs" | "minHoldMs" | "signal">;

/** The options of `client.tryAcquire`. `waitMs` is 0 by default. */
export interface TryAcquireOptions extends AcquireOptions {
  /** `skip`: if the holder releases with `outcome: "success"` while this call waits, return its result and no lock. */
  onSuccess?: "acquire" | "skip" | undefined;
}

/** Another caller holds the lock. */
export interface NotGranted {
  granted: false;
  /** Whether the call waited. */
  reason: "held" | "wait_timeout";
  key: string;
  /** Null if the lock has just become free. */
  holder: Holder | null;
  /** The error that `client.acquire` would throw. */
  error: NotGrantedError;
}

/** The holder did the work while this call waited. */
export interface Skipped {
  granted: false;
  reason: "skipped";
  key: string;
  holder: null;
  /** The result of its release, or null. */
  result: Json;
}

/** The result of `client.tryAcquire`. */
export type TryAcquireResult = { granted: true; lock: Lock } | NotGranted;

/** The options of `client.once`. */
export type OnceOptions = Omit<AcquireOptions, "bind" | "requestId" | "reentrant" | "mode" | "limit">;

/** The options of a list. */
export interface ListOptions {
  /** `all` (the default): the locks of the whole namespace; `pod`: those that this sidecar granted; `session`: those of this client. */
  scope?: "all" | "pod" | "session" | undefined;
  /** Only keys with this prefix. */
  prefix?: string | undefined;
  /** Only keys of this type, the part before the first `:`. */
  type?: string | undefined;
  /** The most locks of a page: 1 to 1000, by default 100. */
  limit?: number | undefined;
}

/** The options of `client.waiters`. */
export interface WaitersOptions {
  /** Only calls for this key. */
  key?: string | undefined;
  /** Only calls for keys with this prefix. Not with `key`. */
  prefix?: string | undefined;
  /** The most calls of a page: 1 to 1000, by default 100. */
  limit?: number | undefined;
}

/** The options of `client.events`. */
export interface EventsOptions {
  /** Ends the iteration, which throws the signal's reason. */
  signal?: AbortSignal | undefined;
}

// The checks of the options above.

export const clientChecks: Checks<ClientOptions> = {
  socketPath: text,
  url: text,
  tokenFile: text,
  caFile: text,
  name: text,
  ttlMs: ms,
  timeoutMs: ms,
  reconnectMs: ms,
};

export const leadChecks: Checks<LeadOptions> = {
  data: json,
  ttlMs: ms,
  maxHoldMs: ms,
  minHoldMs: ms,
  signal: abortSignal,
};

export const acquireChecks: Checks<TryAcquireOptions> = {
  waitMs: wait,
  mode: text,
  limit: count,
  bind: text,
  owner: text,
  reentrant: flag,
  requestId: text,
  onLost: callback,
  onStop: callback,
  onSuccess: text,
  ...leadChecks,
};

export const getChecks: Checks<{ fresh?: boolean }> = { fresh: flag };
export const stopChecks: Checks<{ reason?: string; token?: number }> = { reason: text, token: count };
export const forceChecks: Checks<{ token?: number; signal?: AbortSignal }> = { token: count, signal: abortSignal };
export const eventsChecks: Checks<EventsOptions> = { signal: abortSignal };
export const waitersChecks: Checks<WaitersOptions> = { key: text, prefix: text, limit: count };
export const pageChecks: Checks<ListOptions & { cursor?: string | undefined }> = {
  scope: text,
  prefix: text,
  type: text,
  limit: count,
  cursor: text,
};
