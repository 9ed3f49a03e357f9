// A PostgreSQL server in a temporary folder, on a Unix socket only.
import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { chownSync, existsSync, mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { until } from "../sidecar";

export class Postgres {
  readonly folder = mkdtempSync(join(tmpdir(), "lsp-"));
  #process: ChildProcess | undefined;

  get url(): string {
    return `postgres://postgres@/postgres?host=${this.folder}`;
  }

  async start(): Promise<void> {
    const binaries = folderOfBinaries();
    const as = user();
    if (as) {
      chownSync(this.folder, as.uid, as.gid);
    }
    const data = join(this.folder, "data");
    const options = ["-D", data, "-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C"];
    execFileSync(join(binaries, "initdb"), options, { ...as, cwd: this.folder, stdio: ["ignore", "ignore", "pipe"] });
    const server = ["-D", data, "-k", this.folder, "-c", "listen_addresses=", "-c", "fsync=off"];
    this.#process = spawn(join(binaries, "postgres"), server, { ...as, cwd: this.folder, stdio: "ignore" });
    await until("PostgreSQL is ready", () => {
      if (this.#process?.exitCode !== null) {
        throw new Error("PostgreSQL has ended");
      }
      try {
        execFileSync(join(binaries, "pg_isready"), ["-q", "-h", this.folder]);
        return true;
      } catch {
        return false;
      }
    });
  }

  async stop(): Promise<void> {
    if (this.#process?.exitCode === null) {
      const exit = once(this.#process, "exit");
      this.#process.kill("SIGQUIT");
      await exit;
    }
    rmSync(this.folder, { recursive: true, force: true });
  }
}

/** user runs the server, which refuses to run as root. */
function user(): { uid: number; gid: number } | undefined {
  if (process.getuid?.() !== 0) {
    return undefined;
  }
  const id = (flag: string) => Number(execFileSync("id", [flag, "postgres"], { encoding: "utf8" }));
  return { uid: id("-u"), gid: id("-g") };
}

function folderOfBinaries(): string {
  const debian = "/usr/lib/postgresql";
  const versions = existsSync(debian) ? readdirSync(debian).sort().reverse() : [];
  const places = [
    ...versions.map((version) => join(debian, version, "bin")),
    ...(process.env["PATH"] ?? "").split(":"),
  ];
  const place = places.find((folder) => existsSync(join(folder, "initdb")) && existsSync(join(folder, "postgres")));
  if (place === undefined) {
    throw new Error("PostgreSQL's server programs (initdb, postgres) are not installed: apt-get install postgresql");
  }
  return place;
}
