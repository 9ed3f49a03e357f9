package io.github.locksidecar;

import java.util.Set;

/**
 * What a sidecar can do.
 *
 * @param version its version
 * @param api the version of its API
 * @param features the names of its features
 */
public record Description(String version, String api, Set<String> features) {}
