// `import` and `require` give the same classes, so `instanceof` works in an app that uses both.
export * from "./index.js";
