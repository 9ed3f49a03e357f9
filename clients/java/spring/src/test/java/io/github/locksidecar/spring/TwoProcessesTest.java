package io.github.locksidecar.spring;

import static org.junit.jupiter.api.Assertions.assertEquals;

import io.github.locksidecar.LockClient;
import io.github.locksidecar.testing.App;
import io.github.locksidecar.testing.Sidecar;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** An app of Spring Boot in two processes elects a leader by LockRegistryLeaderInitiator. */
@Timeout(180)
class TwoProcessesTest {
  @Test
  void oneLeadsAndTheOtherTakesOver() throws Exception {
    Map<String, String> settings = Map.of("STORE_URL", "memory://", "ALLOW_FORCE", "true");
    try (Sidecar sidecar = new Sidecar(settings);
        App first = new App(LeaderApp.class, sidecar.socket())) {
      first.await("granted");
      try (App second = new App(LeaderApp.class, sidecar.socket())) {
        second.await("refused");
        assertEquals(List.of(), second.said("granted"), "both lead");
        first.kill();
        second.await("granted");
        LockClient client = sidecar.client();
        client.forceRelease("spring:leader");
        second.await("revoked"); // a lost lock ends the leadership
        second.await("granted");
      }
    }
  }
}
