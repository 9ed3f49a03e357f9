import type { Socket } from "node:net";
import type { TLSSocket } from "node:tls";
import { Endpoint } from "./endpoint";
import { type AnswerListener, AnswerParser, type Head, maxBody, NotHttpError } from "./http";

/** A complete answer. */
export interface Answer extends Head {
  text: string;
}

/** Receives a body as it arrives. The bytes are valid only during the call. */
export interface BodyListener {
  onData(bytes: Buffer): void;
  /** Called once, with the error if the body did not come to its end. */
  onEnd(cause?: Error): void;
}

/** What an exchange calls: one of onAnswer and onFailure, unless onHead took the body. */
export interface ExchangeListener {
  onAnswer(answer: Answer): void;
  onFailure(cause: Error): void;
  /** If it returns a listener, that gets the body. */
  onHead?(head: Head, connection: Connection): BodyListener | undefined;
}

/** Exchange is a request with its answer. */
export class Exchange {
  /** Nobody waits for the answer any more. */
  left = false;
  #connection: Connection | undefined;
  #onSettled: (() => void) | undefined;

  constructor(
    readonly request: string,
    /** Others may be under way on its connection. */
    public shares: boolean,
    readonly listener: ExchangeListener,
  ) {}

  /**
   * leave gives the answer up, and closes the connection unless others wait for answers there. If the connection stays, the sidecar carries
   * the request out, perhaps later: leave returns a promise that resolves when that is over.
   */
  leave(): Promise<void> | undefined {
    this.left = true;
    if (this.#connection === undefined || this.#connection.closeIfLeft()) {
      return undefined;
    }
    return new Promise((resolve) => {
      this.#onSettled = resolve;
    });
  }

  begin(connection: Connection): void {
    this.#connection = connection;
  }

  settle(): void {
    this.#connection = undefined;
    this.#onSettled?.();
  }
}

/** The pool of a connection. */
export interface ConnectionOwner {
  /** The connection is there, with its handshake. */
  onConnected(connection: Connection): void;
  /** All exchanges are over, and the connection takes others. */
  onFree(connection: Connection): void;
  /** The sidecar has not carried these out: it announced that it closes the connection, or had closed it before they were sent. */
  onNotCarriedOut(exchanges: Exchange[]): void;
  /** Called before the exchanges under way fail. `broke`: there were some, and this side has not closed the connection. */
  onClose(connection: Connection, broke: boolean): void;
}

/** NotConnectedError says that there was no connection, so nothing was sent. */
export class NotConnectedError extends Error {
  constructor(
    override readonly cause: Error,
    /** The sidecar's certificate was refused. */
    readonly isOfCertificate = false,
  ) {
    super(cause.message);
  }
}

/** All connections without TLS read into it, one after the other, and copy what they keep. */
const readBuffer = Buffer.allocUnsafeSlow(64 * 1024);

/** Connection carries exchanges, answered in their order. It keeps the process alive while one is under way. */
export class Connection implements AnswerListener {
  readonly socket: Socket;
  closed = false;
  /** For the pool's measure of the sidecar: the idle time of the event loop at the send. */
  idleAtSend = 0;
  readonly #parser = new AnswerParser(this);
  #exchanges: Exchange[] = [];
  #answered = 0;
  #head: Head | undefined;
  #pieces: Buffer[] = [];
  #length = 0;
  #body: BodyListener | undefined;
  #cause: Error | undefined;
  #isConnected = false;
  /** It has carried exchanges before, so the sidecar may have closed it since then. */
  #isUsed = false;
  /** Requests that wait for the handshake. */
  #unsent = "";

  constructor(
    readonly endpoint: Endpoint,
    readonly owner: ConnectionOwner,
  ) {
    const callback = (length: number): boolean => this.#onBytes(readBuffer.subarray(0, length));
    this.socket = endpoint.connect({ buffer: readBuffer, callback });
    if (endpoint.encrypted) {
      this.socket.on("data", (bytes) => this.#onBytes(bytes));
    }
    this.socket.on("error", (cause) => {
      const isOfCertificate = Boolean((this.socket as TLSSocket).authorizationError);
      this.#cause ??= this.#isConnected ? cause : new NotConnectedError(cause, isOfCertificate);
    });
    this.socket.on("close", () => this.#onClose());
    const timer = endpoint.path === undefined ? this.#limitDial() : undefined;
    this.socket.once(endpoint.encrypted ? "secureConnect" : "connect", () => {
      clearTimeout(timer);
      this.#isConnected = true;
      if (this.#unsent !== "") {
        this.socket.write(this.#unsent, "utf8");
        this.#unsent = "";
      }
      owner.onConnected(this);
    });
  }

  /** #limitDial ends a connection over TCP that is not made in time. */
  #limitDial(): NodeJS.Timeout {
    const timer = setTimeout(() => {
      setImmediate(() => {
        // If it is there now, the app had kept the event loop from seeing it.
        if (!this.#isConnected) {
          this.close(new NotConnectedError(new Error(`it was not made within ${Endpoint.dialMs} ms`)));
        }
      });
    }, Endpoint.dialMs).unref();
    this.socket.once("close", () => clearTimeout(timer));
    return timer;
  }

  /** Whether it takes no more requests: closed on this side, or ended by the sidecar. */
  get isOver(): boolean {
    return this.closed || !this.socket.writable;
  }

  /** send writes the requests at once. The connection must be free. */
  send(exchanges: Exchange[]): void {
    this.socket.ref();
    this.#exchanges = exchanges;
    this.#answered = 0;
    let text = "";
    for (const exchange of exchanges) {
      exchange.begin(this);
      text += exchange.request;
    }
    if (this.endpoint.encrypted && !this.#isConnected) {
      this.#unsent = text; // it has the token, and the certificate is not verified yet
    } else {
      this.socket.write(text, "utf8");
    }
  }

  /** The number of exchanges under way that have their answers. */
  get answered(): number {
    return this.#answered;
  }

  /** close ends it. The exchanges under way fail with `cause`. */
  close(cause: Error = new Error("it was closed")): void {
    this.#cause ??= cause;
    this.closed = true;
    this.socket.destroy();
  }

  /** closeIfLeft closes the connection if nobody waits for an answer, and returns whether it is closed. */
  closeIfLeft(): boolean {
    if (!this.closed && this.#exchanges.every(({ left }, at) => left || at < this.#answered)) {
      this.close();
    }
    return this.closed;
  }

  #onBytes(bytes: Buffer): boolean {
    if (this.closed) {
      return false;
    }
    let isRead = false;
    try {
      this.#parser.push(bytes);
      isRead = true;
    } catch (error) {
      if (!(error instanceof NotHttpError)) {
        throw error;
      }
      this.#failOne(error);
    } finally {
      if (!isRead) {
        this.close(); // where the next answer begins is not known
      }
    }
    this.#freeIfDone();
    return true;
  }

  /** #freeIfDone runs when all bytes are read, because bytes behind the last answer must not be taken for the answer to a later request. */
  #freeIfDone(): void {
    if (this.closed || this.#answered < this.#exchanges.length) {
      return;
    }
    if (!this.#parser.isBetweenAnswers) {
      this.close();
      return;
    }
    if (this.#exchanges.length > 0) {
      this.#exchanges = [];
      this.socket.unref();
      this.#isUsed = true;
      this.owner.onFree(this);
    }
  }

  /** #failOne fails the exchange whose answer is bad. Those behind it have none. */
  #failOne(error: Error): void {
    const exchange = this.#exchanges[this.#answered];
    if (this.#body !== undefined) {
      this.#cause = error;
    } else if (exchange !== undefined) {
      this.#answered++;
      exchange.settle();
      exchange.listener.onFailure(error);
    }
  }

  onHead(head: Head): void {
    const exchange = this.#exchanges[this.#answered];
    if (exchange === undefined) {
      throw new NotHttpError("it answers a request that was not made");
    }
    this.#head = head;
    this.#body = exchange.left ? undefined : exchange.listener.onHead?.(head, this);
  }

  onData(bytes: Buffer): void {
    if (this.#body !== undefined) {
      this.#body.onData(bytes);
      return;
    }
    this.#length += bytes.length;
    if (this.#length > maxBody) {
      throw new NotHttpError(`its answer has more than ${maxBody} bytes`);
    }
    this.#pieces.push(Buffer.from(bytes));
  }

  onEnd(): void {
    const exchange = this.#exchanges[this.#answered++] as Exchange;
    const head = this.#head as Head;
    const body = this.#body;
    const [first] = this.#pieces;
    const bytes = this.#pieces.length === 1 && first ? first : Buffer.concat(this.#pieces);
    this.#head = this.#body = undefined;
    this.#pieces = [];
    this.#length = 0;
    exchange.settle();
    if (body !== undefined) {
      this.close();
      body.onEnd();
      return;
    }
    if (head.isLast) {
      this.#leaveRest();
    }
    exchange.listener.onAnswer({ ...head, text: bytes.toString("utf8") });
  }

  /** #leaveRest closes the connection, as the sidecar does. */
  #leaveRest(): void {
    const rest = this.#exchanges.splice(this.#answered);
    this.close();
    for (const exchange of rest) {
      exchange.settle();
    }
    this.owner.onNotCarriedOut(rest.filter(({ left }) => !left));
  }

  #onClose(): void {
    const broke = !this.closed && this.#exchanges.length > 0;
    this.closed = true;
    const body = this.#body;
    const rest = this.#exchanges.slice(body === undefined ? this.#answered : this.#answered + 1);
    this.#exchanges = [];
    this.#body = undefined;
    this.owner.onClose(this, broke);
    const cause: NodeJS.ErrnoException = this.#cause ?? new Error("it was closed");
    body?.onEnd(cause);
    const isUnsent = cause.code === "EPIPE" && cause.syscall === "write"; // a part of the last request was not
    if (this.#isUsed && isUnsent && rest.length === 1 && this.#answered === 0) {
      rest[0]?.settle();
      this.owner.onNotCarriedOut(rest.filter(({ left }) => !left));
      return;
    }
    for (const exchange of rest) {
      exchange.settle();
      if (!exchange.left) {
        exchange.listener.onFailure(cause);
      }
    }
  }
}
