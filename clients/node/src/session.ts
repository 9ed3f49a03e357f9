import { setTimeout as sleep } from "node:timers/promises";
import {
  ConnectionLostError,
  LockLostError,
  type LostReason,
  NotHolderError,
  SessionEndedError,
  UnreachableError,
} from "./errors";
import { Grant } from "./grant";
import { Lease } from "./lease";
import { hasNoAnswer, mayBeDone, Patience } from "./retry";
import type { ServerSentEvent } from "./sse";
import { type Call, type EventStream, longestTimerMs, type Transport } from "./transport";
import type { Description } from "./types";
import { lockPath, query, requireFields, type Subject, type Wire, type WireGrant, type WireSkipped } from "./wire";

/** How a session is opened, and the limits of its calls. */
export interface SessionOptions {
  name: string | undefined;
  ttlMs: number | undefined;
  timeoutMs: number;
  reconnectMs: number;
}

/** Asked identifies an acquire with all its calls. */
export interface Asked {
  keys: readonly string[];
  requestId: string;
  /** A call got no answer, so it may have got the lock. */
  unanswered: boolean;
  /** The call was given up, but the sidecar may carry it out until this resolves. */
  late?: Promise<void>;
  context?: unknown;
}

/** How long a caller that has left waits for its withdrawal, in ms. It goes on without the caller. */
const withdrawMs = 2000;

/** How long a release that had no answer is repeated if there is no session, whose end would release the lock, in ms. */
const oweMs = 60_000;

export interface Granted {
  wire: WireGrant;
  grant: Grant;
  /** The request of this entry, if the lock is reentrant. */
  entry: string | undefined;
  owner: string | undefined;
}

/**
 * Session is an explicit session. It lives as long as its event stream, a connection of its own: when that ends, the locks are
 * lost. Its calls use other connections. The stream does not keep the process alive.
 */
export class Session {
  /** Called once, at the end of the session. */
  onEnd: () => void = () => {};
  #id: string | undefined;
  #ended = false;
  #stream: EventStream | undefined;
  readonly #grants = new Map<string, Grant>();
  /** By TTL. */
  readonly #leases = new Map<number | undefined, Lease>();
  // The stream may have news of a grant before its answer is read. The news waits here for the answers that are due.
  #due = 0;
  readonly #undelivered = new Map<string, ((grant: Grant) => void)[]>();
  #warned = false;

  /** After how long a call without an end that waits for a lock of its own session is a process warning, in ms. */
  static ownKeyMs = 10_000;

  private constructor(
    readonly transport: Transport,
    readonly description: Description,
    readonly timeoutMs: number,
  ) {}

  /** open asks for the sidecar's features, and opens a session. Throws as Transport.call does. */
  static async open(transport: Transport, options: SessionOptions): Promise<Session> {
    const { timeoutMs } = options;
    const description = await describe(transport, timeoutMs);
    const session = new Session(transport, description, timeoutMs);
    await session.#open(options);
    return session;
  }

  /** none is for calls without a session: reads, and calls with a token. */
  static none(transport: Transport, description: Description, timeoutMs: number): Session {
    return new Session(transport, description, timeoutMs);
  }

  get ended(): boolean {
    return this.#ended;
  }

  #open(options: SessionOptions): Promise<void> {
    const { name, ttlMs, timeoutMs } = options;
    const call: Call = { method: "POST", path: "/v1/sessions", body: { name, ttl_ms: ttlMs }, timeoutMs };
    const began = performance.now();
    return new Promise((resolve, reject) => {
      let begun = false;
      const started = this.transport.stream(call, {
        onEvent: (event) => {
          if (event.name === "session") {
            begun = true;
            this.#id = (JSON.parse(event.data) as { session: string }).session;
            started.then((stream) => {
              this.#stream = stream;
              stream.unref();
              resolve();
            }, reject);
          } else {
            this.#receive(event);
          }
        },
        onEnd: (cause) => {
          this.end("disconnected");
          this.transport.onSessionEnd(cause);
          reject(new SessionEndedError("the session ended before it began"));
        },
      });
      started.then((stream) => {
        const limit = (): void => {
          if (!begun) {
            reject(this.transport.timeout(call));
            stream.close();
          }
        };
        if (timeoutMs <= longestTimerMs) {
          setTimeout(limit, began + timeoutMs - performance.now()).unref();
        }
      }, reject);
    });
  }

  call(
    method: "GET" | "PUT" | "POST" | "PATCH" | "DELETE",
    path: string,
    more: {
      body?: unknown;
      signal?: AbortSignal | undefined;
      timeoutMs?: number | undefined;
      about?: Subject;
      noCache?: boolean | undefined;
      context?: unknown;
      waits?: boolean;
      shares?: boolean;
      onLate?: (settled: Promise<void>) => void;
    } = {},
  ): Promise<Wire> {
    const headers: Record<string, string> = {};
    if (this.#id !== undefined) {
      headers["Lock-Session"] = this.#id;
    }
    if (more.noCache) {
      headers["Cache-Control"] = "no-cache";
    }
    return this.transport.call({ method, path, headers, timeoutMs: this.timeoutMs, ...more });
  }

  /** acquire acquires one key. After an abort, the caller withdraws the grant that may be under way. */
  async acquire(what: Asked, fields: Wire, signal?: AbortSignal, context?: unknown): Promise<Granted | WireSkipped> {
    const asked = performance.now();
    what.context = context;
    const key = what.keys[0] as string;
    const answer = await this.#acquire(what, "PUT", lockPath(key), fields, signal, { key });
    if (answer["granted"] !== true) {
      return answer as unknown as WireSkipped;
    }
    const [granted] = this.#adopt([answer as unknown as WireGrant], asked, what, fields);
    return granted as Granted;
  }

  async acquireMany(what: Asked, fields: Wire, signal?: AbortSignal, context?: unknown): Promise<Granted[]> {
    const asked = performance.now();
    what.context = context;
    const body = { keys: what.keys, ...fields };
    const answer = await this.#acquire(what, "POST", "/v1/locks", body, signal, {});
    return this.#adopt(answer["locks"] as WireGrant[], asked, what, fields);
  }

  /** withdraw releases the grant that an acquire has or may have. After withdrawMs it goes on without the caller. */
  async withdraw({ keys, requestId, late, context }: Asked): Promise<void> {
    const path = (key: string): string => lockPath(key, query({ request_id: requestId }));
    const withdrawn = Promise.all(
      keys.map(async (key) => {
        await late; // a withdrawal before the acquire would find nothing
        const release = () => this.call("DELETE", path(key), { timeoutMs: withdrawMs, context });
        await release().catch((error) => this.owe(error, release));
      }),
    );
    await (late === undefined ? withdrawn : Promise.race([withdrawn, sleep(withdrawMs, undefined, { ref: false })]));
  }

  /**
   * owe repeats a release that failed without an answer, until it has one or the session is over. The lock may be held, and its
   * caller may have given up the handle. Errors with an answer are ignored.
   */
  owe(error: unknown, release: () => Promise<unknown>): void {
    const patience = new Patience(this.#id === undefined ? oweMs : Number.POSITIVE_INFINITY, false);
    const repeat = async (cause: unknown): Promise<void> => {
      for (let failure = cause; mayBeDone(failure) && !this.#ended; ) {
        await patience.pause(failure);
        failure = await release().then(
          () => undefined,
          (again) => again,
        );
      }
    };
    repeat(error).catch(() => {}); // the end of its patience: the lock ends with its TTL
  }

  async #acquire(
    what: Asked,
    method: "PUT" | "POST",
    path: string,
    body: Wire,
    signal: AbortSignal | undefined,
    about: Subject,
  ): Promise<Wire> {
    requireFields(this.description, body);
    const waitMs = (body["wait_ms"] ?? 0) as number;
    const timeoutMs = waitMs < 0 ? undefined : waitMs + this.timeoutMs;
    this.#due++;
    const timer = waitMs < 0 && signal === undefined ? this.#warnOfOwnKey(what.keys, body) : undefined;
    try {
      const onLate = (settled: Promise<void>): void => {
        what.late = settled;
      };
      const shares = waitMs === 0;
      const how = { body, signal, timeoutMs, about, context: what.context, waits: true, shares, onLate };
      const answer = await this.call(method, path, how);
      signal?.throwIfAborted();
      return answer;
    } catch (error) {
      // Without a connection nothing was sent.
      what.unanswered ||= signal?.aborted || (hasNoAnswer(error) && !(error instanceof UnreachableError));
      throw error;
    } finally {
      clearTimeout(timer);
      // After #adopt, which runs in the same turn.
      setImmediate(() => {
        if (--this.#due === 0) {
          this.#undelivered.clear();
        }
      }).unref();
    }
  }

  /**
   * #warnOfOwnKey warns, once in a session, if a call still waits after a while for a lock that this session has held all the time. Nothing
   * here knows whether the code that waits is also the code that would release the lock, so the call is not refused.
   */
  #warnOfOwnKey(keys: readonly string[], { limit }: Wire): NodeJS.Timeout {
    const began = performance.now();
    const warn = (): void => {
      const held = [...this.#grants.values()].filter(({ key, since }) => since < began && keys.includes(key));
      const own = held[0];
      if (own === undefined || held.length < ((limit as number | undefined) ?? 1) || this.#warned) {
        return;
      }
      this.#warned = true;
      process.emitWarning(
        `acquire: a call has waited ${Session.ownKeyMs / 1000} s for ${JSON.stringify(own.key)}, which this client has held all the time (token ${own.token}). ` +
          "If the code that waits is also the code that releases the lock, it waits for ever: give waitMs, or use client.lock, which refuses this at once",
        { type: "LocksidecarWarning", code: "waits_for_itself" },
      );
    };
    return setTimeout(warn, Session.ownKeyMs).unref();
  }

  #adopt(grants: WireGrant[], asked: number, { requestId }: Asked, fields: Wire): Granted[] {
    if (this.#ended && grants.some((grant) => grant.bind === "session")) {
      throw new SessionEndedError("the session ended while it was being granted");
    }
    const entry = fields["reentrant"] === true ? requestId : undefined;
    const owner = fields["owner"] as string | undefined;
    const ttlMs = fields["ttl_ms"] as number | undefined;
    return grants.map((wire) => ({ wire, grant: this.#grantOf(wire, asked, ttlMs), entry, owner }));
  }

  #grantOf(wire: WireGrant, asked: number, ttlMs: number | undefined): Grant {
    const knownMs = wire.waited_ms + wire.expires_in_ms;
    if (wire.bind === "ttl") {
      const grant = new Grant(wire);
      grant.expire(asked, knownMs);
      return grant;
    }
    const id = idOf(wire.key, wire.token);
    let grant = this.#grants.get(id);
    if (grant === undefined) {
      grant = new Grant(wire, this.#leaseOf(ttlMs));
      this.#grants.set(id, grant);
    }
    grant.lease?.prove(asked, knownMs);
    const early = this.#undelivered.get(id) ?? [];
    this.#undelivered.delete(id); // delivered once, also if the owner enters again
    for (const news of early) {
      news(grant);
    }
    return grant;
  }

  /** #leaseOf returns the lease of the session's locks of a TTL. By default they have that of the session. */
  #leaseOf(ttlMs: number | undefined): Lease {
    let lease = this.#leases.get(ttlMs);
    if (lease === undefined) {
      const own = (): Grant[] => [...this.#grants.values()].filter((grant) => grant.lease === lease);
      lease = new Lease({
        isUsed: () => own().length > 0,
        ask: async (timeoutMs) => {
          const [grant] = own();
          try {
            const answer = grant && (await this.amend(grant.key, grant.token, {}, timeoutMs));
            return answer && (answer["expires_in_ms"] as number);
          } catch (error) {
            if (grant && (error instanceof LockLostError || error instanceof NotHolderError)) {
              if (error instanceof LockLostError) {
                grant.lose(error.reason, error);
              }
              this.#grants.delete(idOf(grant.key, grant.token));
              return undefined; // an answer about this lock only
            }
            throw error;
          }
        },
        over: () => this.#giveUp(own()),
      });
      this.#leases.set(ttlMs, lease);
    }
    return lease;
  }

  /** #giveUp notes that the lease of some locks has ended. The sidecar may hold them nevertheless, if it goes on in time. */
  #giveUp(grants: Grant[]): void {
    for (const grant of grants) {
      const { key, token } = grant;
      const what = `lock ${JSON.stringify(key)} (token ${token}) was lost: expired; the sidecar did not answer before the end of its lease`;
      const lost = grant.lose("expired", new LockLostError(key, token, "expired", what));
      this.#grants.delete(idOf(key, token));
      const releaseAll = async (): Promise<void> => {
        while ((await this.release(key, token))["released"] !== true) {} // each entry of its owner
      };
      this.owe(new ConnectionLostError("connection_lost", this.transport.address, lost.message), releaseAll);
    }
  }

  /**
   * amend is PATCH: it checks, and changes the fields. Its answer proves that the lock is held, so it must not be late because of other
   * calls: it has a connection of its own.
   */
  amend(key: string, token: number, fields: Wire = {}, timeoutMs = this.timeoutMs): Promise<Wire> {
    requireFields(this.description, fields);
    return this.call("PATCH", lockPath(key), {
      body: { token, ...fields },
      about: { key, token },
      timeoutMs,
    });
  }

  /** release releases the entry of the request `entry`, by default the newest. */
  async release(
    key: string,
    token: number,
    options: {
      outcome?: string | undefined;
      reentry?: number | undefined;
      result?: unknown;
      entry?: string | undefined;
    } = {},
    context?: unknown,
  ): Promise<Wire> {
    const { outcome, reentry, result } = options;
    const request_id = options.entry;
    requireFields(this.description, { outcome, reentry, result, request_id });
    const path = lockPath(key, query({ token, outcome, reentry, request_id }));
    const body = result === undefined ? undefined : { result };
    const answer = await this.call("DELETE", path, { body, about: { key, token }, context, shares: true });
    if (answer["released"] === true) {
      const id = idOf(key, token);
      this.#grants.get(id)?.end();
      this.#grants.delete(id);
    }
    return answer;
  }

  /** close ends the session. When it returns, the locks are free. */
  async close(): Promise<void> {
    const over = this.#ended;
    this.#forget("closed");
    if (!over) {
      await this.transport.call({ method: "DELETE", path: `/v1/sessions/${this.#id}`, timeoutMs: this.timeoutMs });
    }
    this.#stream?.close();
  }

  /**
   * end notes that the session is over: its locks are lost. It closes the stream, because the sidecar may not know it. Then it would hold
   * the locks, and grant those for which calls wait in this session.
   */
  end(reason: LostReason): void {
    this.#forget(reason);
    this.#stream?.close();
  }

  #forget(reason: LostReason): void {
    if (this.#ended) {
      return;
    }
    this.#ended = true;
    for (const grant of this.#grants.values()) {
      grant.lose(reason);
    }
    this.#grants.clear();
    for (const lease of this.#leases.values()) {
      lease.stop();
    }
    this.onEnd();
  }

  #receive({ name, data }: ServerSentEvent): void {
    if (name !== "lost" && name !== "stop") {
      return; // of a newer sidecar
    }
    const event = JSON.parse(data) as { key: string; token: number; reason: string | null };
    const id = idOf(event.key, event.token);
    const news = (grant: Grant): void => {
      if (name === "stop") {
        grant.askToStop({ reason: event.reason, requestedAt: null });
      } else {
        grant.lose(event.reason as string);
        this.#grants.delete(id);
      }
    };
    const grant = this.#grants.get(id);
    if (grant) {
      news(grant);
    } else if (this.#due > 0) {
      this.#undelivered.set(id, [...(this.#undelivered.get(id) ?? []), news]);
    }
  }
}

/** describe asks for the sidecar's features, over the connection in reserve. So that is open before any call waits. */
export async function describe(transport: Transport, timeoutMs: number): Promise<Description> {
  return (await transport.call({ method: "GET", path: "/v1", timeoutMs, reserved: true })) as unknown as Description;
}

function idOf(key: string, token: number): string {
  return `${token} ${key}`;
}
