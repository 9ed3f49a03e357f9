package io.github.locksidecar.shedlock;

import io.github.locksidecar.LockClient;
import java.util.Optional;
import net.javacrumbs.shedlock.core.LockProvider;
import net.javacrumbs.shedlock.core.SimpleLock;
import net.javacrumbs.shedlock.spring.annotation.EnableSchedulerLock;
import net.javacrumbs.shedlock.spring.annotation.SchedulerLock;
import org.springframework.context.annotation.AnnotationConfigApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.scheduling.annotation.EnableScheduling;
import org.springframework.scheduling.annotation.Scheduled;

/** An app with a scheduled task, in a JVM of its own. It says what happens, a line each. */
@Configuration(proxyBeanMethods = false)
@EnableScheduling
@EnableSchedulerLock(defaultLockAtMostFor = "PT1H")
public class ScheduledApp {
  @Bean(destroyMethod = "close")
  LockClient client() {
    return LockClient.create();
  }

  @Bean
  LockProvider provider(LockClient client) {
    LocksidecarLockProvider provider = new LocksidecarLockProvider(client);
    return configuration -> {
      Optional<SimpleLock> lock = provider.lock(configuration);
      if (lock.isEmpty()) {
        say("refused");
      }
      return lock;
    };
  }

  @Bean
  Job job() {
    return new Job();
  }

  /** The task. */
  public static class Job {
    @Scheduled(fixedDelay = 50)
    @SchedulerLock(name = "nightly")
    public void run() throws InterruptedException {
      say("runs");
      Thread.sleep(Long.MAX_VALUE);
    }
  }

  static void say(String word) {
    System.out.println(word);
    System.out.flush();
  }

  @SuppressWarnings("resource") // it runs until the process is killed
  public static void main(String[] arguments) {
    new AnnotationConfigApplicationContext(ScheduledApp.class);
  }
}
