package io.github.locksidecar;

import java.time.Duration;
import java.time.Instant;
import org.jspecify.annotations.Nullable;

/**
 * The holder of a lock.
 *
 * @param instance the running sidecar
 * @param pod its pod
 * @param session the public name of its session; null: bind:ttl
 * @param owner its owner in the session, if it has one
 * @param acquiredAt the time of the grant by the clock of the store, informative
 * @param held how long it has held the lock
 * @param expiresIn when the lock ends without news of the holder
 * @param data its data: JSON as Java values
 * @param traceparent its trace, if it has one
 */
public record Holder(
    String instance,
    String pod,
    @Nullable String session,
    @Nullable String owner,
    Instant acquiredAt,
    Duration held,
    Duration expiresIn,
    @Nullable Object data,
    @Nullable String traceparent) {}
