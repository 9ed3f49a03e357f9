// Tests of locksidecar/testing, the module with which apps start a sidecar in their own tests.
import assert from "node:assert/strict";
import { chmodSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { ForbiddenError, LockLostError, NotHeldError, TimeoutError, UnreachableError } from "locksidecar";
import { findBinary } from "locksidecar/testing";
import { aborted, patienceMs, Sidecar } from "./sidecar";

test("a lock is lost on request", async () => {
  await using sidecar = await Sidecar.start();
  const lock = await sidecar.client().acquire("key");
  await sidecar.lose("key");
  const reason = await aborted(lock.signal);
  assert.ok(reason instanceof LockLostError);
  assert.equal(reason.reason, "forced");
  await assert.rejects(sidecar.lose("key"), NotHeldError);
});

test("one permit is lost on request", async () => {
  await using sidecar = await Sidecar.start();
  const semaphore = sidecar.client().semaphore("key", 2);
  const [first, second] = [await semaphore.acquire(), await semaphore.acquire()];
  await sidecar.lose("key", { token: first.token });
  await aborted(first.signal);
  assert.equal(second.signal.aborted, false);
});

test("a sidecar hangs and goes on", async () => {
  await using sidecar = await Sidecar.start();
  const client = sidecar.client({ timeoutMs: 200 });
  sidecar.hang();
  await assert.rejects(client.get("key"), TimeoutError);
  sidecar.resume();
  assert.equal((await client.get("key")).state, "free");
});

// The client would wait until its stream has been silent for 45 s.
test("the end does not wait for a sidecar that hangs", { timeout: 20_000 }, async () => {
  const sidecar = await Sidecar.start();
  await sidecar.client({ timeoutMs: 10 * patienceMs }).acquire("key");
  sidecar.hang();
  await sidecar.close();
});

test("a sidecar is away, and comes back without locks", async () => {
  await using sidecar = await Sidecar.start();
  const client = sidecar.client();
  const lock = await client.acquire("key");
  await sidecar.kill();
  await aborted(lock.signal);
  await assert.rejects(client.get("key"), UnreachableError);
  await sidecar.start();
  assert.equal((await client.get("key")).state, "free");
});

test("settings reach it, and a wrong one is named", async () => {
  await using sidecar = await Sidecar.start({ ALLOW_FORCE: "false" });
  await sidecar.client().acquire("key");
  await assert.rejects(sidecar.lose("key"), ForbiddenError);
  await assert.rejects(Sidecar.start({ TTL: "15" }), /has ended with 78.*LOCKSIDECAR_TTL/s);
});

test("where the program is: named, in the package, in PATH, or nowhere", () => {
  const folder = mkdtempSync(join(tmpdir(), "locksidecar-"));
  const { LOCKSIDECAR_BINARY: named, PATH: path } = process.env;
  const place = (file: string, text = "") => {
    mkdirSync(join(folder, file, ".."), { recursive: true });
    writeFileSync(join(folder, file), text);
    chmodSync(join(folder, file), 0o755);
    return join(folder, file);
  };
  const home = process.cwd();
  try {
    process.env["LOCKSIDECAR_BINARY"] = join(folder, "none");
    assert.throws(findBinary, /none is no program: run npm install --save-dev @locksidecar\/server/);
    process.env["LOCKSIDECAR_BINARY"] = "bin/none"; // the working directory of a test is easily another one
    assert.throws(findBinary, { message: new RegExp(`^LOCKSIDECAR_BINARY=${home}/bin/none is no program`) });
    delete process.env["LOCKSIDECAR_BINARY"];
    process.env["PATH"] = folder;
    assert.throws(findBinary, /there is no program locksidecar/);
    const inPath = place("locksidecar");
    assert.equal(findBinary(), inPath);
    process.chdir(folder);
    place("node_modules/@locksidecar/server/package.json", "{}");
    const inPackage = place(`node_modules/@locksidecar/server-${process.platform}-${process.arch}/bin/locksidecar`);
    assert.equal(findBinary(), inPackage);
  } finally {
    process.chdir(home);
    Object.assign(process.env, { PATH: path, LOCKSIDECAR_BINARY: named });
    rmSync(folder, { recursive: true });
  }
});
