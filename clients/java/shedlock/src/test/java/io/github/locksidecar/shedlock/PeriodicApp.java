package io.github.locksidecar.shedlock;

import io.github.locksidecar.LockClient;
import io.github.locksidecar.testing.App;
import java.time.Duration;
import java.time.Instant;
import java.util.Optional;
import java.util.stream.Stream;
import net.javacrumbs.shedlock.core.LockProvider;
import net.javacrumbs.shedlock.core.SimpleLock;
import net.javacrumbs.shedlock.spring.annotation.EnableSchedulerLock;
import net.javacrumbs.shedlock.spring.annotation.SchedulerLock;
import org.springframework.context.annotation.AnnotationConfigApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.scheduling.annotation.EnableScheduling;
import org.springframework.scheduling.annotation.Scheduled;

/** An app with a task at a fixed rate, in a JVM of its own. It says when each run got its lock, by the sidecar's clock. */
@Configuration(proxyBeanMethods = false)
@EnableScheduling
@EnableSchedulerLock(defaultLockAtMostFor = "PT1H")
public class PeriodicApp {
  static final Duration PERIOD = Duration.ofSeconds(2);

  @Bean(destroyMethod = "close")
  LockClient client() {
    return LockClient.create();
  }

  @Bean
  LockProvider provider(LockClient client) {
    LocksidecarLockProvider provider = new LocksidecarLockProvider(client);
    return configuration -> {
      Optional<SimpleLock> lock = provider.lock(configuration);
      ScheduledApp.say(lock.map(any -> "ran " + client.get("shedlock:periodic").holder().acquiredAt()).orElse("refused"));
      return lock;
    };
  }

  @Bean
  Job job() {
    return new Job();
  }

  /** The task. */
  public static class Job {
    @Scheduled(fixedRate = 2000)
    @SchedulerLock(name = "periodic", lockAtLeastFor = "PT2S")
    public void run() {}
  }

  /** When an app got the lock for a run. */
  static Stream<Instant> runs(App app) {
    return app.lines().filter(line -> line.startsWith("ran ")).map(line -> Instant.parse(line.substring(4)));
  }

  @SuppressWarnings("resource") // it runs until the process is killed
  public static void main(String[] arguments) {
    new AnnotationConfigApplicationContext(PeriodicApp.class);
  }
}
