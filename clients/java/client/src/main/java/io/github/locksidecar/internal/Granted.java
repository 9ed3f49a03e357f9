package io.github.locksidecar.internal;

import com.grack.nanojson.JsonObject;
import org.jspecify.annotations.Nullable;

/**
 * A grant, and the answer that brought it.
 *
 * @param grant the grant
 * @param value the API's answer
 * @param entry the request id of this entry if the lock is reentrant, or null
 */
public record Granted(Grant grant, JsonObject value, @Nullable String entry) {}
