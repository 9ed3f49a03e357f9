// Runs the contract suite through the client, on all stores, or on those of CONTRACT_STORES. With CONTRACT_OVER=tcp the client calls the sidecar over
// TCP, with TLS and a token.
// usage: run.js [folder of the suite] [part of a case's name]
import { randomBytes } from "node:crypto";
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { parse } from "yaml";
import { TlsSidecar } from "../certificates";
import { Sidecar } from "../sidecar";
import type { Members } from "./match";
import { Player } from "./player";
import { Server } from "./server";

interface Case {
  name: string;
  features?: string[];
  steps: Members[];
}

interface File {
  about: string;
  sidecar?: Record<string, string>;
  ready?: boolean;
  cases: Case[];
}

// Settings that name a store, in place of our own.
const given: Record<string, string> | undefined = JSON.parse(process.env["CONTRACT_STORE"] ?? "null") ?? undefined;
const stores = given ? ["given"] : (process.env["CONTRACT_STORES"] ?? "memory postgres etcd mysql redis").split(" ");

const over = process.env["CONTRACT_OVER"] === "tcp" ? " over TCP" : "";

const totals = { passed: 0, notRun: 0, failed: 0 };

function say(line: string): void {
  process.stdout.write(`${line}\n`);
}

async function main(): Promise<void> {
  const suite = process.argv[2] ?? resolve(__dirname, "../../../contract");
  const folder = join(suite, "cases");
  const only = process.argv[3] ?? "";
  if (!existsSync(folder)) {
    throw new Error(`there are no cases in ${folder}: name the folder of the contract suite`);
  }
  const files = readdirSync(folder)
    .filter((name) => name.endsWith(".yaml"))
    .sort()
    .map((name) => ({ name, file: load(join(folder, name)) }));
  let bad = false;
  for (const store of stores) {
    const server = given ? undefined : new Server();
    Object.assign(totals, { passed: 0, notRun: 0, failed: 0 });
    try {
      await server?.start(suite, store);
      for (const { name, file } of files) {
        if (file.sidecar?.["STORE_URL"] && (given || store !== stores[0])) {
          continue; // it names its own store, so it runs once
        }
        await play(name, file, given ?? { STORE_URL: server?.url ?? "" }, only);
      }
    } finally {
      await server?.stop();
    }
    say(`contract, node, ${store}${over}: ${totals.passed} passed, ${totals.notRun} not run, ${totals.failed} failed`);
    bad ||= totals.failed + totals.notRun > 0 || totals.passed === 0;
  }
  say(`contract, node${over}: ${bad ? "FAILED" : "ok"}`);
  process.exitCode = bad ? 1 : 0;
}

function load(path: string): File {
  const file = parse(readFileSync(path, "utf8")) as File;
  const check = (what: string, has: object, known: string[]): void => {
    const unknown = Object.keys(has).filter((member) => !known.includes(member));
    if (unknown.length > 0) {
      throw new Error(`${path}: ${what} does not have ${unknown.join(", ")}`);
    }
  };
  check("a file", file, ["about", "sidecar", "ready", "cases"]);
  for (const one of file.cases) {
    check(`the case ${one.name}`, one, ["name", "features", "steps"]);
  }
  return file;
}

async function play(name: string, file: File, store: Record<string, string>, only: string): Promise<void> {
  const cases = file.cases.filter((one) => one.name.includes(only));
  if (cases.length === 0) {
    return;
  }
  const settings = { LOG_LEVEL: "warn", ALLOW_FORCE: "false", ...store, NAMESPACE: name, ...file.sidecar };
  const sidecar = new (over ? TlsSidecar : Sidecar)(settings);
  try {
    await sidecar.start({ ready: file.ready !== false });
    const { features } = await sidecar.client().describe();
    for (const one of cases) {
      const missing = one.features?.filter((feature) => !features.includes(feature)) ?? [];
      if (missing.length > 0) {
        totals.notRun++;
        say(`not run: ${name}: ${one.name}: the sidecar lacks ${missing.join(", ")}`);
        continue;
      }
      const wrong = await attempt(sidecar, one);
      if (wrong === undefined) {
        totals.passed++;
      } else {
        totals.failed++;
        say(`FAILED: ${name}: ${one.name}: ${wrong}`);
      }
    }
  } finally {
    await sidecar.close();
  }
}

async function attempt(sidecar: Sidecar, one: Case): Promise<string | undefined> {
  const player = new Player(sidecar, `${randomBytes(4).toString("hex")}-`);
  try {
    return await player.play(one.steps);
  } catch (error) {
    return String(error);
  } finally {
    await player.end();
  }
}

main().catch((error) => {
  process.stderr.write(`contract: ${error instanceof Error ? error.stack : error}\n`);
  process.exitCode = 1;
});
