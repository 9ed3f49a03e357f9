package io.github.locksidecar;

import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * What the sidecar shows of a lock.
 *
 * @param key the key
 * @param type the part of the key before the first colon; empty if there is none
 * @param held whether anybody holds it
 * @param mine whether this client's session holds it
 * @param token the token of this client's session; 0 if it does not hold the lock
 * @param shared whether its holders do not exclude each other
 * @param limit the most shared holders; 0: without limit
 * @param holder the holder, of several the one that was granted first; null: the lock is free
 * @param kept whether the sidecar of the holder may keep it for its next session, so that perhaps nobody holds it now
 * @param holders the first 100 holders, by token
 * @param holdersCount how many holders it has
 * @param queueLength how many calls wait for it
 * @param stopping a request to stop, or null
 */
public record LockInfo(
    String key,
    String type,
    boolean held,
    boolean mine,
    long token,
    boolean shared,
    int limit,
    @Nullable Holder holder,
    boolean kept,
    List<SharedHolder> holders,
    int holdersCount,
    int queueLength,
    @Nullable Stopping stopping) {}
