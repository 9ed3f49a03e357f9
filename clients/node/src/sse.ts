import { StringDecoder } from "node:string_decoder";

export interface ServerSentEvent {
  name: string;
  data: string;
}

/** EventParser parses server-sent events in pieces. It ignores comments, `id` and `retry`. */
export class EventParser {
  // A chunk may end inside a character.
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
