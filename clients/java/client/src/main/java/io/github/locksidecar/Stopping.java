package io.github.locksidecar;

import org.jspecify.annotations.Nullable;

/**
 * A request to the holder to stop.
 *
 * @param reason why, or null
 * @param requestedAt the time of the request, RFC 3339, informative
 */
public record Stopping(@Nullable String reason, String requestedAt) {}
