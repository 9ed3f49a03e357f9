import { parentPort, workerData } from "node:worker_threads";
import { Client } from "locksidecar";
import { count } from "./worker";

const { socketPath, file, times, hold } = workerData as {
  socketPath?: string;
  file?: string;
  times?: number;
  hold?: string;
};

async function main(): Promise<void> {
  if (file) {
    await count(socketPath, file, times ?? 0);
  }
  if (hold) {
    const lock = await new Client({ socketPath }).acquire(hold);
    parentPort?.postMessage(lock.token);
    setInterval(() => {}, 1000);
  }
}

void main();
