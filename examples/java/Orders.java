import io.github.locksidecar.HeldLock;
import io.github.locksidecar.LockClient;
import io.github.locksidecar.LockLostException;
import io.github.locksidecar.LockOptions;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

/**
 * Threads that work on the same orders, with the client for the JVM: each order is shipped once at a time. The last part
 * shows a work that loses its lock.
 */
class Orders {
  private static final int ORDERS = 3;
  private static final int THREADS = 8;
  private static final int[] shipped = new int[ORDERS]; // the locks alone protect it

  public static void main(String[] arguments) throws Exception {
    try (LockClient client = LockClient.builder().name("Orders.java").build()) {
      ExecutorService threads = Executors.newFixedThreadPool(THREADS);
      List<Future<?>> all = new ArrayList<>();
      for (int i = 0; i < THREADS * 10; i++) {
        int order = i % ORDERS;
        all.add(threads.submit(() -> ship(client, order)));
      }
      for (Future<?> one : all) {
        one.get();
      }
      threads.shutdown();
      int total = shipped[0] + shipped[1] + shipped[2];
      System.out.println("shipped " + total + " of " + THREADS * 10);
      if (total != THREADS * 10 || !losesItsLock(client)) {
        System.exit(1);
      }
    }
  }

  private static Void ship(LockClient client, int order) throws InterruptedException {
    LockOptions options = LockOptions.defaults().maxWait(Duration.ofSeconds(30));
    try (HeldLock lock = client.acquire("order:" + order, options)) {
      int before = shipped[order]; // a database gets lock.token() with the write, and refuses a smaller one
      Thread.yield();
      shipped[order] = before + 1;
    }
    return null;
  }

  /** A work that takes too long is interrupted, and its block ends with an error. */
  private static boolean losesItsLock(LockClient client) {
    LockOptions options = LockOptions.defaults().maxHold(Duration.ofMillis(100)).interruptOnLoss();
    try (HeldLock lock = client.acquire("order:slow", options)) {
      Thread.sleep(30_000);
    } catch (InterruptedException e) {
      System.out.println("interrupted: " + e.getSuppressed()[0].getMessage());
      return e.getSuppressed()[0] instanceof LockLostException;
    }
    return false;
  }
}
