import io.github.locksidecar.HeldLock;
import io.github.locksidecar.LockClient;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/**
 * {@code Pairs locksidecar|redisson SOCKET|ADDRESS CALLERS SECONDS} prints the pairs of acquire and release a second, each thread with a key of its
 * own. Before that, all threads want one key, and it fails if two have it at a time.
 */
final class Pairs {
  /** Returns the release of a lock, or null if another caller holds it. */
  interface Acquire {
    Runnable of(String key) throws Exception;
  }

  interface Pair {
    boolean by(int caller) throws Exception;
  }

  private static final AtomicInteger HOLDERS = new AtomicInteger();

  public static void main(String[] args) throws Exception {
    Acquire acquire = args[0].equals("locksidecar") ? locksidecar(args[1]) : redisson(args[1]);
    int callers = Integer.parseInt(args[2]);
    ExecutorService threads = Executors.newFixedThreadPool(callers);
    if (each(threads, callers, 0.5, i -> contended(acquire)) == 0) {
      throw new IllegalStateException("nobody got the lock");
    }
    each(threads, callers, 2, i -> own(acquire, i)); // warm: the compiler of the JVM takes its time
    System.out.println(Math.round(each(threads, callers, Double.parseDouble(args[3]), i -> own(acquire, i))));
    System.exit(0);
  }

  private static Acquire locksidecar(String socket) {
    LockClient client = LockClient.builder().socket(socket).build();
    return key -> {
      HeldLock lock = client.tryAcquire(key);
      return lock == null ? null : lock::close;
    };
  }

  private static Acquire redisson(String address) {
    Config config = new Config();
    config.useSingleServer().setAddress(address);
    RedissonClient client = Redisson.create(config);
    return key -> {
      RLock lock = client.getLock(key);
      return lock.tryLock(0, 30, TimeUnit.SECONDS) ? lock::unlock : null;
    };
  }

  /** Runs all threads for a time, and returns the number of pairs a second. */
  private static double each(ExecutorService threads, int callers, double seconds, Pair pair) throws Exception {
    long began = System.nanoTime();
    List<Future<Integer>> counts = new ArrayList<>();
    for (int i = 0; i < callers; i++) {
      int caller = i;
      Callable<Integer> run = () -> {
        int pairs = 0;
        while (System.nanoTime() - began < seconds * 1e9) {
          pairs += pair.by(caller) ? 1 : 0;
        }
        return pairs;
      };
      counts.add(threads.submit(run));
    }
    int sum = 0;
    for (Future<Integer> count : counts) {
      sum += count.get();
    }
    return sum / ((System.nanoTime() - began) / 1e9);
  }

  private static boolean contended(Acquire acquire) throws Exception {
    Runnable release = acquire.of("bench:one");
    if (release == null) {
      return false;
    }
    int holders = HOLDERS.incrementAndGet();
    Thread.yield();
    if (holders != 1 || HOLDERS.get() != 1) {
      throw new IllegalStateException("two callers had the lock at a time");
    }
    HOLDERS.decrementAndGet();
    release.run();
    return true;
  }

  private static boolean own(Acquire acquire, int caller) throws Exception {
    Runnable release = acquire.of("bench:" + caller);
    if (release == null) {
      throw new IllegalStateException("a key that nobody else uses is held");
    }
    release.run();
    return true;
  }
}
