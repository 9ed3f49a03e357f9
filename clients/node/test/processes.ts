// Programs of test/children, as processes.
import assert from "node:assert/strict";
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";

export function child(name: string, ...args: string[]): ChildProcess {
  const started = spawn(process.execPath, [join(__dirname, "children", `${name}.js`), ...args], {
    stdio: ["ignore", "pipe", "inherit"],
  });
  started.stdout?.setEncoding("utf8");
  return started;
}

/** starved is a child that may have so many file descriptors. */
export function starved(name: string, descriptors: number, ...args: string[]): ChildProcess {
  const file = join(__dirname, "children", `${name}.js`);
  const command = [`ulimit -n ${descriptors}; exec "$@"`, "sh", process.execPath, file, ...args];
  const started = spawn("sh", ["-c", ...command], { stdio: ["pipe", "pipe", "inherit"] });
  started.stdout?.setEncoding("utf8");
  return started;
}

export async function line(process: ChildProcess): Promise<string> {
  assert.ok(process.stdout);
  return String((await once(process.stdout, "data"))[0]).trim();
}
