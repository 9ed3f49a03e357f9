/** A lock provider for ShedLock: {@link io.github.locksidecar.shedlock.LocksidecarLockProvider}. */
package io.github.locksidecar.shedlock;
