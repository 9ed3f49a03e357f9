package io.github.locksidecar;

import io.github.locksidecar.testing.Sidecar;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;

/** An app whose calls wait for one lock until no descriptor is free, and whose release ends their waits. */
public final class ManyWaitApp {
  private static final int THREADS = 150;

  private ManyWaitApp() {}

  public static void main(String[] arguments) throws Exception {
    boolean hangs = System.getenv("LOCKSIDECAR_TEST_HANG") != null;
    LockClient client = LockClient.builder().timeout(Duration.ofSeconds(hangs ? 1 : 10)).build();
    HeldLock lock = client.acquire("key");
    AtomicInteger count = new AtomicInteger();
    List<Thread> waiting = new ArrayList<>();
    for (int i = 0; i < THREADS; i++) {
      waiting.add(new Thread(() -> enter(client, count)));
    }
    waiting.forEach(Thread::start);
    say("error " + awaitNoDescriptor(client));
    if (hangs) {
      loseReserve(client, lock);
    }
    lock.check();
    say("checked");
    lock.release();
    say("released");
    for (Thread one : waiting) {
      one.join();
    }
    say("entered " + count);
    client.close();
    say("closed");
  }

  /** Asks until the sidecar hangs. Its connection breaks, and waiting calls take the descriptors that they can. */
  private static void loseReserve(LockClient client, HeldLock lock) {
    while (true) {
      try {
        lock.check();
      } catch (UnavailableException e) {
        awaitNoDescriptor(client);
        say("no answer");
        return;
      }
      Sidecar.pause();
    }
  }

  private static void enter(LockClient client, AtomicInteger count) {
    try (HeldLock mine = client.acquire("key")) {
      count.incrementAndGet();
    } catch (InterruptedException | LocksidecarException e) {
      say("failed: " + e);
    }
  }

  /** The error of a call that needs a descriptor, when the waiting calls have all. */
  private static String awaitNoDescriptor(LockClient client) {
    while (true) {
      try {
        client.get("other");
      } catch (UnavailableException e) {
        if (e.code().equals("unreachable")) {
          return e.getMessage();
        }
      }
      Sidecar.pause();
    }
  }

  private static void say(String line) {
    System.out.println(line);
    System.out.flush();
  }
}
