import { ClientClosedError, SessionEndedError } from "./errors";
import { apart } from "./holding";
import { abortable, brokeOff } from "./retry";
import { describe, Session, type SessionOptions } from "./session";
import type { Call, Transport } from "./transport";
import type { Description } from "./types";
import type { Wire } from "./wire";

/** Sessions opens the client's session when a call needs it, and another one after a loss. */
export class Sessions {
  #session: Promise<Session> | undefined;
  #opened: Session | undefined;
  #connected = false;
  #closed = false;

  constructor(
    readonly transport: Transport,
    readonly options: SessionOptions,
  ) {}

  /** Whether this client has had a session. */
  get connected(): boolean {
    return this.#connected;
  }

  get closed(): boolean {
    return this.#closed;
  }

  /** open returns the session, and opens one if there is none. */
  async open(): Promise<Session> {
    if (this.#closed) {
      throw new ClientClosedError();
    }
    if (this.#session === undefined) {
      const opening = apart(() => Session.open(this.transport, this.options));
      const forget = (): void => {
        if (this.#session === opening) {
          this.#session = this.#opened = undefined;
        }
      };
      this.#session = opening;
      opening.then((session) => {
        this.#connected = true;
        this.#opened = session;
        session.onEnd = forget;
        if (session.ended) {
          forget();
        }
      }, forget);
    }
    return this.#session;
  }

  /** The session that is open now. */
  get opened(): Session | undefined {
    return this.#opened;
  }

  /** caller returns the session if there is one, else one for calls without a session. */
  async caller(): Promise<Session> {
    return this.#session && !this.#closed ? this.open() : this.none(await this.describe());
  }

  none(description: Description): Session {
    return Session.none(this.transport, description, this.options.timeoutMs);
  }

  /** join makes a repeatable call in the session, and repeats it in a new one after a loss. */
  join<T>(call: (session: Session) => Promise<T>, signal?: AbortSignal): Promise<T> {
    return this.#twice(() => abortable(this.open(), signal), call);
  }

  /** read makes a repeatable call that does not need the session, but names it if there is one. */
  read<T>(call: (session: Session) => Promise<T>): Promise<T> {
    return this.#twice(() => this.caller(), call);
  }

  async #twice<T>(get: () => Promise<Session>, call: (session: Session) => Promise<T>): Promise<T> {
    let session: Session | undefined;
    try {
      session = await get(); // may fail over a dead kept connection, too
      return await call(session);
    } catch (error) {
      if (this.#closed || !brokeOff(error)) {
        throw error;
      }
      if (error instanceof SessionEndedError) {
        session?.end("disconnected"); // before the stream ends
      }
      return call(await get());
    }
  }

  async describe(): Promise<Description> {
    if (this.#session && !this.#closed) {
      return (await this.#session).description;
    }
    if (this.#closed) {
      throw new ClientClosedError();
    }
    return describe(this.transport, this.options.timeoutMs);
  }

  call(call: Call): Promise<Wire> {
    if (this.#closed) {
      return Promise.reject(new ClientClosedError());
    }
    return this.transport.call({ timeoutMs: this.options.timeoutMs, ...call });
  }

  async close(): Promise<void> {
    if (this.#closed) {
      return;
    }
    this.#closed = true;
    const session = await this.#session?.catch(() => undefined);
    // If the sidecar is gone, so is the session.
    await session?.close().catch(() => {});
    this.transport.close();
  }
}
