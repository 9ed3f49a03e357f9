package io.github.locksidecar.shedlock;

import static org.junit.jupiter.api.Assertions.assertEquals;

import io.github.locksidecar.testing.App;
import io.github.locksidecar.testing.Sidecar;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** A scheduled task of Spring with {@code @SchedulerLock}, in two JVMs. */
@Timeout(120)
class TwoProcessesTest {
  @Test
  void oneRunsTheTaskAndTheOtherTakesOverWhenItIsKilled() throws Exception {
    try (Sidecar sidecar = Sidecar.inMemory();
        App first = new App(ScheduledApp.class, sidecar.socket())) {
      first.await("runs");
      try (App second = new App(ScheduledApp.class, sidecar.socket())) {
        second.await("refused");
        second.await("refused");
        assertEquals(List.of(), second.said("runs"), "both run it");
        first.kill();
        second.await("runs"); // although lockAtMostFor is an hour
      }
    }
  }
}
