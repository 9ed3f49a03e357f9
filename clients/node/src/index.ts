/// <reference lib="esnext.disposable" preserve="true" />
// The line above is for apps whose `lib` does not have [Symbol.asyncDispose] yet.
import "./dispose";

export {
  type AcquireManyOptions,
  type AcquireOptions,
  Client,
  type ClientOptions,
  type EventsOptions,
  type ListOptions,
  type NotGranted,
  type OnceOptions,
  type Skipped,
  type TryAcquireOptions,
  type TryAcquireResult,
} from "./client";
export * from "./errors";
export { type CheckResult, Lock, LockGroup, type ReleaseOptions, type ReleaseResult } from "./lock";
export type { About, Bind, Holder, Json, KeyEvent, LockInfo, LockPage, Outcome, Stopping } from "./types";
export type { LockRequestCallback, LockRequestOptions } from "./weblocks";
