package io.github.locksidecar;

import java.util.Map;
import org.jspecify.annotations.Nullable;

/**
 * An event of a watched key.
 *
 * @param type {@code state} (the first one), {@code acquired}, {@code released}, {@code expired}, {@code stopping}, or one
 *     of a newer sidecar
 * @param key the key
 * @param data the API's members: JSON as Java values
 */
public record KeyEvent(String type, String key, Map<String, @Nullable Object> data) {}
