package io.github.locksidecar;

import java.time.Duration;

/** An app that holds a lock while it is halted, and asks for it when it goes on. */
public final class HaltedApp {
  private static final Duration HALT = Duration.ofSeconds(4);

  private HaltedApp() {}

  public static void main(String[] arguments) throws Exception {
    LockClient client = LockClient.builder().ttl(Duration.ofSeconds(5)).build();
    HeldLock lock = client.acquire("key");
    lock.lost().thenAccept(reason -> System.out.println("lost: " + reason));
    long before = System.nanoTime();
    while (System.nanoTime() - before < HALT.toNanos()) {
      before = System.nanoTime();
      Thread.sleep(5);
    }
    while (!lock.isLost() && lock.expiresIn().isZero()) {
      Thread.sleep(5);
    }
    lock.release();
    System.out.println("released");
  }
}
