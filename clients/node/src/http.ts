// HTTP/1.1 as bytes in and bytes out, without I/O: requests of one piece, and answers with a length or in chunks.

/** The limits of an answer, in bytes. A page of a list has about 1 MiB, and any other answer less. */
export const maxHead = 16 * 1024;
export const maxBody = 8 * 1024 * 1024;
/** The limit of the line with the size of a chunk. */
const maxChunkLine = 1024;

const startOfHead = "HTTP/1.1 ";
const nothing = Buffer.alloc(0);

/** NotHttpError says that the bytes are no answer that this client reads. */
export class NotHttpError extends Error {}

/** requestText returns a request that begins with the lines of `head`. Throws a TypeError if a header or the path would not stay in its line. */
export function requestText(
  method: string,
  path: string,
  headers: Record<string, string>,
  body: string | undefined,
  head = "Host: localhost\r\n",
): string {
  if (!/^[\x21-\x7e]+$/.test(path)) {
    throw new TypeError(`the path ${JSON.stringify(path)} has characters that HTTP does not allow`);
  }
  let text = `${method} ${path} HTTP/1.1\r\n${head}`;
  for (const name in headers) {
    const value = String(headers[name]);
    if (!isHeader(name, value)) {
      throw new TypeError(`the header ${JSON.stringify(name)} has characters that HTTP does not allow`);
    }
    text += `${name}: ${value}\r\n`;
  }
  if (body !== undefined) {
    return `${text}Content-Type: application/json\r\nContent-Length: ${Buffer.byteLength(body)}\r\n\r\n${body}`;
  }
  return method === "GET" ? `${text}\r\n` : `${text}Content-Length: 0\r\n\r\n`;
}

/** isHeader says whether a header may be sent as text. */
export function isHeader(name: string, value: string): boolean {
  return /^[\w!#$%&'*+.^`|~-]+$/.test(name) && /^[\t\x20-\x7e]*$/.test(value);
}

/** The head of an answer, as far as this client reads it. */
export interface Head {
  status: number;
  /** The sidecar closes the connection after this answer, and does not carry out the requests that came after this one. */
  isLast: boolean;
  retryAfter: string | undefined;
}

/** Receives answers, one after the other. The bytes of `onData` are valid only during the call. */
export interface AnswerListener {
  onHead(head: Head): void;
  onData(bytes: Buffer): void;
  onEnd(): void;
}

/** AnswerParser parses the answers of a connection as their bytes arrive, in pieces of any size. */
export class AnswerParser {
  #read: (bytes: Buffer) => number = this.#readHead;
  /** The start of a head or line of which the rest has not arrived. */
  #start: Buffer = nothing;
  /** The bytes that the body or its chunk still has. */
  #left = 0;

  constructor(readonly listener: AnswerListener) {}

  /** Whether the bytes so far are complete answers. */
  get isBetweenAnswers(): boolean {
    return this.#read === this.#readHead && this.#start.length === 0;
  }

  /** push takes more bytes. Throws a NotHttpError; nothing after it can be read. */
  push(bytes: Buffer): void {
    for (let rest = bytes; rest.length > 0; ) {
      const used = this.#read(rest);
      rest = used === rest.length ? nothing : rest.subarray(used);
    }
  }

  #readHead(bytes: Buffer): number {
    const before = this.#start.length;
    const text = this.#until("\r\n\r\n", bytes, maxHead);
    if (text === undefined) {
      const begins = this.#start.toString("latin1", 0, startOfHead.length);
      if (!startOfHead.startsWith(begins)) {
        throw new NotHttpError(`it answers ${JSON.stringify(begins)}`);
      }
      return bytes.length;
    }
    this.#begin(text);
    return text.length + 4 - before;
  }

  #begin(text: string): void {
    const [first = "", ...lines] = text.split("\r\n");
    const status = Number(/^HTTP\/1\.1 (\d{3})(?: |$)/.exec(first)?.[1]);
    if (Number.isNaN(status) || status === 101) {
      throw new NotHttpError(`its answer begins with ${JSON.stringify(first.slice(0, 80))}`);
    }
    if (status < 200) {
      return; // such as 100 Continue: the answer follows
    }
    let length: string | undefined;
    let coding: string | undefined;
    const head: Head = { status, isLast: false, retryAfter: undefined };
    for (const line of lines) {
      const colon = line.indexOf(":");
      const name = line.slice(0, Math.max(colon, 0)).toLowerCase();
      if (name === "" || /\s/.test(name) || /[\0\r\n]/.test(line)) {
        throw new NotHttpError(`its answer has the header line ${JSON.stringify(line.slice(0, 80))}`);
      }
      const value = line.slice(colon + 1).trim();
      if (name === "content-length") {
        if (!/^\d{1,15}$/.test(value) || (length !== undefined && length !== value)) {
          throw new NotHttpError(`the length of its answer is ${JSON.stringify(value.slice(0, 80))}`);
        }
        length = value;
      } else if (name === "transfer-encoding") {
        coding = coding === undefined ? value.toLowerCase() : `${coding}, ${value}`;
      } else if (name === "connection") {
        head.isLast ||= /(^|,)\s*close\s*(,|$)/i.test(value);
      } else if (name === "retry-after") {
        head.retryAfter = value;
      }
    }
    this.#beginBody(head, length, coding);
  }

  #beginBody(head: Head, length: string | undefined, coding: string | undefined): void {
    if (head.status === 204 || head.status === 304) {
      this.listener.onHead(head);
      this.#end();
      return;
    }
    if (coding === undefined ? length === undefined : coding !== "chunked" || length !== undefined) {
      throw new NotHttpError("the end of its answer is not certain: it has neither one length nor chunks");
    }
    this.#left = Number(length ?? 0);
    if (this.#left > maxBody) {
      throw new NotHttpError(`its answer has ${length} bytes, more than ${maxBody}`);
    }
    this.listener.onHead(head);
    if (coding !== undefined) {
      this.#read = this.#readChunkLine;
    } else if (this.#left === 0) {
      this.#end();
    } else {
      this.#read = this.#readBody;
    }
  }

  #end(): void {
    this.#read = this.#readHead;
    this.listener.onEnd();
  }

  #readBody(bytes: Buffer): number {
    const used = this.#readData(bytes);
    if (this.#left === 0) {
      this.#end();
    }
    return used;
  }

  #readData(bytes: Buffer): number {
    const data = bytes.length > this.#left ? bytes.subarray(0, this.#left) : bytes;
    this.#left -= data.length;
    this.listener.onData(data);
    return data.length;
  }

  #readChunkLine(bytes: Buffer): number {
    const before = this.#start.length;
    const text = this.#until("\r\n", bytes, maxChunkLine);
    if (text === undefined) {
      return bytes.length;
    }
    const size = /^([0-9a-f]{1,8})[ \t]*(?:;.*)?$/i.exec(text)?.[1];
    if (size === undefined) {
      throw new NotHttpError(`a chunk of its answer has the size ${JSON.stringify(text.slice(0, 80))}`);
    }
    this.#left = Number.parseInt(size, 16);
    this.#read = this.#left === 0 ? this.#readTrailer : this.#readChunk;
    return text.length + 2 - before;
  }

  #readChunk(bytes: Buffer): number {
    const used = this.#readData(bytes);
    if (this.#left === 0) {
      this.#read = this.#readChunkEnd;
    }
    return used;
  }

  #readChunkEnd(bytes: Buffer): number {
    const before = this.#start.length;
    if (this.#until("\r\n", bytes, 0) === undefined) {
      return bytes.length;
    }
    this.#read = this.#readChunkLine;
    return 2 - before;
  }

  /** #readTrailer reads the lines after the last chunk, of which the last is empty. */
  #readTrailer(bytes: Buffer): number {
    const before = this.#start.length;
    const text = this.#until("\r\n", bytes, maxHead);
    if (text === undefined) {
      return bytes.length;
    }
    if (text === "") {
      this.#end();
    }
    return text.length + 2 - before;
  }

  /** #until returns the text before a mark, with the start that has arrived before. It keeps an incomplete one. */
  #until(mark: string, bytes: Buffer, limit: number): string | undefined {
    const all = this.#start.length === 0 ? bytes : Buffer.concat([this.#start, bytes]);
    const end = all.indexOf(mark, 0, "latin1");
    if (end > limit || (end < 0 && all.length >= limit + mark.length)) {
      throw new NotHttpError(`a part of its answer has more than ${limit} bytes`);
    }
    if (end < 0) {
      this.#start = all === bytes ? Buffer.from(bytes) : all; // the caller uses its buffer again
      return undefined;
    }
    this.#start = nothing;
    return all.toString("latin1", 0, end);
  }
}
