// Compares a result with the expectation of a case: clients/contract/README.md, "Matching".
import { isDeepStrictEqual } from "node:util";

export type Value = unknown;
export type Members = { [name: string]: Value };

const compare: { [name: string]: (got: number, wanted: number) => boolean } = {
  $gt: (got, n) => got > n,
  $ge: (got, n) => got >= n,
  $lt: (got, n) => got < n,
  $le: (got, n) => got <= n,
};
const operators = new Set([...Object.keys(compare), "$has", "$is", "$any"]);

export function isMembers(value: Value): value is Members {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** fillIn replaces each $name by what was saved, and each {$long: n} by a text of n letters. */
export function fillIn(value: Value, saved: Members): Value {
  if (Array.isArray(value)) {
    return value.map((element) => fillIn(element, saved));
  }
  if (isMembers(value)) {
    if (Object.keys(value).join() === "$long") {
      return "a".repeat(value["$long"] as number);
    }
    return Object.fromEntries(Object.entries(value).map(([name, member]) => [name, fillIn(member, saved)]));
  }
  if (typeof value === "string" && value.startsWith("$")) {
    const name = value.slice(1);
    if (!(name in saved)) {
      throw new Error(`nothing was saved as ${value}; saved: ${Object.keys(saved).join(", ") || "nothing"}`);
    }
    return saved[name];
  }
  return value;
}

/** difference returns what is wrong with got, or undefined if it matches. */
export function difference(want: Value, got: Value, at = "result"): string | undefined {
  if (isMembers(want)) {
    const operator = operatorOf(want);
    return operator ? judge(operator, want[operator], got, at) : membersDiffer(want, got, at);
  }
  if (Array.isArray(want)) {
    if (!Array.isArray(got) || got.length !== want.length) {
      return `${at} is ${show(got)}; it must be a list of ${want.length}`;
    }
    return want.map((w, i) => difference(w, got[i], `${at}[${i}]`)).find((wrong) => wrong !== undefined);
  }
  return (got ?? null) === want ? undefined : `${at} is ${show(got)}; it must be ${show(want)}`;
}

function membersDiffer(want: Members, got: Value, at: string): string | undefined {
  if (!isMembers(got)) {
    return `${at} is ${show(got)}; it must have ${Object.keys(want).join(", ")}`;
  }
  return Object.entries(want)
    .map(([name, member]) => difference(member, got[name], `${at}.${name}`))
    .find((wrong) => wrong !== undefined);
}

/** operatorOf returns the operator that a map is, such as {$gt: 3}. */
function operatorOf(want: Members): string | undefined {
  const names = Object.keys(want);
  if (!names.some((name) => name.startsWith("$"))) {
    return undefined;
  }
  const [name] = names;
  if (names.length !== 1 || name === undefined || !operators.has(name)) {
    throw new Error(`${show(want)}: an operator stands alone, and is one of ${[...operators].join(", ")}`);
  }
  return name;
}

function judge(operator: string, wanted: Value, got: Value, at: string): string | undefined {
  const ok = {
    $any: () => got !== null && got !== undefined,
    $is: () => isDeepStrictEqual(got ?? null, wanted),
    $has: () => typeof got === "string" && got.includes(wanted as string),
  }[operator];
  const matches = ok ? ok() : typeof got === "number" && compare[operator]?.(got, wanted as number);
  return matches ? undefined : `${at} is ${show(got)}; it must be ${operator.slice(1)} ${show(wanted)}`;
}

function show(value: Value): string {
  return JSON.stringify(value) ?? "not there";
}
