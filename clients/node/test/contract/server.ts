// The server of a store, which the suite's own program starts.
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";
import { createInterface } from "node:readline";

export class Server {
  url = "";
  #process: ChildProcess | undefined;

  /** start returns when the server serves. The folder is that of the suite. */
  async start(suite: string, store: string): Promise<void> {
    const child = spawn("python3", [join(suite, "curl", "processes.py"), store], {
      stdio: ["pipe", "pipe", "inherit"],
    });
    this.#process = child;
    for await (const line of createInterface(child.stdout)) {
      this.url = line;
      return;
    }
    throw new Error(`the server of the store ${store} did not start`);
  }

  /** stop ends its input, so it ends the server. */
  async stop(): Promise<void> {
    const child = this.#process;
    if (child && child.exitCode === null) {
      const exit = once(child, "exit");
      child.stdin?.end();
      await exit;
    }
  }
}
