/// <reference lib="esnext.disposable" preserve="true" />
// The line above is for apps whose `lib` does not have [Symbol.asyncDispose] yet.
import "./dispose";

export { Client } from "./client";
export * from "./errors";
export { type CheckResult, Lock, LockGroup, type ReleaseOptions, type ReleaseResult } from "./lock";
export type {
  AcquireManyOptions,
  AcquireOptions,
  ClientOptions,
  EventsOptions,
  LeadOptions,
  ListOptions,
  NotGranted,
  OnceOptions,
  SemaphoreOptions,
  Skipped,
  TryAcquireOptions,
  TryAcquireResult,
  WaitersOptions,
} from "./options";
export { Semaphore } from "./semaphore";
export type { Term } from "./term";
export type {
  AsJson,
  Bind,
  Description,
  Holder,
  Json,
  KeyEvent,
  LockInfo,
  LockPage,
  Mode,
  Outcome,
  SharedHolder,
  Stopping,
  Waiter,
} from "./types";
export type { LockRequestCallback, LockRequestOptions } from "./weblocks";
