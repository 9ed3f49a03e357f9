import type { Holder } from "./types";

/** Why a lock was lost. The last two are the client's own: the session's connection ended; `client.close()`. */
export type LostReason =
  | "expired"
  | "forced"
  | "max_hold"
  | "store_lost"
  | "shutdown"
  | "disconnected"
  | "closed"
  | (string & {});

/** Options of every error: where it comes from. */
export interface ErrorDetails {
  /** The HTTP status, if a sidecar answered. */
  status?: number | undefined;
  cause?: unknown;
}

/**
 * Every error of this package. Decide by `code`, which is stable and the same as in the HTTP API where the sidecar gave
 * it; or by `instanceof`.
 */
export class LocksidecarError extends Error {
  override name = "LocksidecarError";
  /** Stable. */
  readonly code: string;
  /** The HTTP status of the sidecar's answer; undefined if none came. */
  readonly status: number | undefined;

  constructor(code: string, message: string, details: ErrorDetails = {}) {
    super(message, details.cause === undefined ? undefined : { cause: details.cause });
    this.code = code;
    this.status = details.status;
  }
}

/** `invalid_request`: an option is not what it must be; the message names it. */
export class InvalidRequestError extends LocksidecarError {
  override name = "InvalidRequestError";
  /** How many times the lock is entered, when a release named a lower number. */
  readonly reentry: number | undefined;
  constructor(message: string, details: ErrorDetails & { reentry?: number | undefined } = {}) {
    super("invalid_request", message, details);
    this.reentry = details.reentry;
  }
}

/** `unsupported`: the sidecar is older than this client and does not know what was asked for; nothing was sent. */
export class UnsupportedError extends LocksidecarError {
  override name = "UnsupportedError";
  constructor(message: string) {
    super("unsupported", message);
  }
}

/** `not_supported`: something of the Web Locks API that a distributed lock cannot do. Named as browsers name it. */
export class NotSupportedError extends LocksidecarError {
  override name = "NotSupportedError";
  constructor(message: string) {
    super("not_supported", message);
  }
}

/** `forbidden`: breaking locks is not allowed here, or this user may not use the socket. */
export class ForbiddenError extends LocksidecarError {
  override name = "ForbiddenError";
  constructor(message: string, details: ErrorDetails = {}) {
    super("forbidden", message, details);
  }
}

/** `not_held`: nobody holds the lock. */
export class NotHeldError extends LocksidecarError {
  override name = "NotHeldError";
  constructor(message: string, details: ErrorDetails = {}) {
    super("not_held", message, details);
  }
}

/** `not_holder`: this token does not hold the key here and now. Nothing has changed. */
export class NotHolderError extends LocksidecarError {
  override name = "NotHolderError";
  /** `other_session`, `released` or `unknown_token`. */
  readonly reason: string;
  /** How many times the lock is entered, when a release named a higher number. */
  readonly reentry: number | undefined;
  constructor(message: string, reason: string, details: ErrorDetails & { reentry?: number | undefined } = {}) {
    super("not_holder", message, details);
    this.reason = reason;
    this.reentry = details.reentry;
  }
}

/** `lock_lost`: it was held under this token, and is no longer. Stop what is done under it. */
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

/** `too_large`: the data or the result has more than 4 KiB, or the whole call more than the sidecar takes. */
export class TooLargeError extends LocksidecarError {
  override name = "TooLargeError";
  constructor(message: string, details: ErrorDetails = {}) {
    super("too_large", message, details);
  }
}

/** Somebody else has the lock: `held` or `wait_timeout`. */
export class NotGrantedError extends LocksidecarError {
  override name = "NotGrantedError";
  readonly key: string;
  /** Who has it; null when it has just become free. */
  readonly holder: Holder | null;
  constructor(code: string, key: string, holder: Holder | null, message: string, details: ErrorDetails = {}) {
    super(code, message, details);
    this.key = key;
    this.holder = holder;
  }
}

/** `held`: somebody has the lock, and the call did not want to wait. */
export class LockHeldError extends NotGrantedError {
  override name = "LockHeldError";
  readonly queueLength: number;
  /** The sidecar's cache answered. */
  readonly cached: boolean;
  constructor(
    key: string,
    holder: Holder | null,
    message: string,
    details: ErrorDetails & { queueLength: number; cached?: boolean },
  ) {
    super("held", key, holder, message, details);
    this.queueLength = details.queueLength;
    this.cached = details.cached ?? false;
  }
}

/** `wait_timeout`: the wait was as long as `waitMs` allowed. */
export class WaitTimeoutError extends NotGrantedError {
  override name = "WaitTimeoutError";
  /** How far it came in the line; 1 is the next. */
  readonly queuePosition: number;
  readonly waitedMs: number;
  constructor(
    key: string,
    holder: Holder | null,
    message: string,
    details: ErrorDetails & { queuePosition: number; waitedMs: number },
  ) {
    super("wait_timeout", key, holder, message, details);
    this.queuePosition = details.queuePosition;
    this.waitedMs = details.waitedMs;
  }
}

/** `limit`, `store_unavailable`, `draining`: not now. */
export class UnavailableError extends LocksidecarError {
  override name = "UnavailableError";
  /** After so many ms a further try makes sense, if the sidecar said it. */
  readonly retryAfterMs: number | undefined;
  constructor(code: string, message: string, details: ErrorDetails & { retryAfterMs?: number | undefined } = {}) {
    super(code, message, details);
    this.retryAfterMs = details.retryAfterMs;
  }
}

/** `limit`: too many sessions, locks of a session, or waiters. */
export class LimitError extends UnavailableError {
  override name = "LimitError";
}

/** `store_unavailable`: the sidecar cannot reach its database. Nothing was granted. */
export class StoreUnavailableError extends UnavailableError {
  override name = "StoreUnavailableError";
}

/** `draining`: the sidecar shuts down. Releases still work. */
export class DrainingError extends UnavailableError {
  override name = "DrainingError";
}

/** No answer came: `unreachable`, `connection_lost` or `timeout`. */
export class ConnectionError extends LocksidecarError {
  override name = "ConnectionError";
  /** The sidecar's socket. */
  readonly socketPath: string;
  constructor(code: string, socketPath: string, message: string, details: ErrorDetails = {}) {
    super(code, message, details);
    this.socketPath = socketPath;
  }
}

/** `unreachable`: nobody listens at the socket. The message says what to check. */
export class UnreachableError extends ConnectionError {
  override name = "UnreachableError";
}

/** `connection_lost`: the connection broke before the answer came. Whether the call was carried out is not known. */
export class ConnectionLostError extends ConnectionError {
  override name = "ConnectionLostError";
}

/** `timeout`: the sidecar did not answer within the client's `timeoutMs`. */
export class TimeoutError extends ConnectionError {
  override name = "TimeoutError";
}

/** `bad_answer`: what listens at the socket does not speak the API. */
export class BadAnswerError extends LocksidecarError {
  override name = "BadAnswerError";
  constructor(message: string, details: ErrorDetails = {}) {
    super("bad_answer", message, details);
  }
}

/** `session_ended`, because `client.close()` was called. */
export class ClientClosedError extends SessionEndedError {
  override name = "ClientClosedError";
  constructor() {
    super("this client is closed; create another one");
  }
}

/** `stop_requested`: the reason of `lock.stopSignal`. Nothing is lost yet: come to an end and release. */
export class StopRequestedError extends LocksidecarError {
  override name = "StopRequestedError";
  readonly key: string;
  /** Why, for people. */
  readonly reason: string | null;
  constructor(key: string, reason: string | null) {
    super("stop_requested", `the holder of ${JSON.stringify(key)} was asked to stop${reason ? `: ${reason}` : ""}`);
    this.key = key;
    this.reason = reason;
  }
}
