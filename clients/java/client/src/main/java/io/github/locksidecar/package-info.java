/**
 * Distributed locks through the locksidecar beside the app.
 *
 * <p>{@link io.github.locksidecar.LockClient} is the way in. Calls that may wait throw {@link InterruptedException}. All
 * other calls finish although their thread is interrupted, and keep its interrupt status. Durations are
 * {@link java.time.Duration}, rounded up to milliseconds. All errors are
 * {@link io.github.locksidecar.LocksidecarException}.
 */
package io.github.locksidecar;
