// pairs.mjs locksidecar|redlock SOCKET CALLERS SECONDS: prints the pairs of acquire and release a second, each caller with a key of its own.
// Before that, all callers want one key, and it fails if two have it at a time.
import { createRequire } from "node:module";

const [library, socket, callers, seconds] = [...process.argv.slice(2, 4), ...process.argv.slice(4).map(Number)];

const libraries = {
  async locksidecar() {
    const { Client } = createRequire(import.meta.url)("../../../clients/node/dist/index.js");
    const client = new Client({ socketPath: socket });
    return {
      acquire: (key) => client.acquire(key, { waitMs: 0 }),
      isHeld: (error) => error.code === "held",
      close: () => client.close(),
    };
  },
  async redlock() {
    const [{ default: Redlock, ExecutionError }, { default: Redis }] = [await import("redlock"), await import("ioredis")];
    const redis = new Redis(socket);
    const redlock = new Redlock([redis], { retryCount: 0 });
    return {
      acquire: (key) => redlock.acquire([key], 30_000),
      isHeld: (error) => error instanceof ExecutionError,
      close: () => redis.quit(),
    };
  },
};
const { acquire, isHeld, close } = await libraries[library]();

/** each runs all callers for a time, and returns the number of pairs a second. */
async function each(ms, pair) {
  const began = performance.now();
  let pairs = 0;
  const caller = async (_, i) => {
    while (performance.now() - began < ms) {
      const done = await pair(i); // before the sum is read
      pairs += done ? 1 : 0;
    }
  };
  await Promise.all(Array.from({ length: callers }, caller));
  return (pairs / (performance.now() - began)) * 1000;
}

let holders = 0;
async function contended() {
  let lock;
  try {
    lock = await acquire("bench:one");
  } catch (error) {
    if (isHeld(error)) {
      return false;
    }
    throw error;
  }
  holders++;
  await new Promise(setImmediate);
  if (holders !== 1) {
    throw new Error(`${holders} callers had the lock at a time`);
  }
  holders--;
  await lock.release();
  return true;
}

async function own(i) {
  await (await acquire(`bench:${i}`)).release();
  return true;
}

if ((await each(500, contended)) === 0) {
  throw new Error("nobody got the lock");
}
await each(1000, own); // warm
console.log(Math.round(await each(seconds * 1000, own)));
await close();
