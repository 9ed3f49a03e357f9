// A real sidecar for the tests of an app, which misbehaves on request.
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { accessSync, constants, existsSync, mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { request } from "node:http";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { delimiter, join, resolve } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { Client, type ClientOptions } from "./index.js";

/** What a sidecar must do at once is waited for until then: a busy machine may need long. */
const patienceMs = 60_000;

// A test that is interrupted leaves no process.
const running = new Set<ChildProcess>();
process.once("exit", () => {
  for (const child of running) {
    child.kill("SIGKILL");
  }
});

/**
 * findBinary returns where the program `locksidecar` is: `LOCKSIDECAR_BINARY`, else in the package `@locksidecar/server`, else in `PATH`. Throws an Error if it is nowhere.
 */
export function findBinary(): string {
  const named = process.env["LOCKSIDECAR_BINARY"];
  const found = named || inPackage() || (process.env["PATH"] ?? "").split(delimiter).map(program).find(isProgram);
  if (!found || !isProgram(found)) {
    const where = named ? `LOCKSIDECAR_BINARY=${resolve(named)} is no program` : "there is no program locksidecar";
    throw new Error(`${where}: run npm install --save-dev @locksidecar/server, or let LOCKSIDECAR_BINARY name it`);
  }
  return found;
}

const program = (folder: string) => join(folder, "locksidecar");

function isProgram(path: string): boolean {
  try {
    accessSync(path, constants.X_OK);
    return true;
  } catch {
    return false;
  }
}

/** inPackage finds the program itself, because a signal to the script of `@locksidecar/server` would only reach the script. */
function inPackage(): string | undefined {
  for (const from of [resolve("package.json"), __filename]) {
    try {
      const server = createRequire(from).resolve("@locksidecar/server/package.json");
      return createRequire(server).resolve(`@locksidecar/server-${process.platform}-${process.arch}/bin/locksidecar`);
    } catch {
      // it is not installed there
    }
  }
  return undefined;
}

/** What `signal` sends. The type is not that of Node, because an app's compiler may not have Node's types. */
export type Signal = "SIGCONT" | "SIGHUP" | "SIGINT" | "SIGKILL" | "SIGSTOP" | "SIGTERM";

/**
 * Sidecar is a sidecar in a process of its own, on a socket of its own. Its store is `memory://`, so its locks end with it. Anybody may break its locks, and a stop waits for nobody.
 *
 * ```ts
 * await using sidecar = await Sidecar.start();
 * const client = sidecar.client();
 * const lock = await client.acquire("report");
 * await sidecar.lose("report"); // now lock.signal is aborted
 * ```
 */
export class Sidecar {
  /** The folder of its socket, which ends with `close`. */
  readonly folder = mkdtempSync(join(tmpdir(), "locksidecar-"));
  /** The socket, for `new Client({ socketPath })`. */
  readonly socketPath = join(this.folder, "s.sock");
  /** What a process must find in its environment, so that its clients use this sidecar. */
  readonly env: Readonly<Record<string, string>> = {
    LOCKSIDECAR_SOCKET: this.socketPath,
    LOCKSIDECAR_URL: "", // it would win
  };
  /** What the sidecar has logged. */
  log = "";
  #process: ChildProcess | undefined;
  readonly #clients: Client[] = [];

  /** Its settings are those of docs/configuration.md, without the prefix: `new Sidecar({ TTL: "2s" })`. It runs after `start`. */
  constructor(readonly settings: Readonly<Record<string, string>> = {}) {}

  /** start makes and starts a sidecar, and returns when it grants locks. Throws an Error with its log if it ends. */
  static async start(settings: Readonly<Record<string, string>> = {}): Promise<Sidecar> {
    const sidecar = new Sidecar(settings);
    try {
      await sidecar.start();
    } catch (error) {
      await sidecar.close();
      throw error;
    }
    return sidecar;
  }

  /**
   * start starts the sidecar, also again, and returns when it grants locks, or with `ready: false` when it answers. Throws an Error with its log if it ends.
   */
  async start({ ready = true }: { ready?: boolean } = {}): Promise<void> {
    const settings = { STORE_URL: "memory://", ALLOW_FORCE: "true", DRAIN_TIMEOUT: "0s", ...this.settings };
    const env: Record<string, string> = { PATH: process.env["PATH"] ?? "", LOCKSIDECAR_SOCKET: this.socketPath };
    for (const [name, value] of Object.entries(settings)) {
      env[`LOCKSIDECAR_${name}`] = value;
    }
    const child = spawn(findBinary(), ["serve"], { env, stdio: ["ignore", "pipe", "pipe"] });
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
        throw new Error(`the sidecar has ended with ${child.exitCode}. Its log:\n${this.log}`);
      }
      return this.#answers(ready ? "/readyz" : "/v1");
    });
  }

  /** client makes a client of this sidecar, which `close` closes. */
  client(options: ClientOptions = {}): Client {
    const client = new Client({ socketPath: this.socketPath, ...options });
    this.#clients.push(client);
    return client;
  }

  /** stop stops the sidecar as Kubernetes would (SIGTERM), and returns when it is gone. Its holders lose their locks. */
  stop(): Promise<void> {
    return this.#end("SIGTERM");
  }

  /** kill kills the sidecar, as a crash would. Until `start` it is away: no call is answered. */
  kill(): Promise<void> {
    return this.#end("SIGKILL");
  }

  /** killNow is kill without a turn of the event loop, so that no code of the app runs meanwhile. Linux only. */
  killNow(): void {
    this.signal("SIGKILL");
    this.#become("Z");
  }

  /** hang lets the sidecar hang until `resume`: calls are accepted and not answered, and leases run out. */
  hang(): void {
    this.signal("SIGSTOP");
    this.#become("T");
  }

  /** resume lets a sidecar go on that hangs. */
  resume(): void {
    this.signal("SIGCONT");
  }

  /** signal sends a signal to the process. */
  signal(signal: Signal): void {
    this.#process?.kill(signal);
  }

  /**
   * lose takes a lock from its holder, who is told `lost` with the reason `forced`. Of a shared lock or a semaphore all holders lose it, or with a token one. Throws a `NotHeldError`.
   */
  async lose(key: string, options: { token?: number | undefined } = {}): Promise<void> {
    const client = new Client({ socketPath: this.socketPath, name: "test" });
    try {
      await client.forceRelease(key, options);
    } finally {
      await client.close();
    }
  }

  /** closeClients closes the clients that `client` has made. */
  async closeClients(): Promise<void> {
    await Promise.all(this.#clients.splice(0).map((client) => client.close()));
  }

  /** close closes the clients, kills the sidecar if it runs, and removes its files. */
  async close(): Promise<void> {
    this.resume(); // if it hangs, each client would wait for its answer in vain
    await this.closeClients();
    await this.kill();
    rmSync(this.folder, { recursive: true, force: true });
  }

  /** The end of `await using` is `close`. */
  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  async #end(signal: NodeJS.Signals): Promise<void> {
    const child = this.#process;
    if (child && child.exitCode === null && child.signalCode === null) {
      const exit = once(child, "exit");
      child.kill("SIGCONT"); // it may hang
      child.kill(signal);
      await exit;
    }
  }

  /** #become waits until all threads of the process are in a state. A dead process has closed its sockets. */
  #become(state: string): void {
    const folder = `/proc/${this.#process?.pid}`;
    if (!existsSync(folder)) {
      return; // another system than Linux
    }
    const pause = new Int32Array(new SharedArrayBuffer(4));
    const is = (path: string) => readFileSync(`${path}/stat`, "utf8").split(") ")[1]?.[0] === state;
    const all = () => {
      const threads = readdirSync(`${folder}/task`);
      return state === "Z" ? is(folder) && threads.length === 1 : threads.every((one) => is(`${folder}/task/${one}`));
    };
    for (let i = 0; i < patienceMs && !all(); i++) {
      Atomics.wait(pause, 0, 0, 1);
    }
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

async function until(what: string, is: () => Promise<boolean>): Promise<void> {
  const end = performance.now() + patienceMs;
  while (!(await is())) {
    if (performance.now() > end) {
      throw new Error(`waited ${patienceMs} ms in vain: ${what}`);
    }
    await sleep(5);
  }
}
