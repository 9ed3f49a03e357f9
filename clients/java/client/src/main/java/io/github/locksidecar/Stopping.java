package io.github.locksidecar;

import java.time.Instant;
import org.jspecify.annotations.Nullable;

/**
 * A request to the holder to stop.
 *
 * @param reason why, or null
 * @param requestedAt the time of the request by the clock of the store, informative
 */
public record Stopping(@Nullable String reason, Instant requestedAt) {}
