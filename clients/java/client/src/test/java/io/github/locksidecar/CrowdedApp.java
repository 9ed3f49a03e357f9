package io.github.locksidecar;

import java.io.FileInputStream;
import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/** An app that has a lock for several of its leases, and itself has all descriptors. */
public final class CrowdedApp {
  private CrowdedApp() {}

  public static void main(String[] arguments) throws Exception {
    try (LockClient client = LockClient.builder().build()) {
      HeldLock lock = client.acquire("key", LockOptions.defaults().ttl(Duration.ofSeconds(4)));
      lock.check();
      List<FileInputStream> files = new ArrayList<>();
      try {
        while (true) {
          files.add(new FileInputStream("/dev/null"));
        }
      } catch (IOException e) {
        System.out.println("full");
      }
      try {
        System.out.println("lost " + lock.lost().toCompletableFuture().get(6, TimeUnit.SECONDS));
      } catch (TimeoutException e) {
        System.out.println("not lost");
      }
      lock.check();
      lock.release();
      System.out.println("released");
    }
  }
}
