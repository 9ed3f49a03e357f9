package io.github.locksidecar;

import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.locksidecar.testing.App;
import io.github.locksidecar.testing.Sidecar;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** A process whose waiting calls use up all its file descriptors. */
@Timeout(120)
class DescriptorsTest {
  @Test
  void aReleaseGetsThroughAlthoughWaitingCallsHaveAllDescriptors() throws Exception {
    try (Sidecar sidecar = Sidecar.inMemory();
        App app = new App(ManyWaitApp.class, sidecar.socket(), "ulimit -n 60")) {
      String error = app.awaitLine("error ");
      assertTrue(error.contains(sidecar.socket()) && error.contains("no free file descriptor"), error);
      assertTrue(error.contains("ulimit -n"), error);
      app.await("checked");
      app.await("released");
      app.await("entered 150");
      app.await("closed");
      assertFalse(sidecar.client().getFresh("key").held());
    }
  }

  /** The connection in reserve was lost to a sidecar that hung. */
  @Test
  void aReleaseGetsThroughAfterAHang() throws Exception {
    try (Sidecar sidecar = Sidecar.inMemory();
        App app = new App(ManyWaitApp.class, sidecar.socket(), "ulimit -n 60; export LOCKSIDECAR_TEST_HANG=1")) {
      app.awaitLine("error ");
      sidecar.signal("STOP");
      app.await("no answer");
      sidecar.signal("CONT");
      app.await("released");
      app.await("entered 150");
    }
  }
}
