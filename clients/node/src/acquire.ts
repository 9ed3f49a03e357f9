import { ClientClosedError } from "./errors";
import type { AcquireOptions } from "./options";
import { abortable, isAway, Patience } from "./retry";
import type { Asked, Granted, Session } from "./session";
import type { Sessions } from "./sessions";
import { tracedAcquire } from "./tracing";
import type { Description } from "./types";
import type { Wire, WireSkipped } from "./wire";

/** The options of an acquire that are not sent as they are. */
type How = Pick<AcquireOptions, "signal" | "requestId" | "bind">;

interface Got<G> {
  session: Session;
  got: G;
}

/** For a withdrawal, which needs no feature. */
const nothing: Description = { version: "", api: "v1", features: [] };

export function acquire(sessions: Sessions, key: string, fields: Wire, how: How): Promise<Got<Granted | WireSkipped>> {
  return withdrawing(sessions, [key], fields, how, (what) =>
    tracedAcquire(
      what.keys,
      fields["mode"],
      how.signal,
      (context) =>
        waiting(sessions, fields, how.signal, (session, now) => session.acquire(what, now, how.signal, context)),
      ({ got }) => ("grant" in got ? [got.wire] : []),
    ),
  );
}

export function acquireMany(
  sessions: Sessions,
  keys: readonly string[],
  fields: Wire,
  how: How,
): Promise<Got<Granted[]>> {
  return withdrawing(sessions, keys, fields, how, (what) =>
    tracedAcquire(
      keys,
      fields["mode"],
      how.signal,
      (context) =>
        waiting(sessions, fields, how.signal, (session, now) => session.acquireMany(what, now, how.signal, context)),
      ({ got }) => got.map(({ wire }) => wire),
    ),
  );
}

/**
 * withdrawing acquires, and releases by the request id if the caller has left or an answer was lost. If the app has named the
 * request, other parts of it may hold the grant. Then the grant stays, and the id finds it.
 */
async function withdrawing<G>(
  sessions: Sessions,
  keys: readonly string[],
  fields: Wire,
  { requestId, bind }: How,
  run: (what: Asked) => Promise<G>,
): Promise<G> {
  const what: Asked = { keys, requestId: fields["request_id"] as string, unanswered: false };
  try {
    return await run(what);
  } catch (error) {
    if (what.unanswered && requestId === undefined && !sessions.closed) {
      const session = sessions.opened; // without one, the grant has ended with its session
      if (session !== undefined || bind === "ttl") {
        await (session ?? sessions.none(nothing)).withdraw(what);
      }
    }
    throw error;
  }
}

/** waiting acquires. A call that waits goes on after an outage of the sidecar, for the rest of its time. */
async function waiting<G>(
  sessions: Sessions,
  fields: Wire,
  signal: AbortSignal | undefined,
  run: (session: Session, fields: Wire) => Promise<G>,
): Promise<Got<G>> {
  const waitMs = fields["wait_ms"] as number;
  if (waitMs === 0) {
    return sessions.join(async (session) => ({ session, got: await run(session, fields) }), signal);
  }
  const limitMs = waitMs < 0 ? Number.POSITIVE_INFINITY : waitMs;
  const until = performance.now() + limitMs;
  const patience = new Patience(Math.min(sessions.options.reconnectMs, limitMs));
  let left = waitMs;
  let last: Session | undefined;
  for (;;) {
    try {
      const session = await abortable(sessions.open(), signal);
      if (session !== last) {
        patience.renew();
        last = session;
      }
      return { session, got: await run(session, { ...fields, wait_ms: left }) };
    } catch (error) {
      // A client that has never had a session does not wait for a sidecar.
      if (sessions.closed || !sessions.connected || !isAway(error)) {
        throw sessions.closed && isAway(error) ? new ClientClosedError() : error;
      }
      await patience.pause(error, signal);
      left = waitMs < 0 ? waitMs : Math.max(1, Math.ceil(until - performance.now()));
    }
  }
}
