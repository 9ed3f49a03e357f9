package io.github.locksidecar;

import java.time.Duration;
import org.jspecify.annotations.Nullable;

/**
 * The state of a held lock: the answer to check, extend, update and downgrade.
 *
 * @param key the key
 * @param token the fencing token
 * @param session the public name of the session; null: bind:ttl
 * @param shared whether the holders do not exclude each other
 * @param limit the most shared holders; 0: without limit
 * @param slot the slot; -1 without a limit
 * @param reentry how often the owner has entered it
 * @param expiresIn how long an app may rely on the lock without news from the sidecar
 * @param stopping a request to stop, or null
 */
public record LockStatus(
    String key,
    long token,
    @Nullable String session,
    boolean shared,
    int limit,
    int slot,
    int reentry,
    Duration expiresIn,
    @Nullable Stopping stopping) {}
