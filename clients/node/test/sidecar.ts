// A real sidecar, as a process of its own.
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { request } from "node:http";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { Client, type ClientOptions } from "locksidecar";

const binary = process.env["LOCKSIDECAR_BINARY"] ?? resolve(__dirname, "../../../bin/locksidecar");

/** The limit for every wait of a test. */
export const patienceMs = 60_000;

// An interrupted test leaves no process, too.
const running = new Set<ChildProcess>();
process.once("exit", () => {
  for (const child of running) {
    child.kill("SIGKILL");
  }
});

export class Sidecar {
  readonly folder = mkdtempSync(join(tmpdir(), "locksidecar-"));
  readonly socketPath = join(this.folder, "s.sock");
  log = "";
  #process: ChildProcess | undefined;
  readonly #clients: Client[] = [];

  constructor(readonly settings: Record<string, string> = {}) {}

  static async start(settings: Record<string, string> = {}): Promise<Sidecar> {
    const sidecar = new Sidecar(settings);
    await sidecar.start();
    return sidecar;
  }

  /** start waits until a path is answered with 200. */
  async start(path = "/readyz"): Promise<void> {
    if (!existsSync(binary)) {
      throw new Error(`there is no sidecar at ${binary}: run make build`);
    }
    const env: Record<string, string> = { PATH: process.env["PATH"] ?? "", LOCKSIDECAR_SOCKET: this.socketPath };
    for (const [name, value] of Object.entries(this.settings)) {
      env[`LOCKSIDECAR_${name}`] = value;
    }
    const child = spawn(binary, ["serve"], { env, stdio: ["ignore", "pipe", "pipe"] });
    for (const stream of [child.stdout, child.stderr]) {
      stream.on("data", (chunk) => {
        this.log += chunk;
      });
    }
    running.add(child);
    child.once("exit", () => running.delete(child));
    this.#process = child;
    await until("the sidecar is ready", () => {
      if (child.exitCode !== null) {
        throw new Error(`the sidecar has ended with ${child.exitCode}; its log:\n${this.log}`);
      }
      return this.#answers(path);
    });
  }

  /** end ends the process with a signal, and waits until it is gone. */
  async end(signal: NodeJS.Signals = "SIGKILL"): Promise<void> {
    const child = this.#process;
    if (child && child.exitCode === null && child.signalCode === null) {
      const exit = once(child, "exit");
      child.kill(signal);
      await exit;
    }
  }

  /** endNow kills the process and waits until it is gone, without giving the event loop a turn. */
  endNow(): void {
    this.signal("SIGKILL");
    this.#become("Z");
  }

  /** suspend stops the process, and waits until it is. */
  suspend(): void {
    this.signal("SIGSTOP");
    this.#become("T");
  }

  /** #become waits until all threads of the process are in a state. A dead process has closed its sockets. Linux only. */
  #become(state: string): void {
    const pause = new Int32Array(new SharedArrayBuffer(4));
    const folder = `/proc/${this.#process?.pid}`;
    const is = () =>
      readFileSync(`${folder}/stat`, "utf8").split(") ")[1]?.[0] === state &&
      (state !== "Z" || readdirSync(`${folder}/task`).length === 1);
    for (let i = 0; i < patienceMs && !is(); i++) {
      Atomics.wait(pause, 0, 0, 1);
    }
  }

  signal(signal: NodeJS.Signals): void {
    this.#process?.kill(signal);
  }

  client(options: ClientOptions = {}): Client {
    const client = new Client({ socketPath: this.socketPath, ...options });
    this.#clients.push(client);
    return client;
  }

  /** closeClients ends the clients of a test. */
  async closeClients(): Promise<void> {
    await Promise.all(this.#clients.splice(0).map((client) => client.close()));
  }

  async remove(): Promise<void> {
    await this.closeClients();
    await this.end();
    rmSync(this.folder, { recursive: true, force: true });
  }

  #answers(path: string): Promise<boolean> {
    return new Promise((resolve) => {
      const call = request({ socketPath: this.socketPath, path }, (answer) => {
        answer.resume();
        resolve(answer.statusCode === 200);
      });
      call.on("error", () => resolve(false));
      call.end();
    });
  }
}

/** until waits for a condition. */
export async function until(what: string, is: () => Promise<boolean> | boolean): Promise<void> {
  const end = performance.now() + patienceMs;
  while (!(await is())) {
    if (performance.now() > end) {
      throw new Error(`waited ${patienceMs} ms in vain: ${what}`);
    }
    await sleep(5);
  }
}

/** queued waits for a number of waiters in the store. The sidecar itself also counts those that are about to wait. */
export function queued(client: Client, key: string, length: number): Promise<void> {
  return until(
    `${length} wait for ${key}`,
    async () => (await client.get(key, { fresh: true })).queueLength === length,
  );
}

/** aborted waits for a signal, and returns its reason. */
export async function aborted(signal: AbortSignal): Promise<unknown> {
  if (!signal.aborted) {
    const limit = AbortSignal.timeout(patienceMs);
    await Promise.race([
      once(signal, "abort"),
      once(limit, "abort").then(() => Promise.reject(new Error("waited in vain for a signal"))),
    ]);
  }
  return signal.reason;
}
