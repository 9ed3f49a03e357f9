import { ClientClosedError, SessionEndedError } from "./errors";
import { abortable, brokeOff } from "./retry";
import { Session, type SessionOptions } from "./session";
import type { Call, Transport } from "./transport";
import type { About } from "./types";
import type { Wire } from "./wire";

/** Sessions opens the client's session when a call needs one, and another one when that was lost. */
export class Sessions {
  #session: Promise<Session> | undefined;
  #connected = false;
  #closed = false;

  constructor(
    readonly transport: Transport,
    readonly options: SessionOptions,
  ) {}

  /** Whether a sidecar has opened a session before. */
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
      const opening = Session.open(this.transport, this.options);
      const forget = (): void => {
        if (this.#session === opening) {
          this.#session = undefined;
        }
      };
      this.#session = opening;
      opening.then((session) => {
        this.#connected = true;
        session.onEnd = forget;
        if (session.ended) {
          forget();
        }
      }, forget);
    }
    return this.#session;
  }

  /** opened returns the session that is open or about to be; undefined if there is none. */
  async opened(): Promise<Session | undefined> {
    return this.#session?.catch(() => undefined);
  }

  /** caller returns the session if there is one, else what makes calls without one. */
  async caller(): Promise<Session> {
    return this.#session && !this.#closed ? this.open() : this.none(await this.about());
  }

  /** none makes calls that belong to no session. */
  none(about: About): Session {
    return Session.none(this.transport, about, this.options.timeoutMs);
  }

  /** join makes a call in the session, once more in a new one if it was lost. Only for calls that may be repeated. */
  join<T>(call: (session: Session) => Promise<T>, signal?: AbortSignal): Promise<T> {
    return this.#twice(() => abortable(this.open(), signal), call);
  }

  /** look makes a call that does not need the session, but says whose it is if there is one. It may be repeated. */
  look<T>(call: (session: Session) => Promise<T>): Promise<T> {
    return this.#twice(() => this.caller(), call);
  }

  async #twice<T>(get: () => Promise<Session>, call: (session: Session) => Promise<T>): Promise<T> {
    let session: Session | undefined;
    try {
      session = await get(); // which may ask over a kept connection that has died, too
      return await call(session);
    } catch (error) {
      if (this.#closed || !brokeOff(error)) {
        throw error;
      }
      if (error instanceof SessionEndedError) {
        session?.end("disconnected"); // its stream is about to say so
      }
      return call(await get());
    }
  }

  /** about returns what the sidecar can do. */
  async about(): Promise<About> {
    if (this.#session && !this.#closed) {
      return (await this.#session).about;
    }
    return (await this.call({ method: "GET", path: "/v1" })) as unknown as About;
  }

  /** call makes a call of no session. */
  call(call: Call): Promise<Wire> {
    if (this.#closed) {
      return Promise.reject(new ClientClosedError());
    }
    return this.transport.call({ timeoutMs: this.options.timeoutMs, ...call });
  }

  /** close ends the session, and all calls. */
  async close(): Promise<void> {
    if (this.#closed) {
      return;
    }
    this.#closed = true;
    const session = await this.#session?.catch(() => undefined);
    // A sidecar that is not there has ended it already.
    await session?.close().catch(() => {});
    this.transport.close();
  }
}
