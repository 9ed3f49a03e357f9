// Code that must compile, and code that must not. tsc is the test.
import {
  Client,
  type Holder,
  type Json,
  type KeyEvent,
  type Lock,
  LockHeldError,
  type LocksidecarError,
  type Mode,
  type NotGrantedError,
} from "locksidecar";

type Equal<A, B> = (<T>() => T extends A ? 1 : 2) extends <T>() => T extends B ? 1 : 2 ? true : false;
function same<A, B>(_: Equal<A, B>): void {}

export async function types(client: Client): Promise<void> {
  new Client({ socketPath: undefined, ttlMs: 1000 });
  new Client({ url: "https://localhost:1", tokenFile: "token", caFile: undefined });
  // @ts-expect-error: a URL is a text
  new Client({ url: new URL("https://localhost:1") });
  // @ts-expect-error: durations are numbers of ms
  new Client({ ttlMs: "1s" });

  const tried = await client.tryAcquire("key");
  if (tried.granted) {
    same<typeof tried.lock, Lock>(true);
    // @ts-expect-error: who has the lock does not ask who has it
    tried.holder;
  } else {
    same<typeof tried.reason, "held" | "wait_timeout">(true);
    same<typeof tried.holder, Holder | null>(true);
    same<typeof tried.error, NotGrantedError>(true);
    // @ts-expect-error: there is no lock
    tried.lock;
  }
  const skipped = await client.tryAcquire("key", { waitMs: 1, onSuccess: "skip" });
  if (!skipped.granted && skipped.reason === "skipped") {
    same<typeof skipped.result, Json>(true);
  }
  // @ts-expect-error: acquire has no way to say that it was skipped
  await client.acquire("key", { onSuccess: "skip" });
  // @ts-expect-error: bind is session or ttl
  await client.acquire("key", { bind: "forever" });
  // @ts-expect-error: several keys are not entered again
  await client.acquireMany(["a"], { reentrant: true });

  same<number, Awaited<ReturnType<typeof number>>>(true);
  async function number() {
    return client.lock("key", { ttlMs: 1000 }, async (lock) => lock.token);
  }
  // @ts-expect-error: a limit is for one key
  await client.acquireMany(["a"], { mode: "shared", limit: 2 });
  // @ts-expect-error: a permit of a semaphore is not entered again
  await client.semaphore("gpu", 2).acquire({ reentrant: true });
  const slot = await client.semaphore("gpu", 2).run({ waitMs: 1 }, (permit) => permit.slot);
  same<typeof slot, number | null>(true);
  same<Mode, "exclusive" | "shared">(true);
  const led = await client.lead("leader", { data: { addr: "a" } }, async (term) => term.token);
  same<typeof led, number>(true);
  // @ts-expect-error: a leader's lock belongs to its session
  await client.lead("leader", { bind: "ttl" }, () => {});
  for await (const data of client.watchLeader("leader")) {
    same<typeof data, Json>(true);
  }
  await client.request("key", (lock) => lock.name);
  // @ts-expect-error: with ifAvailable the lock may be null
  await client.request("key", { ifAvailable: true }, (lock) => lock.name);

  const render = client.locked(
    (id: number, _: string) => `report:${id}`,
    (id) => `${id}`,
  );
  same<typeof render, (id: number, _: string) => Promise<string>>(true);

  for await (const event of client.events("key")) {
    same<typeof event, KeyEvent>(true);
    if (event.type === "released") {
      same<typeof event.result, Json>(true);
    }
  }
  await using lock = await client.acquire("key", { signal: AbortSignal.timeout(1) });
  same<typeof lock.signal, AbortSignal>(true);
  const once = await client.once("key", () => ({ rows: [1], at: new Date(), of: undefined as string | undefined }));
  same<typeof once, { rows: number[]; at: string; of: string | undefined }>(true);
  same<Awaited<ReturnType<typeof nothing>>, null>(true);
  async function nothing() {
    return client.once("key", async () => {});
  }
  same<Awaited<ReturnType<typeof anything>>, Json>(true);
  async function anything() {
    return client.once("key", (): unknown => 1);
  }
  const error: unknown = null;
  if (error instanceof LockHeldError) {
    const base: LocksidecarError = error;
    same<typeof error.queueLength, number>(true);
    void base;
  }
}
