// A proxy between a client and its sidecar, which loses requests and answers.
import { once } from "node:events";
import { createConnection, createServer, type Server, type Socket } from "node:net";

/**
 * What happens to a request: `cut` closes the connection in place of it, `swallow` keeps it from the sidecar, `mute` closes the
 * connection in place of the answer, `ended` answers that the session is over. By default it passes.
 */
export type Fate = "cut" | "swallow" | "mute" | "ended" | undefined;

export class Between {
  fate: (head: string) => Fate = () => undefined;
  readonly #sockets = new Set<Socket>();

  private constructor(
    readonly socketPath: string,
    readonly server: Server,
  ) {}

  static async start(socketPath: string): Promise<Between> {
    const server = createServer();
    const between = new Between(`${socketPath}.between`, server);
    server.on("connection", (client) => between.#connect(client, socketPath));
    await once(server.listen(between.socketPath), "listening");
    return between;
  }

  #connect(client: Socket, socketPath: string): void {
    const sidecar = createConnection(socketPath);
    const both = [client, sidecar];
    const end = () => both.forEach((socket) => void socket.destroy());
    let mute = false;
    for (const socket of both) {
      this.#sockets.add(socket);
      socket.on("error", end).on("close", end);
    }
    client.on("data", (chunk) => {
      const fate = this.fate(chunk.toString("latin1"));
      mute = fate === "mute";
      if (fate === "cut") {
        end();
      } else if (fate === "ended") {
        const problem = JSON.stringify({ status: 410, code: "session_ended", detail: "the session is over" });
        client.write(
          `HTTP/1.1 410 Gone\r\nContent-Type: application/problem+json\r\nContent-Length: ${problem.length}\r\n\r\n${problem}`,
        );
      } else if (fate !== "swallow") {
        sidecar.write(chunk);
      }
    });
    sidecar.on("data", (chunk) => (mute ? end() : client.write(chunk)));
  }

  close(): void {
    this.server.close();
    for (const socket of this.#sockets) {
      socket.destroy();
    }
  }
}
