// The tarball, in an empty folder.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, realpathSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { after, before, describe, test } from "node:test";
import { Sidecar } from "./sidecar";

const root = dirname(__dirname);
const { version } = JSON.parse(readFileSync(join(root, "package.json"), "utf8")) as { version: string };

describe("the tarball", { concurrency: false }, () => {
  const folder = realpathSync(mkdtempSync(join(tmpdir(), "locksidecar-package-")));
  let sidecar: Sidecar;

  function run(command: string, ...args: string[]): string {
    const env = { PATH: process.env["PATH"], HOME: folder, LOCKSIDECAR_SOCKET: sidecar.socketPath };
    try {
      return execFileSync(command, args, { cwd: folder, env, encoding: "utf8", stdio: ["ignore", "pipe", "pipe"] });
    } catch (error) {
      const { stdout, stderr } = error as { stdout: string; stderr: string };
      throw new Error(`${command} ${args.join(" ")} failed:\n${stdout}${stderr}`);
    }
  }

  before(async () => {
    sidecar = await Sidecar.start();
    writeFileSync(join(folder, "package.json"), '{"private":true}');
    const tarball = join(root, "build", `locksidecar-${version}.tgz`);
    run("npm", "install", "--offline", "--no-audit", "--no-fund", tarball);
  });
  after(async () => {
    await sidecar.close();
    rmSync(folder, { recursive: true });
  });

  test("has no dependencies, and has its documents", () => {
    const installed = run("ls", "node_modules").split("\n").filter(Boolean);
    assert.deepEqual(installed, ["locksidecar"]);
    const files = run("ls", "node_modules/locksidecar").split("\n");
    for (const name of ["LICENSE", "README.md", "dist", "package.json", "src"]) {
      assert.ok(files.includes(name), name);
    }
  });

  test("names its source and where to report faults", () => {
    const { repository, homepage, bugs } = JSON.parse(
      readFileSync(join(folder, "node_modules/locksidecar/package.json"), "utf8"),
    );
    assert.equal(repository.directory, "clients/node");
    for (const url of [repository.url, homepage, bugs.url ?? bugs]) {
      assert.match(url, /https:\/\/github\.com\/locksidecar\/locksidecar/);
    }
  });

  test("import", () => {
    writeFileSync(
      join(folder, "app.mjs"),
      `import { Client, LockHeldError } from 'locksidecar';
       const client = new Client();
       const lock = await client.acquire('import');
       const no = await client.acquire('import', { waitMs: 0 }).catch((error) => error);
       console.log(lock.key, no instanceof LockHeldError);`,
    );
    assert.equal(run("node", "app.mjs"), "import true\n");
  });

  test("require", () => {
    writeFileSync(
      join(folder, "app.cjs"),
      `const { Client } = require('locksidecar');
       new Client().lock('require', (lock) => console.log(lock.key));`,
    );
    assert.equal(run("node", "app.cjs"), "require\n");
  });

  test("import and require are the same classes, all of them", () => {
    writeFileSync(
      join(folder, "both.mjs"),
      `import { createRequire } from 'node:module';
       import * as esm from 'locksidecar';
       const cjs = createRequire(import.meta.url)('locksidecar');
       const names = Object.keys(cjs).sort();
       console.log(names.every((name) => esm[name] === cjs[name]), names.join());`,
    );
    const [same, names] = run("node", "both.mjs").trim().split(" ");
    assert.equal(same, "true");
    assert.deepEqual(names?.split(","), [
      ...["BadAnswerError", "Client", "ClientClosedError", "ConnectionError", "ConnectionLostError", "DrainingError"],
      ...["ForbiddenError", "InvalidRequestError", "LimitMismatchError", "LimitReachedError"],
      ...["Lock", "LockGroup", "LockHeldError", "LockLostError"],
      ...["LocksidecarError", "NotGrantedError", "NotHeldError", "NotHolderError", "NotSupportedError"],
      ...["Semaphore", "SessionEndedError", "StopRequestedError", "StoreUnavailableError"],
      ...["TimeoutError", "TooLargeError"],
      ...["UnavailableError", "UnreachableError", "UnsupportedError", "WaitTimeoutError"],
    ]);
  });

  test("the integrations, by import and by require, without their frameworks", () => {
    writeFileSync(
      join(folder, "contrib.mjs"),
      `import { createRequire } from 'node:module';
       import { fleetCron } from 'locksidecar/contrib/nestjs';
       import { FleetCoordinator } from 'locksidecar/contrib/node-cron';
       import { takeTick } from 'locksidecar/contrib/fleet';
       import { Sidecar } from 'locksidecar/testing';
       const require = createRequire(import.meta.url);
       console.log(require('locksidecar/contrib/node-cron').FleetCoordinator === FleetCoordinator,
         require('locksidecar/contrib/nestjs').fleetCron === fleetCron,
         require('locksidecar/contrib/fleet').takeTick === takeTick, require('locksidecar/testing').Sidecar === Sidecar);`,
    );
    assert.equal(run("node", "contrib.mjs"), "true true true true\n");
  });

  test("spans of an app with OpenTelemetry, by import and by require", () => {
    symlinkSync(join(root, "node_modules", "@opentelemetry"), join(folder, "node_modules", "@opentelemetry"));
    const imports = {
      mjs: `import { Client } from 'locksidecar';
            import { trace } from '@opentelemetry/api';
            import * as sdk from '@opentelemetry/sdk-trace-base';`,
      cjs: `const { Client } = require('locksidecar');
            const { trace } = require('@opentelemetry/api');
            const sdk = require('@opentelemetry/sdk-trace-base');`,
    };
    for (const [extension, imported] of Object.entries(imports)) {
      writeFileSync(
        join(folder, `traced.${extension}`),
        `${imported}
         const exporter = new sdk.InMemorySpanExporter();
         const spanProcessors = [new sdk.SimpleSpanProcessor(exporter)];
         trace.setGlobalTracerProvider(new sdk.BasicTracerProvider({ spanProcessors }));
         new Client().lock('traced', () => {}).then(() =>
           console.log(exporter.getFinishedSpans().map((span) => span.name).join()));`,
      );
      assert.equal(run("node", `traced.${extension}`), "lock.acquire,lock.release\n");
    }
  });

  test("Symbol.asyncDispose is filled in where Node lacks it", () => {
    // Node's own cannot be removed, so another Symbol replaces it, as in Node 20.0.
    writeFileSync(
      join(folder, "old.cjs"),
      `const own = Symbol;
       globalThis.Symbol = Object.assign((text) => own(text), { for: own.for, iterator: own.iterator, asyncIterator: own.asyncIterator, hasInstance: own.hasInstance });
       const { Lock } = require('locksidecar');
       console.log(typeof Symbol.asyncDispose, typeof Lock.prototype[Symbol.asyncDispose]);`,
    );
    assert.equal(run("node", "old.cjs"), "symbol function\n");
  });

  const program = `import { Client, type Lock } from 'locksidecar';
    import type { Sidecar } from 'locksidecar/testing';
    export const freeze = (sidecar: Sidecar): void => sidecar.signal('SIGSTOP');
    async function main(): Promise<void> {
      await using client = new Client();
      await using lock: Lock = await client.acquire('typed', { waitMs: 60_000, signal: AbortSignal.timeout(60_000) });
      console.log(lock.key);
    }
    void main();`;

  const libraries = {
    "a library with DOM and no types of Node": ["--lib", "es2022,dom"],
    "types of Node": ["--lib", "es2022", "--types", "node", "--typeRoots", join(root, "node_modules", "@types")],
  };
  for (const [name, flags] of Object.entries(libraries)) {
    for (const extension of ["mts", "cts"]) {
      test(`types, strict, ${name}, ${extension}; await using runs`, () => {
        const out = extension.replace("t", "j");
        writeFileSync(join(folder, `typed.${extension}`), program);
        const tsc = join(root, "node_modules", ".bin", "tsc");
        const strict = ["--strict", "--skipLibCheck", "false", "--exactOptionalPropertyTypes", "--target", "es2022"];
        mkdirSync(join(folder, "out"), { recursive: true });
        run(tsc, ...strict, "--module", "nodenext", "--outDir", "out", ...flags, `typed.${extension}`);
        assert.equal(run("node", `out/typed.${out}`), "typed\n");
      });
    }
  }
});
