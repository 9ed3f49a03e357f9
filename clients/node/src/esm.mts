// One implementation for both module systems: an app that loads the package with
// `import` and with `require` gets the same classes, so `instanceof` works across them.
export * from "./index.js";
