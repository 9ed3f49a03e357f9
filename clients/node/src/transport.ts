import { readFileSync, statSync } from "node:fs";
import { Agent, type ClientRequest, request as httpRequest, type IncomingMessage } from "node:http";
import { BadAnswerError, ConnectionLostError, TimeoutError, UnreachableError } from "./errors";
import { EventParser, type ServerSentEvent } from "./sse";
import { traceHeaders } from "./tracing";
import { errorOf, type Subject, type Wire } from "./wire";

export interface Call {
  method: "GET" | "PUT" | "POST" | "PATCH" | "DELETE";
  path: string;
  headers?: Record<string, string> | undefined;
  body?: unknown;
  /** After this time without an answer, the connection is closed. By default there is no limit. */
  timeoutMs?: number | undefined;
  /** Aborting it closes the connection. */
  signal?: AbortSignal | undefined;
  about?: Subject | undefined;
  /** The trace context; by default the active one. */
  context?: unknown;
  /** It may last, so it does not get the connection in reserve. */
  waits?: boolean | undefined;
  /** It uses the connection in reserve. */
  reserved?: boolean | undefined;
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
const longestTimerMs = 2 ** 31 - 1;

const maxIdle = 8;

/**
 * Transport makes calls over a pool of connections. Each call has a connection of its own until the answer, so closing that
 * ends only this call. Calls under way keep the process alive, idle connections do not.
 */
export class Transport {
  /** A stream has a comment line every 15 s, so a sidecar that is silent for this long is gone or hangs. In ms. */
  static silenceMs = 45_000;
  readonly #agent = new Agent({ keepAlive: true, maxFreeSockets: maxIdle, scheduling: "lifo" });
  /**
   * One kept connection, for the calls that must not fail if waiting calls have taken all descriptors of this process. Releases, for
   * example, end the waits.
   */
  readonly #reserve = new Agent({ keepAlive: true, maxSockets: 1, maxFreeSockets: 1 });

  constructor(readonly socketPath: string) {
    descriptorLimit();
  }

  /** call returns the JSON of the answer. Throws the error of a problem document, or a ConnectionError. */
  async call(call: Call): Promise<Wire> {
    const response = await this.#send(call).catch((error) => {
      if (call.waits || !isExhausted(error?.cause)) {
        throw error;
      }
      return this.#send({ ...call, reserved: true }); // nothing was sent
    });
    const text = await this.#read(response);
    return this.#judge(call, response, text);
  }

  /** stream makes a call whose answer is a stream of events. Throws as `call` does. */
  async stream(call: Call, listener: StreamListener): Promise<EventStream> {
    const response = await this.#send(call, (answer) => {
      // In the same tick as the head, so no event is missed.
      if (answer.statusCode === 200) {
        listen(answer, listener);
      }
    });
    if (response.statusCode !== 200) {
      const text = await this.#read(response);
      this.#judge(call, response, text);
      throw new BadAnswerError(
        `${call.method} ${call.path} was answered with ${response.statusCode}, not with a stream`,
      );
    }
    const { socket } = response;
    this.#watchSilence(response);
    return {
      ref: () => socket.ref(),
      unref: () => socket.unref(),
      pause: () => {
        socket.setTimeout(0); // nothing is read
        response.pause();
      },
      resume: () => {
        socket.setTimeout(Transport.silenceMs);
        response.resume();
      },
      close: () => response.destroy(),
    };
  }

  /** #watchSilence ends all connections if a stream says nothing for too long, because waiting calls would not end either. */
  #watchSilence({ socket }: IncomingMessage): void {
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

  close(): void {
    this.#agent.destroy();
    this.#reserve.destroy();
  }

  /** #send returns the answer as soon as its head has come. It first calls `onHead`. If there is one, the body has no time limit. */
  #send(call: Call, onHead?: (response: IncomingMessage) => void): Promise<IncomingMessage> {
    call.signal?.throwIfAborted();
    this.#checkPath();
    const payload = call.body === undefined ? undefined : Buffer.from(JSON.stringify(call.body));
    return new Promise((resolve, reject) => {
      const request = httpRequest({
        agent: call.reserved ? this.#reserve : this.#agent,
        socketPath: this.socketPath,
        method: call.method,
        path: call.path,
        headers: {
          ...traceHeaders(call.context),
          ...call.headers,
          ...(payload && { "Content-Type": "application/json", "Content-Length": payload.length }),
        },
      });
      const finish = this.#limit(request, call, reject);
      request.on("response", (response) => {
        if (onHead) {
          finish();
          onHead(response);
        } else {
          response.once("close", finish);
        }
        resolve(response);
      });
      request.on("error", (cause) => {
        finish();
        reject(this.#failure(cause));
      });
      request.end(payload);
    });
  }

  /** #limit ends a call at its timeout or abort. Returns a function that removes both limits. */
  #limit(request: ClientRequest, call: Call, reject: (reason: unknown) => void): () => void {
    const { signal, timeoutMs } = call;
    const abort = (): void => {
      reject(signal?.reason);
      request.destroy();
    };
    signal?.addEventListener("abort", abort, { once: true });
    let timer: NodeJS.Timeout | undefined;
    if (timeoutMs !== undefined && timeoutMs <= longestTimerMs) {
      timer = setTimeout(() => {
        const what = `${call.method} ${call.path}`;
        reject(
          new TimeoutError(
            "timeout",
            this.socketPath,
            `the sidecar at ${this.socketPath} did not answer ${what} within ${timeoutMs} ms; is it overloaded, or suspended?`,
          ),
        );
        request.destroy();
      }, timeoutMs);
    }
    return () => {
      signal?.removeEventListener("abort", abort);
      clearTimeout(timer);
    };
  }

  async #read(response: IncomingMessage): Promise<string> {
    const chunks: Buffer[] = [];
    try {
      for await (const chunk of response) {
        chunks.push(chunk as Buffer);
      }
    } catch (cause) {
      throw this.#failure(cause as Error);
    }
    return Buffer.concat(chunks).toString("utf8");
  }

  #judge(call: Call, response: IncomingMessage, text: string): Wire {
    const status = response.statusCode ?? 0;
    let json: unknown;
    try {
      json = JSON.parse(text);
    } catch (cause) {
      throw new BadAnswerError(
        `${call.method} ${call.path} was answered with ${status} and no JSON; is it a locksidecar that listens at ${this.socketPath}?`,
        { status, cause },
      );
    }
    if (status >= 200 && status < 300) {
      return json as Wire;
    }
    const seconds = Number(response.headers["retry-after"] ?? Number.NaN);
    throw errorOf((json ?? {}) as Wire, status, Number.isNaN(seconds) ? undefined : seconds * 1000, call.about);
  }

  #checkPath(): void {
    const bytes = Buffer.byteLength(this.socketPath);
    if (bytes > maxSocketPath) {
      throw new UnreachableError(
        "unreachable",
        this.socketPath,
        `the socket's path ${this.socketPath} has ${bytes} bytes; a Unix socket's may have ${maxSocketPath}: set LOCKSIDECAR_SOCKET to a shorter one`,
      );
    }
  }

  /** #failure translates an error of node:http. */
  #failure(cause: NodeJS.ErrnoException): Error {
    if (cause.syscall === "connect") {
      return new UnreachableError("unreachable", this.socketPath, this.#whatToCheck(cause), { cause });
    }
    if (cause.code?.startsWith("HPE_")) {
      return new BadAnswerError(`what listens at ${this.socketPath} does not speak HTTP: ${cause.message}`, { cause });
    }
    return new ConnectionLostError(
      "connection_lost",
      this.socketPath,
      `the connection to the sidecar at ${this.socketPath} broke before the answer came (${cause.code ?? cause.message})`,
      { cause },
    );
  }

  #whatToCheck(cause: NodeJS.ErrnoException): string {
    if (isExhausted(cause)) {
      return (
        `there is no file descriptor left for a connection to the sidecar at ${this.socketPath} (${cause.code}): ` +
        `${descriptorLimit()}, and each call that waits takes one; raise the limit, or let fewer calls wait at a time`
      );
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
      cause.code === "ECONNREFUSED" && statSync(this.socketPath, { throwIfNoEntry: false })?.isSocket() === false;
    const hint =
      hints[isFile ? "ENOTSOCK" : (cause.code ?? "")] ?? "check that the sidecar runs, and LOCKSIDECAR_SOCKET";
    return `no sidecar at ${this.socketPath} (${cause.code}): ${hint}`;
  }
}

/** isExhausted says whether a connection failed for want of a file descriptor. */
function isExhausted(cause: NodeJS.ErrnoException | undefined): boolean {
  return cause?.code === "EMFILE" || cause?.code === "ENFILE";
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

function listen(response: IncomingMessage, listener: StreamListener): void {
  const parser = new EventParser();
  let failure: Error | undefined;
  response.on("data", (chunk: Buffer) => {
    for (const event of parser.push(chunk)) {
      listener.onEvent(event);
    }
  });
  response.on("error", (error) => {
    failure = error;
  });
  response.on("close", () => listener.onEnd(failure));
}
