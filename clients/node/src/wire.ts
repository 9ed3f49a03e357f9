// Translates between the API's snake_case and this package's camelCase. Members that a newer sidecar adds are ignored.
import { checkKey } from "./checks";
import {
  BadAnswerError,
  DrainingError,
  ForbiddenError,
  InvalidRequestError,
  LimitMismatchError,
  LimitReachedError,
  LockHeldError,
  LockLostError,
  LocksidecarError,
  NotHeldError,
  NotHolderError,
  SessionEndedError,
  StoreUnavailableError,
  TooLargeError,
  UnsupportedError,
  WaitTimeoutError,
} from "./errors";
import type {
  Bind,
  Description,
  Holder,
  Json,
  KeyEvent,
  LockInfo,
  Mode,
  SharedHolder,
  Stopping,
  Waiter,
} from "./types";

export type Wire = { [member: string]: unknown };

export interface WireGrant {
  granted: true;
  key: string;
  token: number;
  session: string | null;
  bind: Bind;
  reentry: number;
  expires_in_ms: number;
  waited_ms: number;
  acquired_at: string;
  mode: Mode;
  limit: number | null;
  slot: number | null;
}

export interface WireSkipped {
  granted: false;
  key: string;
  result: Json;
}

export function holderOf(w: Wire | null | undefined): Holder | null {
  if (!w) {
    return null;
  }
  return {
    instance: w["instance"] as string,
    pod: w["pod"] as string,
    session: (w["session"] ?? null) as string | null,
    owner: (w["owner"] ?? null) as string | null,
    acquiredAt: new Date(w["acquired_at"] as string),
    heldMs: w["held_ms"] as number,
    expiresInMs: w["expires_in_ms"] as number,
    data: (w["data"] ?? null) as Json,
    traceparent: (w["traceparent"] ?? null) as string | null,
  };
}

function sharedHolderOf(w: Wire): SharedHolder {
  return {
    ...(holderOf(w) as Holder),
    token: w["token"] as number,
    slot: (w["slot"] ?? null) as number | null,
    stopping: stoppingOf(w["stopping"] as Wire | null),
  };
}

export function stoppingOf(w: Wire | null | undefined): Stopping | null {
  if (!w) {
    return null;
  }
  return { reason: (w["reason"] ?? null) as string | null, requestedAt: new Date(w["requested_at"] as string) };
}

export function lockInfoOf(w: Wire): LockInfo {
  return {
    key: w["key"] as string,
    type: w["type"] as string,
    state: w["state"] as LockInfo["state"],
    mine: w["mine"] as boolean,
    token: (w["token"] ?? null) as number | null,
    mode: (w["mode"] ?? null) as Mode | null,
    limit: (w["limit"] ?? null) as number | null,
    holder: holderOf(w["holder"] as Wire | null),
    kept: w["kept"] === true,
    holders: ((w["holders"] ?? []) as Wire[]).map(sharedHolderOf),
    holdersCount: (w["holders_count"] ?? 0) as number,
    queueLength: w["queue_length"] as number,
    stopping: stoppingOf(w["stopping"] as Wire | null),
  };
}

export function waiterOf(w: Wire): Waiter {
  return {
    key: w["key"] as string,
    position: w["position"] as number,
    pod: w["pod"] as string,
    session: (w["session"] ?? null) as string | null,
    owner: (w["owner"] ?? null) as string | null,
    mode: w["mode"] as Mode,
    limit: (w["limit"] ?? null) as number | null,
    waitingMs: w["waiting_ms"] as number,
    traceparent: (w["traceparent"] ?? null) as string | null,
  };
}

/** keyEventOf returns null for an unknown event. */
export function keyEventOf(name: string, w: Wire): KeyEvent | null {
  const key = w["key"] as string;
  const token = w["token"] as number;
  const [mode, limit, slot] = [w["mode"], w["limit"], w["slot"]].map((it) => it ?? null) as [never, never, never];
  switch (name) {
    case "state":
      return { type: "state", key, lock: lockInfoOf(w) };
    case "acquired":
      return { type: "acquired", key, token, mode, limit, slot, holder: holderOf(w["holder"] as Wire | null) };
    case "released":
      return {
        type: "released",
        key,
        token,
        outcome: (w["outcome"] ?? null) as never,
        result: (w["result"] ?? null) as Json,
      };
    case "expired":
      return { type: "expired", key, token };
    case "stopping": {
      const { reason, requestedAt } = stoppingOf(w) as Stopping;
      return { type: "stopping", key, token, reason, requestedAt };
    }
    default:
      return null;
  }
}

export interface Subject {
  key?: string;
  token?: number;
}

export function errorOf(
  w: Wire,
  status: number,
  retryAfterMs: number | undefined,
  about: Subject = {},
): LocksidecarError {
  const code = w["code"];
  const message = w["detail"];
  if (typeof code !== "string" || typeof message !== "string") {
    return new BadAnswerError(`the sidecar answered ${status} without a problem document: ${JSON.stringify(w)}`, {
      status,
    });
  }
  const details = { status, retryAfterMs };
  const reentry = w["reentry"] as number | undefined;
  const key = (w["key"] ?? about.key ?? "") as string;
  const holder = holderOf(w["holder"] as Wire | null);
  const limit = (w["limit"] ?? null) as number | null;
  const held = {
    status,
    mode: (w["mode"] ?? null) as Mode | null,
    limit,
    holdersCount: (w["holders_count"] ?? 0) as number,
    kept: w["kept"] === true,
  };
  switch (code) {
    case "invalid_request":
      return new InvalidRequestError(message, { status, reentry });
    case "forbidden":
    case "unauthorized":
      return new ForbiddenError(message, { status, code });
    case "not_held":
      return new NotHeldError(message, details);
    case "limit_mismatch":
      return new LimitMismatchError(key, limit, message, details);
    case "not_holder":
      return new NotHolderError(message, w["reason"] as string, { status, reentry });
    case "lock_lost":
      return new LockLostError(key, about.token ?? 0, w["reason"] as string, message, details);
    case "session_ended":
      return new SessionEndedError(message, details);
    case "too_large":
      return new TooLargeError(message, details);
    case "held":
      return new LockHeldError(key, holder, message, {
        ...held,
        queueLength: w["queue_length"] as number,
        cached: w["cached"] === true,
      });
    case "wait_timeout":
      return new WaitTimeoutError(key, holder, message, {
        ...held,
        queuePosition: w["queue_position"] as number,
        waitedMs: w["waited_ms"] as number,
      });
    case "limit":
      return new LimitReachedError(code, message, details);
    case "store_unavailable":
      return new StoreUnavailableError(code, message, details);
    case "draining":
      return new DrainingError(code, message, details);
    default: // not_found, method_not_allowed, internal, and codes of a newer sidecar
      return new LocksidecarError(code, message, details);
  }
}

/** The feature of `GET /v1` that each field needs. Other fields need none. */
const featureOf: { [field: string]: string } = {
  wait_ms: "wait",
  bind: "bind_ttl",
  data: "data",
  request_id: "release_by_id",
  reentrant: "reentrant",
  reentry: "reentrant",
  outcome: "outcome",
  result: "outcome",
  on_success: "outcome",
  max_hold_ms: "hold",
  min_hold_ms: "hold",
  keys: "several_keys",
  mode: "shared",
  limit: "shared",
};

/** requireFields throws an UnsupportedError if the sidecar does not know a field, which it might refuse or ignore. */
export function requireFields(description: Description, fields: Wire): void {
  for (const [field, value] of Object.entries(fields)) {
    const feature = featureOf[field];
    if (value !== undefined && feature !== undefined) {
      requireFeature(description, feature, `the field ${field}`);
    }
  }
}

/** requireFeature throws an UnsupportedError if the sidecar lacks the feature that `what` needs. */
export function requireFeature(description: Description, feature: string, what: string): void {
  if (!description.features.includes(feature)) {
    throw new UnsupportedError(
      `${what} needs the feature ${feature}, which this sidecar (version ${description.version}) does not have; ` +
        `it has ${description.features.join(", ")}. Update the sidecar`,
    );
  }
}

/** lockPath is the path of a key. Throws an InvalidRequestError if the key is not UTF-8. */
export function lockPath(key: string, tail = ""): string {
  checkKey(key);
  try {
    return `/v1/locks/${encodeURIComponent(key)}${tail}`;
  } catch (cause) {
    throw new InvalidRequestError(`key: ${JSON.stringify(key)} has half of a surrogate pair, so it is not UTF-8`, {
      cause,
    });
  }
}

export function query(params: { [name: string]: string | number | boolean | undefined }): string {
  const pairs = Object.entries(params)
    .filter(([, value]) => value !== undefined)
    .map(([name, value]) => `${name}=${encodeURIComponent(String(value))}`);
  return pairs.length === 0 ? "" : `?${pairs.join("&")}`;
}
