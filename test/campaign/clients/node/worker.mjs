// A program of the campaign: `node worker.mjs TASK`, with what it is to do as JSON. Tasks of one process, whose calls are aborted.
import { openSync, writeSync } from "node:fs";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";
import { Client, LocksidecarError } from "../../../../clients/node/dist/esm.mjs";

const task = JSON.parse(process.argv[2]);
const keys = ["k0", "k1", "k2", "k3"];
const known = ["withLock", "withLock", "acquire", "acquire", "try", "many", "semaphore", "permit", "nested"];
const forms = task.forms?.length ? known.filter((form) => task.forms.includes(form)) : known;
const limit = 2;
// How long an object that all tasks use may take until it was granted again, when nothing fails.
const again = 20_000;
const ttlMs = task.ttl * 1000;

const client = new Client({
  socketPath: task.socket,
  name: task.name,
  timeoutMs: task.timeout * 1000,
  reconnectMs: task.reconnect * 1000,
});
const semaphore = client.semaphore("s0", limit);

process.on("SIGTERM", () => process.exit(0));

/** The campaign's abort. */
class Struck extends Error {}

/** The history: a line for each beginning and each end. */
const file = openSync(task.records, "a");
let number = 0;
const now = () => Number(process.hrtime.bigint() + BigInt(task.offset));
const write = (op) => writeSync(file, `${JSON.stringify(op)}\n`);

function begin(kind, actor, fields = {}) {
  const id = `${task.name}-${++number}`;
  const { name: app, program, sidecar } = task;
  const op = { id, app, program, sidecar, pid: process.pid, actor, kind, call: now(), ...fields };
  write(op);
  return op;
}

function end(op, outcome, fields = {}) {
  Object.assign(op, fields, { outcome, return: now() });
  write(op);
}

function failed(op, error) {
  if (error instanceof Struck) {
    end(op, "cancelled");
  } else if (op.kind === "acquire" && (op.wait > 0 ? error.code === "wait_timeout" : error.code === "held")) {
    end(op, "timeout");
  } else {
    const name = error instanceof LocksidecarError ? error.code : `${error?.name} ${error?.code ?? ""}`.trim();
    end(op, "failed", { error: name, text: String(error?.message ?? error) });
  }
}

/** A generator of numbers from 0 to 1 (mulberry32). */
function random(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}

const choice = (rng, list) => list[Math.floor(rng() * list.length)];

/** One acquire, and what becomes of it. */
class Hold {
  constructor(actor, rng, op, signal) {
    Object.assign(this, { actor, rng, op, released: undefined });
    this.options = { waitMs: op.wait, ttlMs, signal, data: op.id };
  }

  got(locks) {
    end(this.op, "granted", { keys: locks.map((one) => one.key), tokens: locks.map((one) => one.token) });
    for (const { key, signal } of locks) {
      const lost = () => end(begin("lost", this.actor, { hold: this.op.id, keys: [key] }), "done");
      signal.aborted ? lost() : signal.addEventListener("abort", lost, { once: true });
    }
  }

  async rest() {
    await sleep(this.rng() < 0.98 ? choice(this.rng, [0, 5, 20, 50]) : 1000 + this.rng() * 7000);
  }

  leaves() {
    this.released = begin("release", this.actor, { form: this.op.form, hold: this.op.id });
  }

  async body(...locks) {
    this.got(locks);
    await this.rest();
    this.leaves();
  }

  /** Releases what an object of the program holds, until it does not. */
  async release(lock) {
    for (;;) {
      this.leaves();
      try {
        await lock.release();
        return;
      } catch (error) {
        if (!["unreachable", "connection_lost", "timeout", "store_unavailable"].includes(error.code)) {
          throw error;
        }
        failed(this.released, error);
        await sleep(200);
      }
    }
  }

  async withLock([key]) {
    await client.lock(key, this.options, (lock) => this.body(lock));
  }

  async acquire([key]) {
    const lock = await client.acquire(key, this.options);
    this.got([lock]);
    await this.rest();
    await this.release(lock);
  }

  async through([key]) {
    const lock = await client.acquire(key, this.options);
    this.got([lock]);
    while (!lock.signal.aborted && !calm) {
      await sleep(50);
    }
    await this.release(lock);
  }

  async try([key]) {
    const result = await client.tryAcquire(key, { ttlMs, data: this.op.id });
    if (!result.granted) {
      end(this.op, "timeout");
      return;
    }
    this.got([result.lock]);
    await this.rest();
    await this.release(result.lock);
  }

  async many(wanted) {
    const group = await client.acquireMany(wanted, this.options);
    await this.body(...group.locks);
    await group.release();
  }

  async semaphore() {
    await semaphore.run(this.options, (permit) => this.body(permit));
  }

  async permit() {
    const permit = await semaphore.acquire(this.options);
    this.got([permit]);
    await this.rest();
    await this.release(permit);
  }

  async nested([key]) {
    const options = { ...this.options, reentrant: true };
    await client.lock(key, options, async (lock) => {
      this.got([lock]);
      let enter = begin("enter", this.actor, { form: "nested", keys: [key], wait: this.op.wait, hold: this.op.id });
      enter.cancel = this.op.cancel;
      this.entering = enter;
      try {
        await client.lock(key, options, async (inner) => {
          end(enter, "granted", { tokens: [inner.token] });
          await this.rest();
          enter = begin("leave", this.actor, { form: "nested", hold: this.op.id });
        });
        end(enter, "done");
      } catch (error) {
        failed(enter, error);
      }
      this.leaves();
    });
  }

  async run(wanted) {
    try {
      await this[this.op.form](wanted);
      if (this.released) {
        end(this.released, "done");
      }
    } catch (error) {
      if (this.op.return === undefined) {
        failed(this.op, error);
      } else {
        failed(this.released ?? begin("release", this.actor, { form: this.op.form, hold: this.op.id }), error);
      }
    }
  }
}

async function act(actor, rng) {
  const form = choice(rng, forms);
  const wait = form === "try" ? 0 : choice(rng, [0, 50, 200, 1000, 2000, -1]);
  const shuffled = keys.map((key) => [rng(), key]).sort(([a], [b]) => a - b);
  // Now and then a key that nobody else wants: the call is quick then, so an abort meets all its steps.
  const own = form !== "many" && rng() < 0.4;
  let wanted = own
    ? [`own:${task.name}:${actor}`]
    : shuffled.slice(0, form === "many" ? 2 + Math.floor(rng() * 2) : 1).map(([, key]) => key);
  if (form === "semaphore" || form === "permit") {
    wanted = ["s0"];
  }
  const abort = new AbortController();
  const op = begin("acquire", actor, { form, keys: wanted, wait, limit: wanted[0] === "s0" ? limit : 0 });
  const hold = new Hold(actor, rng, op, abort.signal);
  const timer =
    rng() < 0.5 &&
    setTimeout(
      () => {
        const under = op.return === undefined ? op : hold.entering;
        if (under && under.return === undefined) {
          under.cancel = now();
          write(under); // it may never end
        }
        abort.abort(new Struck("struck"));
      },
      choice(rng, [0, 1, 1, 2, 5, 50, 500, 2000]),
    );
  await hold.run(wanted);
  clearTimeout(timer);
}

let calm = false;

async function loop(actor) {
  const rng = random(task.seed * 100 + actor);
  while (!calm) {
    await act(actor, rng);
    await sleep(rng() * 50);
  }
}

/** Holds a lock until it is lost, also while the sidecar is frozen, and then again. */
async function holdThrough() {
  const [actor, wanted] = [task.actors, [`through:${task.name}`]];
  while (!calm) {
    const op = begin("acquire", actor, { form: "through", keys: wanted, wait: -1, limit: 0 });
    await new Hold(actor, undefined, op, undefined).run(wanted);
    await sleep(50);
  }
}

const startWork = () => Promise.all([holdThrough(), ...Array.from({ length: task.actors }, (_, i) => loop(i))]);

async function useAgain() {
  const uses = {
    acquire: async (key) => (await client.acquire(key, { waitMs: again })).release(),
    permit: async () => (await semaphore.acquire({ waitMs: again })).release(),
    many: async () => (await client.acquireMany(keys, { waitMs: again })).release(),
  };
  const all = [...keys.map((key) => ["acquire", [key]]), ["permit", ["s0"]], ["many", keys]];
  for (const [form, wanted] of all) {
    const op = begin("again", -1, { form, keys: wanted });
    try {
      await uses[form](wanted[0]);
      end(op, "done");
    } catch (error) {
      failed(op, error);
    }
  }
}

const quiet = (fields) => end(begin("quiet", -1, fields), "done");

let work = startWork();
let kept;
for await (const line of createInterface({ input: process.stdin })) {
  if (line === "calm") {
    calm = true;
    await work;
    kept = await client.acquire(`keep:${task.name}`, { waitMs: again, ttlMs, data: "kept" });
    quiet({ keys: [kept.key], tokens: [kept.token] });
  } else if (line === "again") {
    await kept.release();
    await useAgain();
    quiet({ form: "again" });
  } else {
    calm = false;
    work = startWork();
  }
}
calm = true;
await work;
await client.close();
quiet({ form: "closed" });
setInterval(() => {}, 1000); // until SIGTERM
