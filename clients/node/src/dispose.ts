// Node before 20.5 has no Symbol.asyncDispose, which the compiled `await using` reads when it runs.
const symbols = Symbol as unknown as Record<string, symbol | undefined>;
for (const name of ["dispose", "asyncDispose"]) {
  if (symbols[name] === undefined) {
    Object.defineProperty(Symbol, name, { value: Symbol(`Symbol.${name}`) });
  }
}

export {};
