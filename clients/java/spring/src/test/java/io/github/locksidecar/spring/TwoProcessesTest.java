package io.github.locksidecar.spring;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.locksidecar.LockClient;
import io.github.locksidecar.testing.App;
import io.github.locksidecar.testing.Sidecar;
import io.github.locksidecar.testing.Store;
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

  /** Each has a sidecar of its own. The leader's hangs for longer than its lease lasts, and goes on later. */
  // Proves: client deadline
  @Test
  void aLeaderWhoseSidecarHangsIsRevokedBeforeTheNextOneLeads() throws Exception {
    try (Store store = new Store("postgres");
        Sidecar hanging = new Sidecar(Map.of("STORE_URL", store.url()));
        Sidecar other = new Sidecar(Map.of("STORE_URL", store.url()));
        App first = new App(LeaderApp.class, hanging.socket())) {
      first.await("granted");
      try (App second = new App(LeaderApp.class, other.socket())) {
        second.await("refused");
        hanging.signal("STOP");
        long granted = second.await("granted");
        long revoked = first.await("revoked");
        assertTrue(revoked < granted, "two leaders for " + (revoked - granted) / 1_000_000 + " ms");
        hanging.signal("CONT");
        first.await("refused");
        second.kill();
        first.await("granted"); // again
      }
    }
  }
}
