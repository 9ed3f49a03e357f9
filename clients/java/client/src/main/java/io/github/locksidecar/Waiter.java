package io.github.locksidecar;

import java.time.Duration;
import org.jspecify.annotations.Nullable;

/**
 * A call that waits for a lock.
 *
 * @param key the key
 * @param position 1 for the first call of the key
 * @param pod the pod of its sidecar
 * @param session the public name of its session; null: bind:ttl
 * @param owner its owner in the session, if it has one
 * @param shared whether it wants a share
 * @param limit the limit that it names; 0: none
 * @param waiting how long it has waited
 * @param traceparent its trace, if it has one
 */
public record Waiter(
    String key,
    int position,
    String pod,
    @Nullable String session,
    @Nullable String owner,
    boolean shared,
    int limit,
    Duration waiting,
    @Nullable String traceparent) {}
