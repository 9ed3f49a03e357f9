// Node before 20.5 has no Symbol.asyncDispose. What TypeScript makes of `await using`
// looks for the global symbol when it runs, so the gap is filled where it looks; Node
// itself did it the same way in the versions between.
const symbols = Symbol as unknown as Record<string, symbol | undefined>;
for (const name of ["dispose", "asyncDispose"]) {
  if (symbols[name] === undefined) {
    Object.defineProperty(Symbol, name, { value: Symbol(`Symbol.${name}`) });
  }
}

export {};
