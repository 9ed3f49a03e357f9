#!/usr/bin/env node
// Starts the program of the package for this platform, which npm has installed beside this one.

const { spawn } = require("node:child_process");
const { constants } = require("node:os");

const name = `@locksidecar/server-${process.platform}-${process.arch}`;
let program;
try {
  program = require.resolve(`${name}/bin/locksidecar`);
} catch {
  process.stderr.write(
    `locksidecar: there is no package ${name}. The sidecar is for Linux and macOS, on x64 and arm64; and npm must not omit optional packages (--omit=optional)\n`,
  );
  process.exit(69);
}

const args = process.argv.slice(2);
if (process.execve) {
  // The program becomes this process: signals and the exit code are its own.
  process.execve(program, [program, ...args], process.env);
}
const child = spawn(program, args, { stdio: "inherit" });
for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"]) {
  process.on(signal, () => {
    // A terminal's Ctrl-C reaches both. A second one would end the sidecar's stop early.
    if (signal !== "SIGINT" || !process.stdin.isTTY) {
      child.kill(signal);
    }
  });
}
child.on("error", (error) => {
  process.stderr.write(`locksidecar: ${error.message}\n`);
  process.exit(69);
});
child.on("exit", (code, signal) => process.exit(code ?? 128 + constants.signals[signal]));
