// Checks what an app passes, before anything is sent. JavaScript apps have no compiler for this, and a lock without the meant
// option is not the lock that the app wants. The sidecar judges ranges.
import { inspect } from "node:util";
import { InvalidRequestError } from "./errors";

type Check = (name: string, value: unknown) => void;

/** The checks of all options. The compiler finds a missing name. */
export type Checks<T> = { readonly [name in keyof Required<T>]: Check };

function refuse(name: string, value: unknown, rule: string): never {
  const shown = inspect(value, { depth: 0, breakLength: Number.POSITIVE_INFINITY, maxStringLength: 100 });
  throw new InvalidRequestError(`${name}: ${shown} ${rule}`);
}

const check =
  (is: (value: never) => boolean, rule: string): Check =>
  (name, value) =>
    is(value as never) || refuse(name, value, rule);

/** NaN and Infinity are refused, because JSON turns them into null. */
export const ms = check(Number.isFinite, "is not a number of milliseconds");
export const wait = check(
  (value: number) => Number.isFinite(value) || value === Number.POSITIVE_INFINITY,
  "is not a number of milliseconds",
);
export const count = check(Number.isFinite, "is not a number");
export const text = check((value) => typeof value === "string", "is not a text");
export const flag = check((value) => typeof value === "boolean", "is neither true nor false");
export const callback = check((value) => typeof value === "function", "is not a function");
export const abortSignal = check(
  (value: AbortSignal | null) => typeof value?.aborted === "boolean" && typeof value.addEventListener === "function",
  "is not an AbortSignal",
);

/** json refuses what JSON.stringify would drop or turn into something else. */
export const json: Check = (name, value) => {
  try {
    JSON.stringify(value, function (this: Record<string, unknown>, member, after) {
      const before = this[member]; // `after` is what toJSON has made of it
      const here = member === "" ? name : `${name}, member ${member}`;
      const isLost =
        (typeof after === "number" && !Number.isFinite(after)) ||
        ["bigint", "function", "symbol"].includes(typeof after) ||
        (after === undefined && (member === "" || Array.isArray(this))) ||
        [Map, Set, Promise, RegExp, ArrayBuffer].some((type) => before instanceof type) ||
        ArrayBuffer.isView(before);
      return isLost ? refuse(here, before, "cannot be carried by JSON") : after;
    });
  } catch (cause) {
    if (cause instanceof InvalidRequestError) {
      throw cause;
    }
    const { message } = cause as Error; // of a circle, or of a toJSON
    throw new InvalidRequestError(`${name} cannot be carried by JSON: ${message}`, { cause });
  }
};

/** checkOptions refuses unknown options and wrong values. An option that is undefined is one that is not given. */
export function checkOptions<T extends object>(options: T, checks: Checks<T>, example = "{ waitMs: 5000 }"): void {
  if (typeof options !== "object" || options === null || Array.isArray(options)) {
    refuse("options", options, `is not an object of options, such as ${example}`);
  }
  for (const [name, value] of Object.entries(options)) {
    if (!Object.hasOwn(checks, name)) {
      const known = Object.keys(checks).join(", ");
      throw new InvalidRequestError(`option ${name} is not known; the options are ${known}`);
    }
    if (value !== undefined) {
      checks[name as keyof T](name, value);
    }
  }
}

/** checkKey refuses what is no key. */
export function checkKey(key: unknown): void {
  if (typeof key !== "string" || key === "") {
    refuse("key", key, "is not a text of 1 to 512 bytes");
  }
}

/** optionsAndRun returns the arguments of a call that runs a function. They are checked before a lock is taken. */
export function optionsAndRun<O extends object, R>(
  rest: readonly [R] | readonly [O, R],
  checks: Checks<O>,
  example?: string,
): [O, R] {
  const [options, run] = rest.length === 1 ? [{} as O, rest[0]] : rest;
  callback("the function to run", run);
  checkOptions(options, checks, example);
  return [options, run];
}
