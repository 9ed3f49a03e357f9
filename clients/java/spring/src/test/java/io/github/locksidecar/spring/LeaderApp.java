package io.github.locksidecar.spring;

import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.context.annotation.Bean;
import org.springframework.context.event.EventListener;
import org.springframework.integration.leader.DefaultCandidate;
import org.springframework.integration.leader.event.OnFailedToAcquireMutexEvent;
import org.springframework.integration.leader.event.OnGrantedEvent;
import org.springframework.integration.leader.event.OnRevokedEvent;
import org.springframework.integration.support.leader.LockRegistryLeaderInitiator;
import org.springframework.integration.support.locks.LockRegistry;

/** An app of Spring Boot that wants to be the leader, in a JVM of its own. It says what happens, a line each. */
@SpringBootApplication
public class LeaderApp {
  @Bean
  LockRegistryLeaderInitiator leader(LockRegistry<?> registry) {
    LockRegistryLeaderInitiator leader = new LockRegistryLeaderInitiator(registry, new DefaultCandidate("id", "leader"));
    leader.setPublishFailedEvents(true);
    return leader;
  }

  @EventListener
  void granted(OnGrantedEvent event) {
    say("granted");
  }

  @EventListener
  void revoked(OnRevokedEvent event) {
    say("revoked");
  }

  @EventListener
  void failed(OnFailedToAcquireMutexEvent event) {
    say("refused");
  }

  private static void say(String word) {
    System.out.println(word);
    System.out.flush();
  }

  public static void main(String[] arguments) {
    SpringApplication.run(LeaderApp.class, arguments);
  }
}
