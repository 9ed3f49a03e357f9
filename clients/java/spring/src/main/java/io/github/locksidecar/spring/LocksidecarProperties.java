package io.github.locksidecar.spring;

import java.time.Duration;
import org.jspecify.annotations.Nullable;
import org.springframework.boot.context.properties.ConfigurationProperties;

/**
 * The settings of the app's client.
 *
 * @param socket the sidecar's socket; by default {@code /run/locksidecar/locksidecar.sock}
 * @param ttl how long locks outlive a dead sidecar; by default the sidecar decides
 */
@ConfigurationProperties("locksidecar")
public record LocksidecarProperties(@Nullable String socket, @Nullable Duration ttl) {}
