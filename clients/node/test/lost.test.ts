// Answers that are lost between the sidecar and the client.
import assert from "node:assert/strict";
import { subscribe, unsubscribe } from "node:diagnostics_channel";
import { connect, createServer, type Server, type Socket } from "node:net";
import { join } from "node:path";
import { after, afterEach, before, test } from "node:test";
import { ConnectionLostError } from "locksidecar";
import { Sidecar, until } from "./sidecar";

let sidecar: Sidecar;
let server: Server;
let path: string;
/** How many answers to acquires are lost. The sidecar's side of such a connection stays open. */
let lose = 0;
let asked: string[] = [];
const sockets: Socket[] = [];

function relay(client: Socket): void {
  const upstream = connect(sidecar.socketPath);
  sockets.push(client, upstream);
  let lost = false;
  client.on("data", (data) => {
    const text = data.toString();
    asked.push(text.split(" HTTP/")[0] as string);
    if (lose > 0 && (text.startsWith("PUT ") || text.startsWith("POST /v1/locks"))) {
      lose--;
      lost = true;
    }
    upstream.write(data);
  });
  upstream.on("data", (data) => (lost ? client.destroy() : client.write(data)));
  client.on("close", () => (lost ? undefined : upstream.destroy()));
  upstream.on("close", () => client.destroy());
  client.on("error", () => {});
  upstream.on("error", () => {});
}

before(async () => {
  sidecar = await Sidecar.start({ TTL: "1h" });
  path = join(sidecar.folder, "relay.sock");
  server = createServer(relay);
  await new Promise<void>((resolve) => server.listen(path, resolve));
});
afterEach(async () => {
  await sidecar.closeClients();
  lose = 0;
  asked = [];
});
after(async () => {
  server.close();
  for (const socket of sockets) {
    socket.destroy();
  }
  await sidecar.close();
});

async function free(key: string): Promise<void> {
  const looker = sidecar.client();
  await until(`${key} is free`, async () => (await looker.get(key, { fresh: true })).state === "free");
}

for (const bind of ["session", "ttl"] as const) {
  test(`a call is repeated and gets the same grant: ${bind}`, async () => {
    const client = sidecar.client({ socketPath: path });
    await client.connect();
    for (const waitMs of [undefined, 0]) {
      lose = 1;
      const lock = await client.acquire("again", { bind, waitMs, ttlMs: 60_000 });
      assert.equal((await lock.check()).reentry, 1);
      await lock.release();
      await free("again");
    }
    assert.equal(asked.filter((line) => line.startsWith("PUT ")).length, 4);
  });

  test(`a call without an answer withdraws its grant: ${bind}`, async () => {
    const client = sidecar.client({ socketPath: path });
    await client.connect();
    lose = 2; // it asks twice
    await assert.rejects(client.acquire("gone", { bind, waitMs: 0, ttlMs: 60_000 }), ConnectionLostError);
    await free("gone");
    lose = 2;
    const keys = ["gone", "gone too"];
    await assert.rejects(client.acquireMany(keys, { bind, waitMs: 0, ttlMs: 60_000 }), ConnectionLostError);
    await free("gone");
    await free("gone too");
  });
}

test("a repeated reentry is counted once", async () => {
  const client = sidecar.client({ socketPath: path });
  await client.lock("twice", { reentrant: true }, async (outer) => {
    lose = 1;
    await client.lock("twice", { reentrant: true }, async (inner) => assert.equal(inner.reentry, 2));
    assert.equal((await outer.check()).reentry, 1);
  });
  await free("twice");
});

test("a grant under a request id of the app stays", async () => {
  const client = sidecar.client({ socketPath: path });
  const named = { bind: "ttl", ttlMs: 60_000, requestId: "0c57d5d8-4b5c-4d8e-9a52-6b3c2f0a9d01" } as const;
  const first = await client.acquire("named", named);
  lose = 2;
  await assert.rejects(client.acquire("named", { ...named, waitMs: 0 }), ConnectionLostError);
  assert.equal((await first.check()).token, first.token);
  assert.equal((await client.acquire("named", named)).token, first.token);
  const controller = new AbortController();
  const answered = (): void => controller.abort(new RangeError("just now"));
  const again = client.acquire("named", { ...named, signal: controller.signal });
  subscribe("locksidecar.answer", answered);
  await assert.rejects(again, RangeError);
  unsubscribe("locksidecar.answer", answered);
  assert.equal((await client.acquire("named", named)).token, first.token);
  await first.release();
});
