// Carries out the steps of a case through the client: clients/contract/README.md.
import { setTimeout as sleep } from "node:timers/promises";
import type { AcquireOptions, Client, KeyEvent, ListOptions, Lock, ReleaseOptions } from "locksidecar";
import type { Signal } from "locksidecar/testing";
import type { Sidecar } from "../sidecar";
import { difference, fillIn, isMembers, type Members, type Value } from "./match";
import { checked, granted, happened, refused, shown } from "./results";

const answerMs = 60_000;
const stepMembers = new Set(["expect", "until", "save", "start"]);
const repeatable = new Set(["acquire", "get", "list", "check", "next"]);
const acquireArguments = [
  ...["session", "wait_ms", "ttl_ms", "bind", "owner", "reentrant", "max_hold_ms", "min_hold_ms", "on_success"],
  ...["data", "request_id", "mode", "limit"],
];

/** The arguments of each verb. */
const verbs: { [verb: string]: string[] } = {
  open: ["as", "name", "ttl_ms"],
  close: ["session"],
  acquire: ["key", ...acquireArguments],
  acquire_many: ["keys", ...acquireArguments],
  enter: ["key", "as", ...acquireArguments],
  leave: ["block", "raise"],
  release: ["key", "token", "session", "outcome", "result", "reentry"],
  force_release: ["key", "token"],
  check: ["key", "token", "session", "data"],
  extend: ["key", "token", "session", "data", "ttl_ms"],
  downgrade: ["key", "token", "session"],
  get: ["key", "session", "fresh"],
  list: ["session", "scope", "prefix", "type", "limit"],
  stop: ["key", "reason", "token"],
  watch: ["key", "as"],
  next: ["of"],
  finish: ["call"],
  cancel: ["call"],
  sidecar: ["signal"],
  features: [],
};

/** A session of a case: a client, and the news of its locks. */
interface Party {
  client: Client;
  locks: Lock[];
  events: Members[];
}

interface Started {
  result: Promise<Members>;
  cancel: AbortController;
}

/** A block of a case. */
interface Block {
  /** Ends it, or makes it throw. */
  leave(error?: Error): void;
  /** Its end. */
  left: Promise<void>;
}

export class Player {
  readonly #blocks = new Map<string, Block>();
  readonly #saved: Members = {};
  readonly #parties = new Map<string, Party>();
  readonly #watches = new Map<string, AsyncIterator<KeyEvent>>();
  readonly #started = new Map<string, Started>();
  /** For calls without a session. */
  readonly #nobody: Party;

  constructor(
    readonly sidecar: Sidecar,
    readonly prefix: string,
  ) {
    this.#nobody = this.#party({});
  }

  /** play returns what is wrong, or undefined if all is as expected. */
  async play(steps: Members[]): Promise<string | undefined> {
    for (const [index, step] of steps.entries()) {
      const wrong = await this.#step(step);
      if (wrong !== undefined) {
        return `step ${index + 1}, ${JSON.stringify(step)}: ${wrong}`;
      }
    }
    const left = [...this.#started.keys()];
    return left.length > 0 ? `neither finished nor cancelled: ${left.join(", ")}` : undefined;
  }

  /** end closes what the case has opened. */
  async end(): Promise<void> {
    for (const { cancel, result } of this.#started.values()) {
      cancel.abort();
      await result.catch(() => {});
    }
    await this.sidecar.closeClients();
  }

  async #step(step: Members): Promise<string | undefined> {
    const [verb, ...more] = Object.keys(step).filter((name) => !stepMembers.has(name));
    if (verb === undefined || more.length > 0 || !(verb in verbs)) {
      throw new Error(`a step has one verb, of ${Object.keys(verbs).join(", ")}: ${JSON.stringify(step)}`);
    }
    const given = fillIn(step[verb], this.#saved) as Members;
    const unknown = Object.keys(given).filter((name) => !verbs[verb]?.includes(name));
    if (unknown.length > 0) {
      throw new Error(`${verb} does not know ${unknown.join(", ")}`);
    }
    if (step["start"] !== undefined) {
      const cancel = new AbortController();
      const result = this.#do(verb, given, cancel.signal);
      result.catch(() => {}); // finish gets it
      this.#started.set(step["start"] as string, { result, cancel });
      return undefined;
    }
    const until = step["until"] !== undefined;
    if (until && !repeatable.has(verb)) {
      throw new Error(`${verb} is not repeated until something`);
    }
    const want = fillIn(step["expect"] ?? step["until"] ?? {}, this.#saved);
    const end = performance.now() + answerMs;
    for (;;) {
      const result = await this.#limited(verb, this.#do(verb, given), end);
      const wrong = difference(want, result);
      if (wrong === undefined) {
        this.#save(step["save"] as Members | undefined, result);
        return undefined;
      }
      if (!until || performance.now() > end) {
        return `${wrong}; the result was ${JSON.stringify(result)}`;
      }
      await sleep(5);
    }
  }

  async #limited<T>(verb: string, call: Promise<T>, end: number): Promise<T> {
    const over = new AbortController();
    const limit = sleep(Math.max(0, end - performance.now()), undefined, { signal: over.signal }).then(() => {
      throw new Error(`${verb} has no answer after ${answerMs} ms`);
    });
    limit.catch(() => {});
    try {
      return await Promise.race([call, limit]);
    } finally {
      over.abort();
    }
  }

  #save(save: Members | undefined, result: Members): void {
    for (const [name, path] of Object.entries(save ?? {})) {
      this.#saved[name] = String(path)
        .split(".")
        .reduce<Value>((value, member) => (value as Members)[member], result);
    }
  }

  /** #do makes the call of a step. Its result has no prefix before the keys. */
  async #do(verb: string, given: Members, signal?: AbortSignal): Promise<Members> {
    const args: Members = { ...given };
    for (const name of ["key", "prefix", "type"]) {
      if (typeof args[name] === "string") {
        args[name] = this.prefix + args[name];
      }
    }
    if (Array.isArray(args["keys"])) {
      args["keys"] = args["keys"].map((key) => this.prefix + key);
    }
    if (verb === "list" && args["prefix"] === undefined && args["type"] === undefined) {
      args["prefix"] = this.prefix;
    }
    try {
      return this.#bare(await this.#call(verb, args, signal)) as Members;
    } catch (error) {
      return this.#bare(refused(error)) as Members;
    }
  }

  #bare(value: Value, name = ""): Value {
    if (typeof value === "string" && ["key", "type", "keys"].includes(name) && value.startsWith(this.prefix)) {
      return value.slice(this.prefix.length);
    }
    if (Array.isArray(value)) {
      return value.map((element) => this.#bare(element, name));
    }
    if (isMembers(value) && !(value instanceof Date) && !["data", "result"].includes(name)) {
      return Object.fromEntries(Object.entries(value).map(([member, inner]) => [member, this.#bare(inner, member)]));
    }
    return value;
  }

  #call(verb: string, args: Members, signal: AbortSignal | undefined): Promise<Members> {
    const party = this.#who(args);
    const { client } = party;
    const { key, token } = args as { key: string; token: number };
    switch (verb) {
      case "open":
        return this.#open(args);
      case "close":
        return client.close().then(() => ({}));
      case "acquire":
        return this.#acquire(party, key, this.#options(args, signal), args["on_success"] as "skip" | undefined);
      case "acquire_many":
        return this.#acquireMany(party, args["keys"] as string[], this.#options(args, signal));
      case "enter":
        return this.#enter(party, key, args["as"] as string, this.#options(args, signal));
      case "leave":
        return this.#leave(args["block"] as string, args["raise"] === true);
      case "release":
        return this.#release(party, key, token, args);
      case "force_release":
        return client
          .forceRelease(key, { token: args["token"] as number | undefined })
          .then(() => ({ released: true, key }));
      case "check":
        return this.#check(party, key, token, args).then(checked);
      case "extend":
        return this.#extend(party, key, token, args).then(checked);
      case "downgrade":
        return (this.#held(party, key, token) as Lock).downgrade().then(checked);
      case "get":
        return client.get(key, { fresh: args["fresh"] as boolean | undefined }).then(shown);
      case "list":
        return this.#list(client, args as ListOptions);
      case "stop":
        return client
          .stop(key, { reason: args["reason"] as string | undefined, token: args["token"] as number | undefined })
          .then(() => ({ requested: true, key }));
      case "watch":
        this.#watches.set(args["as"] as string, client.events(key));
        return Promise.resolve({ watching: true });
      case "next":
        return this.#next(args["of"] as string);
      case "finish":
      case "cancel":
        return this.#finish(args["call"] as string, verb === "cancel");
      case "sidecar":
        this.sidecar.signal(`SIG${args["signal"]}` as Signal);
        return Promise.resolve({ sent: true });
      case "features":
        return client.describe().then((description) => ({ ...description }));
      default:
        throw new Error(`this runner does not know ${verb}`);
    }
  }

  #who(args: Members): Party {
    if (args["session"] === undefined) {
      return this.#nobody;
    }
    const party = this.#parties.get(args["session"] as string);
    if (!party) {
      throw new Error(`no session ${args["session"]} was opened`);
    }
    return party;
  }

  #party(options: { name?: string; ttlMs?: number }): Party {
    // Without reconnection a wait ends with the sidecar's answer.
    return { client: this.sidecar.client({ ...options, reconnectMs: 0 }), locks: [], events: [] };
  }

  async #open({ as, name, ttl_ms }: Members): Promise<Members> {
    const party = this.#party({
      ...(name === undefined ? {} : { name: name as string }),
      ...(ttl_ms === undefined ? {} : { ttlMs: ttl_ms as number }),
    });
    await party.client.connect();
    this.#parties.set(as as string, party);
    return { opened: true };
  }

  #options(args: Members, signal: AbortSignal | undefined): AcquireOptions {
    const names: { [argument: string]: string } = {
      ...{ wait_ms: "waitMs", ttl_ms: "ttlMs", max_hold_ms: "maxHoldMs", min_hold_ms: "minHoldMs" },
      ...{ request_id: "requestId", bind: "bind", owner: "owner", reentrant: "reentrant", data: "data" },
      ...{ mode: "mode", limit: "limit" },
    };
    const options: Members = { waitMs: 0, signal }; // without wait_ms it does not wait
    for (const [argument, name] of Object.entries(names)) {
      if (args[argument] !== undefined) {
        options[name] = args[argument];
      }
    }
    return options as AcquireOptions;
  }

  /** #follow adds the news of a lock to the events of its session. */
  #follow(party: Party, lock: Lock): void {
    party.locks.push(lock);
    const lost = (): void => {
      const { reason } = lock.lost ?? {};
      const end = { event: "end" };
      if (reason !== "disconnected") {
        party.events.push({ event: "lost", key: lock.key, token: lock.token, reason });
      } else if (!party.events.some(({ event }) => event === "end")) {
        party.events.push(end);
      }
    };
    if (lock.lost) {
      lost(); // the news was read before the grant
    } else {
      lock.signal.addEventListener("abort", lost);
    }
  }

  async #acquire(party: Party, key: string, options: AcquireOptions, onSuccess: "skip" | undefined): Promise<Members> {
    let lock: Lock | undefined;
    const early: (string | null)[] = []; // read before the grant
    const received = ({ reason }: { reason: string | null }): void => {
      if (lock) {
        party.events.push({ event: "stop", key: lock.key, token: lock.token, reason });
      } else {
        early.push(reason);
      }
    };
    const mine = { ...options, onStop: received };
    if (onSuccess === undefined) {
      lock = await party.client.acquire(key, mine);
    } else {
      const got = await party.client.tryAcquire(key, { ...mine, onSuccess });
      if (!got.granted) {
        if (got.reason === "skipped") {
          return { skipped: true, key: got.key, result: got.result };
        }
        throw got.error;
      }
      lock = got.lock;
    }
    for (const reason of early) {
      received({ reason });
    }
    this.#follow(party, lock);
    return granted(lock);
  }

  async #acquireMany(party: Party, keys: string[], options: AcquireOptions): Promise<Members> {
    const group = await party.client.acquireMany(keys, options);
    for (const lock of group.locks) {
      this.#follow(party, lock);
    }
    return { granted: true, locks: group.locks.map(granted) };
  }

  #enter(party: Party, key: string, as: string, options: AcquireOptions): Promise<Members> {
    return new Promise((resolve, reject) => {
      const block = async (leaving: Promise<void>): Promise<void> => {
        await using lock = await party.client.acquire(key, options);
        this.#follow(party, lock);
        resolve(granted(lock));
        await leaving;
      };
      let leave: Block["leave"] = () => {};
      const leaving = new Promise<void>((end, fail) => {
        leave = (error) => (error ? fail(error) : end());
      });
      const left = block(leaving);
      left.catch(reject); // also if no step leaves the block
      this.#blocks.set(as, { leave, left });
    });
  }

  async #leave(name: string, raise: boolean): Promise<Members> {
    const block = this.#blocks.get(name);
    if (!block) {
      throw new Error(`no block ${name} was entered`);
    }
    const mine = raise ? new Error("of the block") : undefined;
    block.leave(mine);
    try {
      await block.left;
      return { left: true };
    } catch (error) {
      if (mine && (error === mine || (error as { suppressed?: unknown }).suppressed === mine)) {
        return { raised: true };
      }
      throw error;
    }
  }

  /** #held returns the lock object of a grant, the last entry first. */
  #held(party: Party, key: string, token: number): Lock | undefined {
    return party.locks.findLast((lock) => lock.key === key && lock.token === token);
  }

  async #release(party: Party, key: string, token: number, args: Members): Promise<Members> {
    const { outcome, result, reentry } = args;
    const options = { outcome, result, reentry } as ReleaseOptions;
    const lock = this.#held(party, key, token);
    const done = lock ? await lock.release(options) : await party.client.release(key, token, options);
    party.locks = party.locks.filter((other) => other !== lock);
    return { key: done.key, released: done.released, reentry: done.reentry };
  }

  #check(party: Party, key: string, token: number, { data }: Members) {
    const lock = this.#held(party, key, token);
    if (!lock) {
      return party.client.check(key, token, { data: data as never });
    }
    return data === undefined ? lock.check() : lock.update(data as never);
  }

  #extend(party: Party, key: string, token: number, { ttl_ms, data }: Members) {
    const to = [ttl_ms as number, { data: data as never }] as const;
    return this.#held(party, key, token)?.extend(...to) ?? party.client.extend(key, token, ...to);
  }

  async #list(client: Client, { scope, prefix, type, limit }: ListOptions): Promise<Members> {
    const locks: Members[] = [];
    for await (const lock of client.locks({ scope, prefix, type, limit })) {
      locks.push(shown(lock));
    }
    return { keys: locks.map(({ key }) => key), locks };
  }

  async #next(of: string): Promise<Members> {
    const watch = this.#watches.get(of);
    if (watch) {
      const next = await watch.next().catch(() => undefined);
      return next?.done === false ? happened(next.value) : { event: "end" };
    }
    const party = this.#who({ session: of });
    for (const end = performance.now() + answerMs; performance.now() < end; await sleep(5)) {
      const event = party.events.shift();
      if (event) {
        return event;
      }
    }
    return { event: "none" };
  }

  async #finish(name: string, cancel: boolean): Promise<Members> {
    const started = this.#started.get(name);
    if (!started) {
      throw new Error(`no call ${name} was started`);
    }
    this.#started.delete(name);
    if (!cancel) {
      return started.result;
    }
    started.cancel.abort();
    await started.result.catch(() => {}); // the signal's reason
    return {};
  }
}
