import { AsyncResource } from "node:async_hooks";
import { channel } from "node:diagnostics_channel";
import { readFileSync, statSync } from "node:fs";
import type { Socket } from "node:net";
import { performance } from "node:perf_hooks";
import {
  type Answer,
  type BodyListener,
  Connection,
  type ConnectionOwner,
  Exchange,
  type ExchangeListener,
  NotConnectedError,
} from "./connection";
import { type Endpoint, isExhausted } from "./endpoint";
import { BadAnswerError, ConnectionLostError, LocksidecarError, TimeoutError, UnreachableError } from "./errors";
import { NotHttpError, requestText } from "./http";
import { EventParser, type ServerSentEvent } from "./sse";
import { traceHeaders } from "./tracing";
import { errorOf, type Subject, type Wire } from "./wire";

export interface Call {
  method: "GET" | "PUT" | "POST" | "PATCH" | "DELETE";
  path: string;
  headers?: Record<string, string> | undefined;
  body?: unknown;
  /** After this time without an answer, the call ends as by an abort. By default there is no limit. */
  timeoutMs?: number | undefined;
  /** The part of this time that is over. */
  spentMs?: number | undefined;
  /** Aborting it closes the connection, unless it is shared with others that go on. */
  signal?: AbortSignal | undefined;
  about?: Subject | undefined;
  /** The trace context; by default the active one. */
  context?: unknown;
  /** It may last, so it does not get the connection in reserve. */
  waits?: boolean | undefined;
  /** It uses the connection in reserve. */
  reserved?: boolean | undefined;
  /** It does not wait, so it may share a connection with others. */
  shares?: boolean | undefined;
  /** Called if the call was given up, but may still be carried out, until the promise resolves. */
  onLate?: ((settled: Promise<void>) => void) | undefined;
}

/** An answer that is a stream of events. */
export interface EventStream {
  ref(): void;
  unref(): void;
  /** pause stops reading, until resume. After a time the sidecar drops a paused stream. */
  pause(): void;
  resume(): void;
  close(): void;
}

/** Receives a stream. onEnd is called once, with the error if there was one. */
export interface StreamListener {
  onEvent(event: ServerSentEvent): void;
  onEnd(error?: Error): void;
}

/** The limit of Linux. */
const maxSocketPath = 107;

/** A timer of more than 24.8 days would fire at once, so such a call has no timer. The sidecar refuses waits of more than a day. */
export const longestTimerMs = 2 ** 31 - 1;

/** Kept connections, also without use. More are kept while they are used. */
const maxUnused = 8;
/** How often the connections without use since the last time are closed, in ms. */
const tidyMs = 10_000;

/** The most connections over TCP that are made at a time. Above 64 that have shown no token yet, the sidecar ends the oldest. */
const maxDialing = 16;

/** The most requests that are under way on one connection. */
const maxShared = 32;
const requests = channel("locksidecar.request");
const answers = channel("locksidecar.answer");

/** What runs in a connection belongs to no call of the app. */
const ownContext = new AsyncResource("locksidecar");

/**
 * Transport makes calls over a pool of connections. A call that may last has a connection of its own until the answer, so closing that ends
 * only this call. Calls that do not wait, and that are made in one turn of the event loop, may be written together to one connection. The
 * sidecar carries them out and answers them in order. No request is ever written behind one of an earlier turn, so a call that becomes slow
 * delays at most those of its own turn. How many of a turn share a connection follows from how long the sidecar took for the last ones:
 * see `#depth`. Calls under way keep the process alive, idle connections do not.
 */
export class Transport implements ConnectionOwner {
  /** A stream has a comment line every 15 s, so a sidecar that is silent for this long is gone or hangs. In ms. */
  static silenceMs = 45_000;
  /** For how long a request may wait behind others on its connection, by the estimate of `#depth`. In ms. */
  static behindMs = 1;
  /** Open connections, the one in reserve included. */
  readonly #connections = new Set<Connection>();
  /** Those without a call; the last one is used next. */
  #idle: Connection[] = [];
  /** Those over TCP that are being made. */
  readonly #dialing = new Set<Connection>();
  /** What waits until another one may be made. */
  #undialed: Exchange[][] = [];
  /** The lowest number of idle connections since the last tidying. */
  #unused = 0;
  #tidying: NodeJS.Timeout | undefined;
  /** The exchanges of this turn. */
  #queue: Exchange[] = [];
  /**
   * One kept connection, for the calls that must not fail if waiting calls have taken all descriptors of this process. Releases, for
   * example, end the waits. It carries one exchange at a time.
   */
  #reserve: Connection | undefined;
  #reserveFree = true;
  #forReserve: Exchange[] = [];
  /** The connections with calls that do not wait under way; the first was written first. */
  readonly #sharing = new Set<Connection>();
  /** How long this process waited for the answer to one such call, in ms: the longest of late, fading. */
  #waitedMs = 1;

  constructor(readonly endpoint: Endpoint) {
    descriptorLimit();
  }

  /** The path of the sidecar's socket, or its URL. */
  get address(): string {
    return this.endpoint.address;
  }

  /** call returns the JSON of the answer. Throws the error of a problem document, or a ConnectionError. */
  async call(call: Call): Promise<Wire> {
    const began = performance.now();
    let answer: Answer;
    try {
      answer = await this.#answerTo(call);
    } catch (error) {
      if (call.waits || !needsReserve((error as Error).cause as Error)) {
        throw error;
      }
      answer = await this.#answerTo({ ...call, reserved: true, spentMs: performance.now() - began }); // nothing was sent
    }
    return this.#judge(call, answer);
  }

  #answerTo(call: Call): Promise<Answer> {
    return new Promise((resolve, reject) => {
      const listener = {
        onAnswer: (answer: Answer) => {
          finish();
          answers.publish(answer);
          resolve(answer);
        },
        onFailure: (cause: Error) => {
          finish();
          reject(this.#failure(cause));
        },
      };
      const finish = this.#send(call, listener, reject);
    });
  }

  /** stream makes a call whose answer is a stream of events. Throws as `call` does. */
  async stream(call: Call, listener: StreamListener): Promise<EventStream> {
    let connection: Connection | undefined;
    const answer = await new Promise<Answer | undefined>((resolve, reject) => {
      const finish = this.#send(
        call,
        {
          onHead: (head, of) => {
            finish();
            if (head.status !== 200) {
              return undefined;
            }
            connection = of;
            resolve(undefined);
            return bodyListener(of, listener); // in the same turn as the head, so no event is missed
          },
          onAnswer: resolve,
          onFailure: (cause) => {
            finish();
            reject(this.#failure(cause));
          },
        },
        reject,
      );
    });
    if (connection === undefined) {
      this.#judge(call, answer as Answer);
      throw new BadAnswerError(`${call.method} ${call.path} was answered with ${answer?.status}, not with a stream`);
    }
    return this.#streamOf(connection);
  }

  #streamOf(connection: Connection): EventStream {
    const { socket } = connection;
    this.#watchSilence(socket);
    return {
      ref: () => socket.ref(),
      unref: () => socket.unref(),
      pause: () => {
        socket.setTimeout(0); // nothing is read
        socket.pause();
      },
      resume: () => {
        socket.setTimeout(Transport.silenceMs);
        socket.resume();
      },
      close: () => connection.close(),
    };
  }

  /** #watchSilence ends all connections if a stream says nothing for too long, because waiting calls would not end either. */
  #watchSilence(socket: Socket): void {
    socket.setTimeout(Transport.silenceMs);
    socket.on("timeout", () => {
      const heard = socket.bytesRead;
      setImmediate(() => {
        // If it has changed, the app had kept the event loop from reading.
        if (socket.bytesRead === heard) {
          this.close();
        }
      });
    });
  }

  /**
   * onSessionEnd ends all calls if the session's connection over TCP broke, and was not closed. Node has no limit for what is sent and not
   * received, so without a network calls that wait would not end for a quarter of an hour.
   */
  onSessionEnd(cause: NodeJS.ErrnoException | undefined): void {
    if (this.endpoint.path === undefined && cause?.code !== undefined) {
      this.close();
    }
  }

  close(): void {
    for (const exchange of [
      ...this.#queue.splice(0),
      ...this.#undialed.splice(0).flat(),
      ...this.#forReserve.splice(0),
    ]) {
      if (!exchange.left) {
        exchange.left = true;
        exchange.listener.onFailure(new Error("it was closed"));
      }
    }
    for (const connection of this.#connections) {
      connection.close();
    }
  }

  /** #send queues a request. Returns a function that removes its limits. Throws if the call cannot be sent. */
  #send(call: Call, listener: ExchangeListener, reject: (reason: unknown) => void): () => void {
    call.signal?.throwIfAborted();
    this.#checkPath();
    const { method, path, body, reserved } = call;
    const headers = { ...traceHeaders(call.context), ...call.headers };
    const content = body === undefined ? undefined : JSON.stringify(body);
    const text = requestText(method, path, headers, content, this.endpoint.head());
    const exchange = new Exchange(text, call.shares === true, listener);
    if (requests.hasSubscribers) {
      requests.publish({ method, path, headers });
    }
    if (reserved) {
      this.#forReserve.push(exchange);
      this.#useReserve();
    } else {
      if (this.#queue.length === 0) {
        setImmediate(() => this.#flush());
      }
      this.#queue.push(exchange);
    }
    return this.#limit(exchange, call, reject);
  }

  /** #limit ends a call at its timeout or abort. Returns a function that removes both limits. */
  #limit(exchange: Exchange, call: Call, reject: (reason: unknown) => void): () => void {
    const { signal, timeoutMs, spentMs = 0 } = call;
    const leave = (reason: unknown): void => {
      finish();
      const settled = exchange.leave();
      if (settled !== undefined) {
        call.onLate?.(settled);
      }
      reject(reason);
    };
    const abort = (): void => leave(signal?.reason);
    signal?.addEventListener("abort", abort, { once: true });
    let timer: NodeJS.Timeout | undefined;
    if (timeoutMs !== undefined && timeoutMs <= longestTimerMs) {
      timer = setTimeout(() => leave(this.timeout(call)), timeoutMs - spentMs);
    }
    const finish = (): void => {
      signal?.removeEventListener("abort", abort);
      clearTimeout(timer);
    };
    return finish;
  }

  /** timeout is the error of a call without an answer in its time. */
  timeout({ method, path, timeoutMs }: Call): TimeoutError {
    return new TimeoutError(
      "timeout",
      this.address,
      `the sidecar at ${this.address} did not answer ${method} ${path} within ${timeoutMs} ms; is it overloaded, or suspended?`,
    );
  }

  /** #flush sends what was asked for in this turn. */
  #flush(): void {
    const queue = this.#queue.filter(({ left }) => !left);
    this.#queue = [];
    const shared: Exchange[] = [];
    for (const exchange of queue) {
      if (exchange.shares) {
        shared.push(exchange);
      } else {
        this.#carry([exchange]);
      }
    }
    const connections = Math.ceil(shared.length / this.#depth());
    const size = Math.ceil(shared.length / connections);
    for (let at = 0; at < shared.length; at += size) {
      this.#carry(shared.slice(at, at + size));
    }
  }

  /** #carry sends exchanges on a connection of their own, as soon as there may be one. */
  #carry(exchanges: Exchange[]): void {
    this.#undialed.push(exchanges);
    this.#carryNext();
  }

  #carryNext(): void {
    for (let next = this.#undialed[0]; next !== undefined; next = this.#undialed[0]) {
      const wanted = next.filter(({ left }) => !left);
      const connection = wanted.length > 0 ? this.#take() : undefined;
      if (connection === undefined && wanted.length > 0) {
        return;
      }
      this.#undialed.shift();
      if (connection !== undefined) {
        this.#sendOn(connection, wanted);
      }
    }
  }

  #sendOn(connection: Connection, exchanges: Exchange[]): void {
    if (exchanges[0]?.shares) {
      connection.idleAtSend = idleMs();
      this.#sharing.add(connection);
    }
    connection.send(exchanges);
  }

  /**
   * #depth is how many requests share a connection. The sidecar carries them out one after the other, so each waits for those before it. A
   * sidecar with a store that takes 1 ms carries out 64 calls in 1 ms if each has a connection, and in 64 ms if all share one. A sidecar that
   * answers from memory takes about 30 us for each, less than this process takes for a connection more.
   */
  #depth(): number {
    const [oldest] = this.#sharing;
    if (oldest !== undefined) {
      this.#waitedMs = Math.max(waitedMs(oldest, oldest.answered + 1), this.#waitedMs); // it may be slow just now
    }
    return Math.min(Math.max(Math.floor(Transport.behindMs / this.#waitedMs), 1), maxShared);
  }

  /** #learn notes how long this process waited for the answers of a connection. One that closes has only the first of them, and not the next. */
  #learn(connection: Connection): void {
    if (this.#sharing.delete(connection)) {
      const waited = waitedMs(connection, connection.closed ? connection.answered + 1 : connection.answered);
      this.#waitedMs = Math.max(waited, connection.closed ? this.#waitedMs : (this.#waitedMs * 7) / 8);
    }
  }

  /** #take returns a connection without a call, or undefined if too many are being made. */
  #take(): Connection | undefined {
    let idle = this.#idle.pop();
    while (idle?.isOver) {
      idle = this.#idle.pop();
    }
    this.#unused = Math.min(this.#unused, this.#idle.length);
    return idle ?? (this.#dialing.size < maxDialing ? this.#open() : undefined);
  }

  #open(): Connection {
    const connection = ownContext.runInAsyncScope(() => new Connection(this.endpoint, this));
    this.#connections.add(connection);
    if (this.endpoint.path === undefined) {
      this.#dialing.add(connection);
    }
    return connection;
  }

  onConnected(connection: Connection): void {
    this.#dialing.delete(connection);
    this.#carryNext();
  }

  onFree(connection: Connection): void {
    this.#learn(connection);
    if (connection === this.#reserve) {
      this.#reserveFree = true;
      this.#useReserve();
      return;
    }
    this.#idle.push(connection);
    this.#carryNext();
    this.#tidying ??= ownContext.runInAsyncScope(() => setTimeout(() => this.#tidy(), tidyMs).unref());
  }

  /** #tidy closes the connections that were not used since the last time. */
  #tidy(): void {
    this.#tidying = undefined;
    const surplus = Math.min(this.#unused, this.#idle.length - maxUnused);
    for (const connection of this.#idle.splice(0, Math.max(surplus, 0))) {
      connection.close();
    }
    this.#unused = this.#idle.length;
    if (this.#idle.length > maxUnused) {
      this.#tidying = setTimeout(() => this.#tidy(), tidyMs).unref();
    }
  }

  onNotCarriedOut(exchanges: Exchange[]): void {
    for (const exchange of exchanges) {
      exchange.shares = false; // so it is sent again at most once
      this.#carry([exchange]);
    }
  }

  onClose(connection: Connection, broke: boolean): void {
    this.#learn(connection);
    this.#connections.delete(connection);
    this.#dialing.delete(connection);
    if (connection === this.#reserve) {
      this.#reserve = undefined;
      this.#reserveFree = true;
      setImmediate(() => this.#useReserve());
    }
    this.#idle = this.#idle.filter((idle) => idle !== connection);
    if (broke) {
      for (const idle of this.#idle.splice(0)) {
        idle.close(); // after a restart of the sidecar all are dead
      }
    }
    this.#carryNext();
  }

  #useReserve(): void {
    this.#forReserve = this.#forReserve.filter(({ left }) => !left);
    if (this.#reserve?.isOver) {
      this.#reserve = undefined;
      this.#reserveFree = true;
    }
    if (this.#forReserve.length > 0 && this.#reserveFree) {
      this.#reserveFree = false;
      this.#reserve ??= this.#open();
      this.#sendOn(this.#reserve, this.#forReserve.splice(0, 1));
    }
  }

  #judge(call: Call, { status, retryAfter, text }: Answer): Wire {
    let json: unknown;
    try {
      json = JSON.parse(text);
    } catch (cause) {
      throw new BadAnswerError(
        `${call.method} ${call.path} was answered with ${status} and no JSON; is it a locksidecar that listens at ${this.address}?`,
        { status, cause },
      );
    }
    if (status >= 200 && status < 300) {
      return json as Wire;
    }
    const seconds = Number(retryAfter ?? Number.NaN);
    throw errorOf((json ?? {}) as Wire, status, Number.isNaN(seconds) ? undefined : seconds * 1000, call.about);
  }

  #checkPath(): void {
    const bytes = Buffer.byteLength(this.endpoint.path ?? "");
    if (bytes > maxSocketPath) {
      throw new UnreachableError(
        "unreachable",
        this.address,
        `the socket's path ${this.address} has ${bytes} bytes; a Unix socket's may have ${maxSocketPath}: set LOCKSIDECAR_SOCKET to a shorter one`,
      );
    }
  }

  /** #failure translates an error of a connection. */
  #failure(cause: NodeJS.ErrnoException): Error {
    if (cause instanceof NotConnectedError) {
      const { cause: why, isOfCertificate } = cause;
      if (why instanceof LocksidecarError) {
        return why; // a setting
      }
      const what = this.#whatToCheck(why, isOfCertificate);
      return new UnreachableError("unreachable", this.address, what, { cause: why });
    }
    if (cause instanceof NotHttpError) {
      return new BadAnswerError(`what listens at ${this.address} does not speak HTTP: ${cause.message}`, { cause });
    }
    return new ConnectionLostError(
      "connection_lost",
      this.address,
      `the connection to the sidecar at ${this.address} broke before the answer came (${cause.code ?? cause.message})`,
      { cause },
    );
  }

  #whatToCheck(cause: NodeJS.ErrnoException, isOfCertificate: boolean): string {
    if (isExhausted(cause)) {
      return (
        `there is no file descriptor left for a connection to the sidecar at ${this.address} (${cause.code}): ` +
        `${descriptorLimit()}, and each call that waits takes one; raise the limit, or let fewer calls wait at a time`
      );
    }
    if (this.endpoint.path === undefined) {
      return this.endpoint.whatToCheck(cause, isOfCertificate);
    }
    const hints: Record<string, string> = {
      ENOENT:
        "there is no such file: check that the sidecar runs (`locksidecar serve`), that LOCKSIDECAR_SOCKET is the same for it and for this process, " +
        "and that both containers mount the volume of the socket",
      ECONNREFUSED:
        "nobody listens there any more: check whether the sidecar has crashed or is just starting again (its log says why)",
      EACCES:
        "this user may not use it: check the socket's permissions (LOCKSIDECAR_SOCKET_MODE) and those of its folder; " +
        `this process runs as uid ${process.getuid?.()}`,
      ENOTSOCK: "this is not a socket: check LOCKSIDECAR_SOCKET",
    };
    const isFile =
      cause.code === "ECONNREFUSED" && statSync(this.address, { throwIfNoEntry: false })?.isSocket() === false;
    const hint =
      hints[isFile ? "ENOTSOCK" : (cause.code ?? "")] ?? "check that the sidecar runs, and LOCKSIDECAR_SOCKET";
    return `no sidecar at ${this.address} (${cause.code}): ${hint}`;
  }
}

/** needsReserve says whether a connection failed for want of a file descriptor, or perhaps so, because the system needs some to look a name up. */
function needsReserve(cause: NodeJS.ErrnoException | undefined): boolean {
  return isExhausted(cause) || cause?.syscall === "getaddrinfo";
}

let limitLine: string | undefined;

/** descriptorLimit names the limit of this process. It is read before descriptors are scarce, because that takes one. */
function descriptorLimit(): string {
  if (limitLine === undefined) {
    try {
      const limits = readFileSync("/proc/self/limits", "utf8");
      const soft = /^Max open files +(\S+)/m.exec(limits)?.[1];
      limitLine = `this process may have ${soft} (ulimit -n)`;
    } catch {
      limitLine = "see ulimit -n";
    }
  }
  return limitLine;
}

/** idleMs is for how long the event loop has had nothing to do. */
function idleMs(): number {
  return performance.eventLoopUtilization().idle;
}

/**
 * waitedMs is for how long this process has waited for each of the first answers of a connection. Time in which it did something else does not
 * count: a busy process would read the answers of a fast sidecar late, too.
 */
function waitedMs({ idleAtSend }: Connection, answers: number): number {
  return (idleMs() - idleAtSend) / answers;
}

function bodyListener(connection: Connection, listener: StreamListener): BodyListener {
  const parser = new EventParser();
  return {
    onData: (bytes) => {
      for (const event of parser.push(bytes)) {
        if (connection.closed) {
          return;
        }
        listener.onEvent(event);
      }
    },
    onEnd: (cause) => listener.onEnd(cause),
  };
}
