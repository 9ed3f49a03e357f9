package io.github.locksidecar.internal;

import com.grack.nanojson.JsonObject;

/**
 * An event of a stream.
 *
 * @param name its name
 * @param data its JSON
 */
public record Event(String name, JsonObject data) {}
