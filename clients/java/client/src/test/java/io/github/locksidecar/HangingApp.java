package io.github.locksidecar;

import java.time.Duration;

/** An app whose calls hang in the sidecar until no descriptor is free. It says how long it had a lock. */
public final class HangingApp {
  private static final int THREADS = 100;

  private HangingApp() {}

  public static void main(String[] arguments) throws Exception {
    LockClient client = LockClient.builder().timeout(Duration.ofSeconds(60)).build();
    client.acquire("key").release();
    long acquired = System.nanoTime();
    HeldLock lock = client.acquire("key", LockOptions.defaults().ttl(Duration.ofSeconds(2)));
    System.out.println("acquired");
    System.in.read(); // until the sidecar hangs
    for (int i = 0; i < THREADS; i++) {
      Thread hangs = new Thread(() -> client.get("key"));
      hangs.setDaemon(true);
      hangs.start();
    }
    String reason = lock.lost().toCompletableFuture().get();
    System.out.println("lost " + reason + " " + (System.nanoTime() - acquired) / 1_000_000);
    Runtime.getRuntime().halt(0);
  }
}
