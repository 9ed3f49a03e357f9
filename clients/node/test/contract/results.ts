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
  const { key, token, session, bind, reentry } = lock;
  return {
    granted: true,
    key,
    token,
    session,
    bind,
    reentry,
    expires_in_ms: lock.expiresInMs,
    waited_ms: lock.waitedMs,
  };
}

export function checked(result: CheckResult): Members {
  const { key, token, reentry, stopping } = result;
  return { held: true, key, token, reentry, expires_in_ms: result.expiresInMs, stopping };
}

export function holder(of: Holder | null | undefined): Members | null {
  if (!of) {
    return null;
  }
  const { instance, pod, session, owner, data, traceparent } = of;
  return { instance, pod, session, owner, data, traceparent, held_ms: of.heldMs, expires_in_ms: of.expiresInMs };
}

export function shown(lock: LockInfo): Members {
  const { key, type, state, mine, token, stopping } = lock;
  return { key, type, state, mine, token, holder: holder(lock.holder), queue_length: lock.queueLength, stopping };
}

export function happened(event: KeyEvent): Members {
  switch (event.type) {
    case "state":
      return { event: "state", ...shown(event.lock) };
    case "acquired":
      return { event: "acquired", key: event.key, holder: holder(event.holder) };
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
  const { code, reason, key, reentry } = error as unknown as Members;
  let detail = error.message;
  for (const field of fields) {
    detail = detail.replaceAll(
      field,
      field.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`),
    );
  }
  const result: Members = { error: code, detail, key, reentry };
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
