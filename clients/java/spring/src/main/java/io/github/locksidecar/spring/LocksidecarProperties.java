package io.github.locksidecar.spring;

import java.time.Duration;
import org.jspecify.annotations.Nullable;
import org.springframework.boot.context.properties.ConfigurationProperties;

/**
 * The settings of the app's client.
 *
 * @param socket the sidecar's socket; by default {@code LOCKSIDECAR_SOCKET}, else that of a pod, or of this user
 * @param ttl how long locks outlive a dead sidecar; by default the sidecar decides
 * @param timeout how long to wait for an answer of the sidecar, in addition to a wait; by default 10 s
 */
@ConfigurationProperties("locksidecar")
public record LocksidecarProperties(@Nullable String socket, @Nullable Duration ttl, @Nullable Duration timeout) {}
