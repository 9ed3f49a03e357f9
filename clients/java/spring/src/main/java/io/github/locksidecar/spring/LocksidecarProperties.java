package io.github.locksidecar.spring;

import java.time.Duration;
import org.jspecify.annotations.Nullable;
import org.springframework.boot.context.properties.ConfigurationProperties;

/**
 * The settings of the app's client.
 *
 * @param socket the sidecar's socket; by default {@code LOCKSIDECAR_SOCKET}, else that of a pod, or of this user
 * @param url names the sidecar instead, also over TCP; by default {@code LOCKSIDECAR_URL}
 * @param tokenFile the file with the token for a sidecar over TCP; by default {@code LOCKSIDECAR_TOKEN_FILE}
 * @param caFile the file with the CA of the sidecar's certificate; by default {@code LOCKSIDECAR_CA_FILE}
 * @param ttl how long locks outlive a dead sidecar; by default the sidecar decides
 * @param timeout how long to wait for an answer of the sidecar, in addition to a wait; by default 10 s
 */
@ConfigurationProperties("locksidecar")
public record LocksidecarProperties(
    @Nullable String socket, @Nullable String url, @Nullable String tokenFile, @Nullable String caFile,
    @Nullable Duration ttl, @Nullable Duration timeout) {}
