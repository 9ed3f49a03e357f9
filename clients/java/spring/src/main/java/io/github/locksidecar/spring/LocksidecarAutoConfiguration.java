package io.github.locksidecar.spring;

import io.github.locksidecar.LockClient;
import io.github.locksidecar.LockClientBuilder;
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
    if (properties.socket() != null) {
      builder.socket(properties.socket());
    }
    if (properties.ttl() != null) {
      builder.ttl(properties.ttl());
    }
    if (properties.timeout() != null) {
      builder.timeout(properties.timeout());
    }
    return builder.build();
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
