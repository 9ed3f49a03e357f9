import { ConnectionLostError } from "./errors";
import { isAway, Patience } from "./retry";
import type { ServerSentEvent } from "./sse";
import type { EventStream, Transport } from "./transport";
import type { KeyEvent } from "./types";
import { errorOf, keyEventOf, lockPath, type Wire } from "./wire";

/** The most events that wait for their reader. Then the stream is paused, and after a time the sidecar drops it. */
const maxWaiting = 1024;

interface Reader {
  resolve(result: IteratorResult<KeyEvent, undefined>): void;
  reject(error: unknown): void;
}

/**
 * KeyWatch is an iterator over the events of one key. It begins with the first `next()`, and keeps the process alive only
 * while a `next()` waits. It is no generator, because a generator cannot be ended while it waits.
 */
export class KeyWatch implements AsyncIterableIterator<KeyEvent> {
  readonly #events: KeyEvent[] = [];
  readonly #readers: Reader[] = [];
  #begun = false;
  #over = false;
  #failure: { error: unknown } | undefined;
  #stream: EventStream | undefined;
  readonly #abort = (): void => this.fail(this.signal?.reason);

  constructor(
    readonly transport: Transport,
    readonly key: string,
    readonly options: { timeoutMs: number; reconnectMs: number; check: () => Promise<void> },
    readonly signal?: AbortSignal,
    readonly onOver: () => void = () => {},
  ) {
    if (signal?.aborted) {
      this.#abort();
    }
    signal?.addEventListener("abort", this.#abort, { once: true });
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  next(): Promise<IteratorResult<KeyEvent, undefined>> {
    if (!this.#begun && !this.#over) {
      this.#begun = true;
      void this.#run();
    }
    const event = this.#events.shift();
    if (event) {
      if (this.#events.length === maxWaiting / 2) {
        this.#stream?.resume();
      }
      return Promise.resolve({ value: event, done: false });
    }
    if (this.#failure) {
      const { error } = this.#failure;
      this.#failure = undefined; // an iterator throws once
      return Promise.reject(error);
    }
    if (this.#over) {
      return Promise.resolve({ value: undefined, done: true });
    }
    return new Promise((resolve, reject) => {
      this.#readers.push({ resolve, reject });
      this.#keepAlive();
    });
  }

  async return(): Promise<IteratorResult<KeyEvent, undefined>> {
    this.#finish();
    return { value: undefined, done: true };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#finish();
  }

  fail(error: unknown): void {
    if (this.#over) {
      return;
    }
    const reader = this.#readers.shift();
    if (reader) {
      reader.reject(error);
    } else {
      this.#failure = { error };
    }
    this.#finish();
  }

  #finish(): void {
    if (this.#over) {
      return;
    }
    this.#over = true;
    this.signal?.removeEventListener("abort", this.#abort);
    this.#stream?.close();
    for (const reader of this.#readers.splice(0)) {
      reader.resolve({ value: undefined, done: true });
    }
    this.onOver();
  }

  /** #run keeps a stream open. Each begins with the state of the key. */
  async #run(): Promise<void> {
    const patience = new Patience(this.options.reconnectMs);
    let connected = false;
    for (;;) {
      const cause = await this.#listen(() => {
        connected = true;
        patience.renew();
      });
      this.#stream = undefined;
      if (this.#over) {
        return;
      }
      if (!connected || !isAway(cause)) {
        this.fail(cause);
        return;
      }
      try {
        await patience.pause(cause);
      } catch (error) {
        this.fail(error);
        return;
      }
    }
  }

  /** #listen reads one stream, and returns the reason of its end. */
  #listen(onState: () => void): Promise<unknown> {
    const { transport, key } = this;
    let problem: unknown;
    return new Promise((resolve) => {
      const onEvent = ({ name, data }: ServerSentEvent): void => {
        const wire = JSON.parse(data) as Wire;
        if (name === "problem") {
          problem = errorOf(wire, wire["status"] as number, undefined, { key });
          return;
        }
        const event = keyEventOf(name, wire);
        if (event?.type === "state") {
          onState();
        }
        if (event && !this.#over) {
          this.#push(event);
        }
      };
      const onEnd = (cause?: Error): void => {
        const what = `the event stream of ${JSON.stringify(key)} at ${transport.address} ended`;
        resolve(problem ?? new ConnectionLostError("connection_lost", transport.address, what, { cause }));
      };
      const begin = async (): Promise<void> => {
        await this.options.check();
        const call = { method: "GET", path: lockPath(key, "/events"), timeoutMs: this.options.timeoutMs } as const;
        const stream = await transport.stream(call, { onEvent, onEnd });
        this.#stream = stream;
        if (this.#over) {
          stream.close();
        }
        this.#keepAlive();
      };
      begin().catch(resolve);
    });
  }

  #push(event: KeyEvent): void {
    const reader = this.#readers.shift();
    if (reader) {
      this.#keepAlive();
      reader.resolve({ value: event, done: false });
      return;
    }
    this.#events.push(event);
    if (this.#events.length === maxWaiting) {
      this.#stream?.pause();
    }
  }

  /** #keepAlive keeps the process alive while a `next()` waits. */
  #keepAlive(): void {
    if (this.#readers.length > 0) {
      this.#stream?.ref();
    } else {
      this.#stream?.unref();
    }
  }
}
