package io.github.locksidecar.spring;

import io.github.locksidecar.LockClient;
import io.github.locksidecar.LockClientBuilder;
import java.nio.file.Path;
import java.util.Optional;
import org.jspecify.annotations.Nullable;
import org.springframework.boot.autoconfigure.AutoConfiguration;
import org.springframework.boot.autoconfigure.condition.ConditionalOnMissingBean;
import org.springframework.boot.context.properties.EnableConfigurationProperties;
import org.springframework.context.annotation.Bean;
import org.springframework.integration.support.locks.LockRegistry;

/** A {@link LockClient} and a {@link LocksidecarLockRegistry}, unless the app has its own. */
@AutoConfiguration
@EnableConfigurationProperties(LocksidecarProperties.class)
public class LocksidecarAutoConfiguration {
  /** For Spring Boot. */
  public LocksidecarAutoConfiguration() {}

  /**
   * The client of the app. Its end releases the locks.
   *
   * @param properties the settings
   * @return the client
   */
  @Bean(destroyMethod = "close")
  @ConditionalOnMissingBean
  public LockClient locksidecarClient(LocksidecarProperties properties) {
    LockClientBuilder builder = LockClient.builder();
    ofApp(properties.socket(), "LOCKSIDECAR_SOCKET").ifPresent(builder::socket);
    ofApp(properties.url(), "LOCKSIDECAR_URL").ifPresent(builder::url);
    ofApp(properties.tokenFile(), "LOCKSIDECAR_TOKEN_FILE").map(Path::of).ifPresent(builder::tokenFile);
    ofApp(properties.caFile(), "LOCKSIDECAR_CA_FILE").map(Path::of).ifPresent(builder::caFile);
    if (properties.ttl() != null) {
      builder.ttl(properties.ttl());
    }
    if (properties.timeout() != null) {
      builder.timeout(properties.timeout());
    }
    return builder.build();
  }

  /** A value of the app's own settings. Spring binds the variables of the environment, too, which the client reads itself: it knows which wins. */
  private static Optional<String> ofApp(@Nullable String value, String variable) {
    return Optional.ofNullable(value).filter(text -> !text.isEmpty() && !text.equals(System.getenv(variable)));
  }

  /**
   * The registry of the app.
   *
   * @param client of the app
   * @return the registry
   */
  @Bean
  @ConditionalOnMissingBean(LockRegistry.class)
  public LocksidecarLockRegistry locksidecarLockRegistry(LockClient client) {
    return new LocksidecarLockRegistry(client);
  }
}
