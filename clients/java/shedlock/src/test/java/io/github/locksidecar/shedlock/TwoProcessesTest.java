package io.github.locksidecar.shedlock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.locksidecar.testing.App;
import io.github.locksidecar.testing.Sidecar;
import java.time.Duration;
import java.time.Instant;
import java.util.List;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** A scheduled task of Spring with {@code @SchedulerLock}, in two JVMs. */
@Timeout(120)
class TwoProcessesTest {
  /** Each process counts the period from its own start. Without lockAtLeastFor both would run the task in each period. */
  // Proves: client once a period
  @Test
  void aTaskWithAFixedRateRunsAtMostOnceInAPeriod() throws Exception {
    try (Sidecar sidecar = Sidecar.inMemory();
        App first = new App(PeriodicApp.class, sidecar.socket())) {
      first.awaitLine("ran ");
      try (App second = new App(PeriodicApp.class, sidecar.socket())) {
        second.await("refused");
        second.await("refused");
        first.kill();
        second.awaitLine("ran ");
        second.awaitLine("ran ");
        List<Instant> runs = Stream.of(first, second).flatMap(PeriodicApp::runs).sorted().toList();
        for (int i = 1; i < runs.size(); i++) {
          Duration between = Duration.between(runs.get(i - 1), runs.get(i));
          assertTrue(between.compareTo(PeriodicApp.PERIOD) >= 0, "two runs in " + between + ": " + runs);
        }
      }
    }
  }

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
