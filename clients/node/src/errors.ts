import type { Holder, Mode } from "./types";

/** The reason of a loss. The last two are the client's own: the connection of the session ended; `client.close()`. */
export type LostReason =
  | "expired"
  | "forced"
  | "max_hold"
  | "store_lost"
  | "shutdown"
  | "disconnected"
  | "closed"
  | (string & {});

/** The source of an error. */
export interface ErrorDetails {
  /** The HTTP status, if a sidecar answered. */
  status?: number | undefined;
  /** The time until another try is useful, if the sidecar says it. */
  retryAfterMs?: number | undefined;
  cause?: unknown;
}

/** The root of all errors of this package. Decide by `code`, which is stable and the API's own, or by `instanceof`. */
export class LocksidecarError extends Error {
  override name = "LocksidecarError";
  /** Stable. */
  readonly code: string;
  /** The HTTP status; undefined without an answer. */
  readonly status: number | undefined;
  /** The time until another try is useful, if the sidecar says it. */
  readonly retryAfterMs: number | undefined;

  constructor(code: string, message: string, details: ErrorDetails = {}) {
    super(message, details.cause === undefined ? undefined : { cause: details.cause });
    this.code = code;
    this.status = details.status;
    this.retryAfterMs = details.retryAfterMs;
  }
}

/** `invalid_request`: an option is invalid. The message names it. */
export class InvalidRequestError extends LocksidecarError {
  override name = "InvalidRequestError";
  /** The number of entries, if a release named a lower one. */
  readonly reentry: number | undefined;
  constructor(message: string, details: ErrorDetails & { reentry?: number | undefined } = {}) {
    super("invalid_request", message, details);
    this.reentry = details.reentry;
  }
}

/** `unsupported`: the sidecar is older than this client and lacks a feature. Nothing was sent. */
export class UnsupportedError extends LocksidecarError {
  override name = "UnsupportedError";
  constructor(message: string) {
    super("unsupported", message);
  }
}

/** `not_supported`: a part of the Web Locks API that a distributed lock cannot do. The name is that of browsers. */
export class NotSupportedError extends LocksidecarError {
  override name = "NotSupportedError";
  constructor(message: string) {
    super("not_supported", message);
  }
}

/** `forbidden`: the sidecar does not allow this (force, or this user). `unauthorized`: over TCP, the token is missing or wrong. */
export class ForbiddenError extends LocksidecarError {
  override name = "ForbiddenError";
  constructor(message: string, details: ErrorDetails & { code?: "forbidden" | "unauthorized" } = {}) {
    super(details.code ?? "forbidden", message, details);
  }
}

/** `not_held`: nobody holds the lock. */
export class NotHeldError extends LocksidecarError {
  override name = "NotHeldError";
  constructor(message: string, details: ErrorDetails = {}) {
    super("not_held", message, details);
  }
}

/** `limit_mismatch`: the shared holders and waiters of the key name another `limit`. Nothing was granted. */
export class LimitMismatchError extends LocksidecarError {
  override name = "LimitMismatchError";
  readonly key: string;
  /** Their limit; null if they name none. */
  readonly limit: number | null;
  constructor(key: string, limit: number | null, message: string, details: ErrorDetails = {}) {
    super("limit_mismatch", message, details);
    this.key = key;
    this.limit = limit;
  }
}

/** `not_holder`: this token does not hold the key. Nothing has changed. */
export class NotHolderError extends LocksidecarError {
  override name = "NotHolderError";
  /** `other_session`, `released` or `unknown_token`. */
  readonly reason: string;
  /** The number of entries, if a release named a higher one. */
  readonly reentry: number | undefined;
  constructor(message: string, reason: string, details: ErrorDetails & { reentry?: number | undefined } = {}) {
    super("not_holder", message, details);
    this.reason = reason;
    this.reentry = details.reentry;
  }
}

/** `lock_lost`: the lock was held under this token, and is lost. Stop the work under it. */
export class LockLostError extends LocksidecarError {
  override name = "LockLostError";
  readonly reason: LostReason;
  readonly key: string;
  readonly token: number;
  constructor(key: string, token: number, reason: LostReason, message?: string, details: ErrorDetails = {}) {
    super("lock_lost", message ?? `lock ${JSON.stringify(key)} (token ${token}) was lost: ${reason}`, details);
    this.key = key;
    this.token = token;
    this.reason = reason;
  }
}

/** `session_ended`: the session of this call is over. */
export class SessionEndedError extends LocksidecarError {
  override name = "SessionEndedError";
  constructor(message: string, details: ErrorDetails = {}) {
    super("session_ended", message, details);
  }
}

/** `too_large`: the data or the result has more than 4 KiB, or the whole call is too large. */
export class TooLargeError extends LocksidecarError {
  override name = "TooLargeError";
  constructor(message: string, details: ErrorDetails = {}) {
    super("too_large", message, details);
  }
}

/** How a lock is held by others. */
export interface HeldDetails extends ErrorDetails {
  mode?: Mode | null;
  limit?: number | null;
  holdersCount?: number;
  kept?: boolean;
}

/** Another caller holds the lock: `held` or `wait_timeout`. */
export class NotGrantedError extends LocksidecarError {
  override name = "NotGrantedError";
  readonly key: string;
  /** Null if the lock has just become free. */
  readonly holder: Holder | null;
  /** The mode of the holders; null if the lock has just become free. */
  readonly mode: Mode | null;
  /** The limit of the shared holders, if they have one. */
  readonly limit: number | null;
  readonly holdersCount: number;
  /** The sidecar of the holder may keep the lock for its next session, so perhaps nobody holds it now. */
  readonly kept: boolean;
  constructor(code: string, key: string, holder: Holder | null, message: string, details: HeldDetails = {}) {
    super(code, message, details);
    this.key = key;
    this.holder = holder;
    this.mode = details.mode ?? null;
    this.limit = details.limit ?? null;
    this.holdersCount = details.holdersCount ?? 0;
    this.kept = details.kept ?? false;
  }
}

/** `held`: the lock is held, and the call does not wait. */
export class LockHeldError extends NotGrantedError {
  override name = "LockHeldError";
  readonly queueLength: number;
  /** The answer is from the sidecar's cache. */
  readonly cached: boolean;
  constructor(
    key: string,
    holder: Holder | null,
    message: string,
    details: HeldDetails & { queueLength: number; cached?: boolean },
  ) {
    super("held", key, holder, message, details);
    this.queueLength = details.queueLength;
    this.cached = details.cached ?? false;
  }
}

/** `wait_timeout`: the call waited for `waitMs` without success. */
export class WaitTimeoutError extends NotGrantedError {
  override name = "WaitTimeoutError";
  /** The last position in the queue; 1 is the next. */
  readonly queuePosition: number;
  readonly waitedMs: number;
  constructor(
    key: string,
    holder: Holder | null,
    message: string,
    details: HeldDetails & { queuePosition: number; waitedMs: number },
  ) {
    super("wait_timeout", key, holder, message, details);
    this.queuePosition = details.queuePosition;
    this.waitedMs = details.waitedMs;
  }
}

/** `limit`: too many sessions, locks of a session, or waiters. */
export class LimitReachedError extends LocksidecarError {
  override name = "LimitReachedError";
}

/** The sidecar, or its store, cannot serve now: a `ConnectionError`, `DrainingError` or `StoreUnavailableError`. */
export class UnavailableError extends LocksidecarError {
  override name = "UnavailableError";
}

/** `store_unavailable`: the sidecar cannot reach its database. Nothing was granted, or the sidecar withdraws it. */
export class StoreUnavailableError extends UnavailableError {
  override name = "StoreUnavailableError";
}

/** `draining`: the sidecar shuts down. Releases still work. */
export class DrainingError extends UnavailableError {
  override name = "DrainingError";
}

/** No answer came: `unreachable`, `connection_lost` or `timeout`. */
export class ConnectionError extends UnavailableError {
  override name = "ConnectionError";
  /** The path of the sidecar's socket, or its URL. */
  readonly address: string;
  constructor(code: string, address: string, message: string, details: ErrorDetails = {}) {
    super(code, message, details);
    this.address = address;
  }
}

/** `unreachable`: there is no sidecar at the address, or its certificate is refused. The message says what to check. */
export class UnreachableError extends ConnectionError {
  override name = "UnreachableError";
}

/** `connection_lost`: the connection broke before the answer. The outcome of the call is unknown. */
export class ConnectionLostError extends ConnectionError {
  override name = "ConnectionLostError";
}

/** `timeout`: the sidecar did not answer within the client's `timeoutMs`. */
export class TimeoutError extends ConnectionError {
  override name = "TimeoutError";
}

/** `bad_answer`: something else listens at the address. */
export class BadAnswerError extends LocksidecarError {
  override name = "BadAnswerError";
  constructor(message: string, details: ErrorDetails = {}) {
    super("bad_answer", message, details);
  }
}

/** `session_ended`, by `client.close()`. */
export class ClientClosedError extends SessionEndedError {
  override name = "ClientClosedError";
  constructor() {
    super("this client is closed; create another one");
  }
}

/** `stop_requested`: the reason of `lock.stopSignal`. The lock is still held: finish the work and release it. */
export class StopRequestedError extends LocksidecarError {
  override name = "StopRequestedError";
  readonly key: string;
  /** For people. */
  readonly reason: string | null;
  constructor(key: string, reason: string | null) {
    super("stop_requested", `the holder of ${JSON.stringify(key)} was asked to stop${reason ? `: ${reason}` : ""}`);
    this.key = key;
    this.reason = reason;
  }
}
