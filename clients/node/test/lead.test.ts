import assert from "node:assert/strict";
import { once } from "node:events";
import { after, afterEach, before, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { ClientClosedError, type LockLostError, StopRequestedError, type Term, UnreachableError } from "locksidecar";
import { child, line } from "./processes";
import { aborted, patienceMs, queued, Sidecar, until } from "./sidecar";

let sidecar: Sidecar;
before(async () => {
  sidecar = await Sidecar.start({ ALLOW_FORCE: "true", TTL: "1h" });
});
afterEach(() => sidecar.closeClients());
after(() => sidecar.close());

test("the result of the function ends the campaign", async () => {
  const [a, b] = [sidecar.client(), sidecar.client()];
  assert.equal(await b.leader("result"), null);
  let seen: Term | undefined;
  const token = await a.lead("result", { data: { addr: "a:1" } }, async (term) => {
    seen = term;
    assert.deepEqual(await b.leader("result"), { addr: "a:1" });
    assert.equal((await b.tryAcquire("result")).granted, false);
    assert.equal(term.signal.aborted, false);
    return term.token;
  });
  assert.equal(token, seen?.token);
  assert.ok(seen?.signal.aborted, "what the function has left behind ends, too");
  assert.equal((await b.get("result", { fresh: true })).state, "free");
});

test("an error of the function goes on", async () => {
  const client = sidecar.client();
  await assert.rejects(
    client.lead("error", () => Promise.reject(new Error("mine"))),
    /mine/,
  );
  await assert.rejects(
    client.lead("error", async (term) => {
      await client.stop("error");
      await aborted(term.signal);
      throw new Error("at the end");
    }),
    /at the end/,
  );
  assert.equal((await client.get("error", { fresh: true })).state, "free");
});

for (const end of ["stop", "force"] as const) {
  test(`a campaign follows a term that ended: ${end}`, async () => {
    const [a, b] = [sidecar.client(), sidecar.client()];
    const terms: Term[] = [];
    const leader = a.lead(end, async (term) => {
      terms.push(term);
      if (terms.length === 1) {
        await sleep(patienceMs, undefined, { signal: term.signal }); // throws an AbortError
      }
      return "resigned";
    });
    await until("it leads", () => terms.length === 1);
    if (end === "stop") {
      const rival = b.acquire(end);
      await queued(b, end, 1);
      await b.stop(end, { reason: "deploy" });
      await (await rival).release(); // it was first in the queue
    } else {
      await b.forceRelease(end);
    }
    assert.equal(await leader, "resigned");
    const [first, second] = terms as [Term, Term];
    assert.ok(second.token > first.token);
    assert.ok(
      end === "stop"
        ? first.signal.reason instanceof StopRequestedError && first.lock.lost === null
        : (first.signal.reason as LockLostError).reason === "forced",
    );
    assert.equal((await b.get(end, { fresh: true })).state, "free");
  });
}

test("a signal ends a campaign, and a term", async () => {
  const [a, b] = [sidecar.client(), sidecar.client()];
  const controllers = [new AbortController(), new AbortController()] as const;
  let leads = false;
  const leader = a.lead("signal", { signal: controllers[0].signal }, async (term) => {
    leads = true;
    await once(term.signal, "abort");
  });
  leader.catch(() => {});
  await until("it leads", () => leads);
  const rival = b.lead("signal", { signal: controllers[1].signal }, () => assert.fail("it leads"));
  rival.catch(() => {});
  await queued(a, "signal", 1);
  controllers[1].abort(new Error("rival"));
  await assert.rejects(rival, /rival/);
  await queued(a, "signal", 0);
  controllers[0].abort(new Error("enough"));
  await assert.rejects(leader, /enough/);
  assert.equal((await b.get("signal", { fresh: true })).state, "free");
});

test("close ends a campaign", async () => {
  const [a, b] = [sidecar.client(), sidecar.client()];
  await a.acquire("close");
  const leader = b.lead("close", () => {});
  leader.catch(() => {});
  await queued(a, "close", 1);
  await b.close();
  await assert.rejects(leader, ClientClosedError);
});

test("a campaign goes on after an outage", async () => {
  const nobody = sidecar.client({ socketPath: `${sidecar.folder}/none` });
  await assert.rejects(
    nobody.lead("outage", () => {}),
    UnreachableError,
  );
  const own = await Sidecar.start();
  try {
    // Without reconnection an acquire does not wait for the sidecar. A campaign does.
    const client = own.client({ reconnectMs: 0 });
    const terms: Term[] = [];
    const leader = client.lead("outage", async (term) => {
      terms.push(term);
      if (terms.length === 1) {
        await aborted(term.signal);
        return "not the result";
      }
      return "again";
    });
    await until("it leads", () => terms.length === 1);
    await own.kill();
    assert.equal(((await aborted((terms[0] as Term).signal)) as LockLostError).reason, "disconnected");
    await own.start();
    assert.equal(await leader, "again");
  } finally {
    await own.close();
  }
});

test("watchLeader yields the changes", async () => {
  const [a, b] = [sidecar.client(), sidecar.client()];
  await using leaders = b.watchLeader("watch");
  const next = async () => (await leaders.next()).value;
  assert.equal(await next(), null);
  for (const addr of ["a:1", "b:2"]) {
    // The watcher is told while the term lasts: a holder that is gone is not named.
    assert.deepEqual(await a.lead("watch", { data: { addr } }, next), { addr });
    assert.equal(await next(), null);
  }
  await a.acquire("watch", { data: 1 });
  for await (const data of b.watchLeader("watch")) {
    assert.equal(data, 1);
    break;
  }
  const controller = new AbortController();
  const ended = b.watchLeader("watch", { signal: controller.signal });
  controller.abort(new Error("enough"));
  await assert.rejects(ended.next(), /enough/);
  assert.equal((await ended.next()).done, true);
});

test("the same data is told once", async () => {
  const client = sidecar.client();
  await using leaders = client.watchLeader("same");
  assert.equal((await leaders.next()).value, null);
  for (const data of [1, 1, 2]) {
    await client.acquire("same", { mode: "shared", data }); // an exclusive holder is followed by null
  }
  assert.deepEqual([(await leaders.next()).value, (await leaders.next()).value], [1, 2]);
});

test("kill -9 of the leader elects the next one at once", { timeout: 2 * patienceMs }, async () => {
  const client = sidecar.client();
  const first = child("leader", sidecar.socketPath, "killed leader", "first");
  const token = Number(await line(first));
  const second = child("leader", sidecar.socketPath, "killed leader", "second");
  const elected = line(second);
  await queued(client, "killed leader", 1);
  assert.deepEqual(await client.leader("killed leader"), { name: "first" });
  first.kill("SIGKILL");
  assert.ok(Number(await elected) > token); // the lease would last an hour
  assert.deepEqual(await client.leader("killed leader"), { name: "second" });
  second.kill("SIGKILL");
  await once(second, "exit");
});
