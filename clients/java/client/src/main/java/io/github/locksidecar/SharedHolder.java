package io.github.locksidecar;

import org.jspecify.annotations.Nullable;

/**
 * One of the holders of a lock.
 *
 * @param holder the holder
 * @param token its token
 * @param slot its slot; -1 without a limit
 * @param stopping a request to stop, or null
 */
public record SharedHolder(Holder holder, long token, int slot, @Nullable Stopping stopping) {}
