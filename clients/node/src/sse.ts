import { StringDecoder } from "node:string_decoder";

/** An event of a stream. */
export interface ServerSentEvent {
  name: string;
  data: string;
}

/**
 * EventParser takes the bytes of a stream of server-sent events as they come, and returns the events that they complete.
 * Comments, and fields that the API does not use (`id`, `retry`), are left out.
 */
export class EventParser {
  // A character may be cut by the end of a chunk.
  readonly #decoder = new StringDecoder("utf8");
  #rest = "";
  #name = "";
  #data: string[] = [];

  push(chunk: Buffer): ServerSentEvent[] {
    const events: ServerSentEvent[] = [];
    const lines = (this.#rest + this.#decoder.write(chunk)).split("\n");
    this.#rest = lines.pop() as string;
    for (const line of lines) {
      this.#line(line.endsWith("\r") ? line.slice(0, -1) : line, events);
    }
    return events;
  }

  #line(line: string, events: ServerSentEvent[]): void {
    if (line === "") {
      if (this.#data.length > 0) {
        events.push({ name: this.#name || "message", data: this.#data.join("\n") });
      }
      this.#name = "";
      this.#data = [];
      return;
    }
    const colon = line.indexOf(":");
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (field === "event") {
      this.#name = value;
    } else if (field === "data") {
      this.#data.push(value);
    }
  }
}
