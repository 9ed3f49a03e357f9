// The client's results and errors in the words of the contract.
import {
  type CheckResult,
  type Holder,
  type KeyEvent,
  type Lock,
  LockHeldError,
  type LockInfo,
  LockLostError,
  LocksidecarError,
  NotGrantedError,
  NotHolderError,
  WaitTimeoutError,
} from "locksidecar";
import type { Members } from "./match";

/** The client's spelling of the API's fields. */
const fields = ["waitMs", "ttlMs", "maxHoldMs", "minHoldMs", "onSuccess", "requestId"];

export function granted(lock: Lock): Members {
  const { key, token, session, bind, reentry, mode, limit, slot } = lock;
  return {
    granted: true,
    key,
    token,
    session,
    bind,
    reentry,
    expires_in_ms: lock.expiresInMs,
    waited_ms: lock.waitedMs,
    mode,
    limit,
    slot,
  };
}

export function checked(result: CheckResult): Members {
  const { expiresInMs, ...more } = result;
  return { held: true, expires_in_ms: expiresInMs, ...more };
}

export function holder(of: Holder | null | undefined): Members | null {
  if (!of) {
    return null;
  }
  const { instance, pod, session, owner, data, traceparent } = of;
  return { instance, pod, session, owner, data, traceparent, held_ms: of.heldMs, expires_in_ms: of.expiresInMs };
}

export function shown(lock: LockInfo): Members {
  const { queueLength, holdersCount, ...more } = lock;
  const holders = lock.holders.map((one) => ({
    ...holder(one),
    token: one.token,
    slot: one.slot,
    stopping: one.stopping,
  }));
  const counts = { queue_length: queueLength, holders_count: holdersCount };
  return { ...more, ...counts, holder: holder(lock.holder), holders };
}

export function happened(event: KeyEvent): Members {
  switch (event.type) {
    case "state":
      return { event: "state", ...shown(event.lock) };
    case "acquired":
      return { ...event, event: "acquired", holder: holder(event.holder) };
    default: {
      const { type, ...members } = event;
      return { event: type, ...members };
    }
  }
}

/** refused is the result of a call that threw. Other errors are thrown again. */
export function refused(error: unknown): Members {
  if (!(error instanceof LocksidecarError)) {
    throw error;
  }
  const { code, reason, key, reentry, mode, limit, holdersCount, kept } = error as unknown as Members;
  let detail = error.message;
  for (const field of fields) {
    detail = detail.replaceAll(
      field,
      field.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`),
    );
  }
  const result: Members = { error: code, detail, key, reentry, mode, limit, holders_count: holdersCount, kept };
  if (error instanceof NotHolderError || error instanceof LockLostError) {
    result["reason"] = reason;
  }
  if (error instanceof NotGrantedError) {
    result["holder"] = holder(error.holder);
  }
  if (error instanceof LockHeldError) {
    result["queue_length"] = error.queueLength;
  }
  if (error instanceof WaitTimeoutError) {
    result["queue_position"] = error.queuePosition;
    result["waited_ms"] = error.waitedMs;
  }
  return result;
}
