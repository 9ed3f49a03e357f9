// The examples in the documents compile and run against a sidecar, but not those of frameworks: examples/ has programs for these.
import assert from "node:assert/strict";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { after, before, describe, test } from "node:test";
import { Client } from "locksidecar";
import ts from "typescript";
import { Sidecar } from "./sidecar";

const root = dirname(__dirname);
const pages = { "README.md": 1, "docs/get-started.md": 1, "docs/guide.md": 12, "clients/node/README.md": 5 };

const folder = join(root, "build", "pages");

class Done extends Error {}

const imports = `import assert from "node:assert/strict"; import { Client as Of } from "locksidecar"; import { Sidecar } from "locksidecar/testing";`;

/** What the examples use and do not have. An example that goes on for ever ends with its first work. */
const around = `
  type Work = (...args: any[]) => Promise<any>;
  interface World { write: Work; work: Work; render: Work; read: Work; pull: Work; transfer: Work; schedule: Work; fetch: Work;
    console: { log(...args: any[]): void }; log: { warn(...args: any[]): void }; db: { query: Work }; parts: string[]; url: string }
`;

/** examples returns the blocks of a page. */
function examples(page: string): string[] {
  const text = readFileSync(join(root, "../..", page), "utf8");
  const blocks = [...text.matchAll(/^```[jt]s\n(.*?)^```$/gms)].map((block) => block[1] ?? "");
  return blocks.filter((code) => !code.includes("locksidecar/contrib"));
}

const nameOf = (page: string) => page.replace(/\W/g, "-");

type Example = (world: object, Client: object, client: Client) => Promise<void>;

/** compile makes a module of each page, whose functions are the blocks. */
function compile(): void {
  mkdirSync(folder, { recursive: true });
  const names =
    "{ write, work, render, read, pull, transfer, schedule, fetch, console, log, db, parts, url }: World, Client: typeof Of, client: Of";
  const files = Object.keys(pages).map((page) => {
    const functions = examples(page).map(
      (code, i) => `export async function example${i}(${names}) {\n{\n${code.replace(/^import .*$/gm, "")}\n}\n}`,
    );
    const file = join(folder, `${nameOf(page)}.ts`);
    writeFileSync(file, `${imports}\n${around}\n${functions.join("\n")}`);
    return file;
  });
  const { config } = ts.readConfigFile(join(root, "tsconfig.base.json"), ts.sys.readFile);
  const changed = { noUnusedLocals: false, noUnusedParameters: false, sourceMap: false };
  const { options } = ts.convertCompilerOptionsFromJson({ ...config.compilerOptions, ...changed }, root);
  const program = ts.createProgram(files, { ...options, rootDir: folder, outDir: folder });
  const found = [...ts.getPreEmitDiagnostics(program), ...program.emit().diagnostics];
  const host = {
    getCanonicalFileName: (path: string) => path,
    getCurrentDirectory: () => root,
    getNewLine: () => "\n",
  };
  assert.equal(ts.formatDiagnostics(found, host), "");
}

describe("the examples of", { concurrency: false }, () => {
  let sidecar: Sidecar;
  before(async () => {
    compile();
    sidecar = await Sidecar.start();
    process.env["LOCKSIDECAR_SOCKET"] = sidecar.socketPath;
  });
  after(async () => {
    delete process.env["LOCKSIDECAR_SOCKET"];
    await sidecar.close();
  });

  for (const [page, number] of Object.entries(pages)) {
    test(page, async () => {
      const blocks = examples(page);
      assert.equal(
        blocks.length,
        number,
        "the number of examples in pages is wrong, or the test reads the page wrongly",
      );
      const run: Example[] = Object.values(require(join(folder, `${nameOf(page)}.js`)));
      for (const [i, code] of blocks.entries()) {
        const endless = code.includes(".lead(") || code.includes("client.events(");
        let done = 0;
        const work = () => {
          done++;
          if (endless) {
            throw new Done();
          }
          return "done";
        };
        const names = ["write", "work", "render", "read", "pull", "transfer", "schedule", "fetch"];
        const world = {
          ...Object.fromEntries(names.map((name) => [name, async () => work()])),
          console: { log: work },
          log: { warn: work },
          db: { query: work },
          parts: ["a", "b"],
          url: "",
        };
        const client = new Client();
        const other = await client.acquire("account:of-a-list");
        await run[i]?.(world, Client, client).catch((error: unknown) =>
          assert.ok(error instanceof Done && endless, error as Error),
        );
        await other.release();
        await client.close();
        assert.ok(done > 0 || /const client = new Client\(\)|Sidecar.start/.test(code), `this did no work:\n${code}`);
      }
    });
  }
});
