import { BadAnswerError, ConnectionError, type LostReason, SessionEndedError } from "./errors";
import { Grant } from "./grant";
import type { ServerSentEvent } from "./sse";
import type { EventStream, Transport } from "./transport";
import type { About } from "./types";
import { lockPath, query, requireFields, type Subject, type Wire, type WireGrant, type WireSkipped } from "./wire";

/** How a session is opened, and how long its calls bear with the sidecar. */
export interface SessionOptions {
  name: string | undefined;
  ttlMs: number | undefined;
  /** For the calls that do not wait. */
  timeoutMs: number;
  /** For those that do. */
  reconnectMs: number;
}

/** Asked is what identifies an acquire, whatever tries it takes. */
export interface Asked {
  keys: readonly string[];
  requestId: string;
  /** Whether a call got no answer: it may have got the lock. */
  unanswered: boolean;
  /** The trace context of its calls. */
  context?: unknown;
}

/** How long the release of what was not answered is waited for, in ms. It is carried out in any case. */
const withdrawMs = 2000;

/** A grant, and what the sidecar said with it. */
export interface Granted {
  wire: WireGrant;
  grant: Grant;
  /** The id of the request that made this entry, if the lock is reentrant. */
  entry: string | undefined;
}

/**
 * Session is an explicit session at the sidecar. It lives as long as its event stream, the one connection on which the
 * sidecar tells of lost locks; when that ends, for whatever reason, the locks are lost. Its calls go over other
 * connections and name it. The stream does not keep the process alive.
 */
export class Session {
  /** Called once, when the session is over. */
  onEnd: () => void = () => {};
  #id: string | undefined;
  #ended = false;
  #stream: EventStream | undefined;
  readonly #grants = new Map<string, Grant>();
  // The stream may tell of a grant before the answer that brings it has been read. What is told while an answer is due
  // is kept until it is there.
  #due = 0;
  readonly #early = new Map<string, ((grant: Grant) => void)[]>();

  private constructor(
    readonly transport: Transport,
    readonly about: About,
    readonly timeoutMs: number,
  ) {}

  /** open asks what the sidecar can do, and opens a session. Throws what Transport.call throws. */
  static async open(transport: Transport, options: SessionOptions): Promise<Session> {
    const { timeoutMs } = options;
    const about = (await transport.call({ method: "GET", path: "/v1", timeoutMs })) as unknown as About;
    const session = new Session(transport, about, timeoutMs);
    await session.#open(options);
    return session;
  }

  /** none is for calls of no session: of those who only look, and those who have a token. */
  static none(transport: Transport, about: About, timeoutMs: number): Session {
    return new Session(transport, about, timeoutMs);
  }

  get ended(): boolean {
    return this.#ended;
  }

  #open(options: SessionOptions): Promise<void> {
    return new Promise((resolve, reject) => {
      const started = this.transport.stream(
        {
          method: "POST",
          path: "/v1/sessions",
          body: { name: options.name, ttl_ms: options.ttlMs },
          timeoutMs: options.timeoutMs,
        },
        {
          onEvent: (event) => {
            if (event.name === "session") {
              this.#id = (JSON.parse(event.data) as { session: string }).session;
              started.then((stream) => {
                this.#stream = stream;
                stream.unref();
                resolve();
              }, reject);
            } else {
              this.#hear(event);
            }
          },
          onEnd: () => {
            this.end("disconnected");
            reject(new SessionEndedError("the session ended before it began"));
          },
        },
      );
      started.catch(reject);
    });
  }

  /** call makes a call of this session. */
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

  /** acquire acquires one key. An aborted signal ends the wait; a grant that was under way is to be withdrawn. */
  async acquire(what: Asked, fields: Wire, signal?: AbortSignal, context?: unknown): Promise<Granted | WireSkipped> {
    const asked = performance.now();
    what.context = context;
    const key = what.keys[0] as string;
    const answer = await this.#acquire(what, "PUT", lockPath(key), fields, signal, { key });
    if (answer["granted"] !== true) {
      return answer as unknown as WireSkipped;
    }
    const entry = fields["reentrant"] === true ? what.requestId : undefined;
    const [granted] = this.#adopt([answer as unknown as WireGrant], asked, entry);
    return granted as Granted;
  }

  /** acquireMany acquires all keys or none. */
  async acquireMany(what: Asked, fields: Wire, signal?: AbortSignal, context?: unknown): Promise<Granted[]> {
    const asked = performance.now();
    what.context = context;
    const body = { keys: what.keys, ...fields };
    const answer = await this.#acquire(what, "POST", "/v1/locks", body, signal, {});
    return this.#adopt(answer["locks"] as WireGrant[], asked);
  }

  /** withdraw releases what an acquire has got, or may have got. What becomes of that is not told. */
  async withdraw({ keys, requestId, context }: Asked): Promise<void> {
    const path = (key: string): string => lockPath(key, query({ request_id: requestId }));
    await Promise.allSettled(keys.map((key) => this.call("DELETE", path(key), { timeoutMs: withdrawMs, context })));
  }

  async #acquire(
    what: Asked,
    method: "PUT" | "POST",
    path: string,
    body: Wire,
    signal: AbortSignal | undefined,
    about: Subject,
  ): Promise<Wire> {
    requireFields(this.about, body);
    const waitMs = (body["wait_ms"] ?? 0) as number;
    const timeoutMs = waitMs < 0 ? undefined : waitMs + this.timeoutMs;
    this.#due++;
    try {
      const answer = await this.call(method, path, { body, signal, timeoutMs, about, context: what.context });
      signal?.throwIfAborted();
      return answer;
    } catch (error) {
      what.unanswered ||= signal?.aborted || error instanceof ConnectionError || error instanceof BadAnswerError;
      throw error;
    } finally {
      // Not before what follows has adopted the grant.
      setImmediate(() => {
        if (--this.#due === 0) {
          this.#early.clear();
        }
      }).unref();
    }
  }

  #adopt(grants: WireGrant[], asked: number, entry?: string): Granted[] {
    if (this.#ended && grants.some((grant) => grant.bind === "session")) {
      throw new SessionEndedError("the session ended while it was being granted");
    }
    return grants.map((wire) => ({ wire, grant: this.#grantOf(wire, asked), entry }));
  }

  #grantOf(wire: WireGrant, asked: number): Grant {
    if (wire.bind === "ttl") {
      const grant = new Grant(wire);
      grant.expire(asked, wire.waited_ms + wire.expires_in_ms);
      return grant;
    }
    const id = idOf(wire.key, wire.token);
    let grant = this.#grants.get(id);
    if (grant === undefined) {
      grant = new Grant(wire);
      this.#grants.set(id, grant);
    }
    const early = this.#early.get(id) ?? [];
    this.#early.delete(id); // it is told once, also where the owner enters again
    for (const news of early) {
      news(grant);
    }
    return grant;
  }

  /** amend is PATCH: check, and change what the fields say. */
  amend(key: string, token: number, fields: Wire = {}): Promise<Wire> {
    requireFields(this.about, fields);
    return this.call("PATCH", lockPath(key), { body: { token, ...fields }, about: { key, token } });
  }

  /** release releases one entry: the one that the request `entry` has made, else the newest. The grant is forgotten with the last one. */
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
    requireFields(this.about, { outcome, reentry, result, request_id });
    const path = lockPath(key, query({ token, outcome, reentry, request_id }));
    const body = result === undefined ? undefined : { result };
    const answer = await this.call("DELETE", path, { body, about: { key, token }, context });
    if (answer["released"] === true) {
      const id = idOf(key, token);
      this.#grants.get(id)?.end();
      this.#grants.delete(id);
    }
    return answer;
  }

  /** close ends the session at the sidecar. Its locks are free when it returns. */
  async close(): Promise<void> {
    const over = this.#ended;
    this.end("closed");
    if (!over) {
      await this.transport.call({ method: "DELETE", path: `/v1/sessions/${this.#id}`, timeoutMs: this.timeoutMs });
    }
    this.#stream?.close();
  }

  /** end is called when the session is over, or believed to be: every lock of it is lost. */
  end(reason: LostReason): void {
    if (this.#ended) {
      return;
    }
    this.#ended = true;
    for (const grant of this.#grants.values()) {
      grant.lose(reason);
    }
    this.#grants.clear();
    this.onEnd();
  }

  #hear({ name, data }: ServerSentEvent): void {
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
      this.#early.set(id, [...(this.#early.get(id) ?? []), news]);
    }
  }
}

function idOf(key: string, token: number): string {
  return `${token} ${key}`;
}
