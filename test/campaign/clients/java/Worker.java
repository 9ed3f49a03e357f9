import com.grack.nanojson.JsonObject;
import com.grack.nanojson.JsonParser;
import com.grack.nanojson.JsonWriter;
import io.github.locksidecar.HeldLock;
import io.github.locksidecar.HeldLocks;
import io.github.locksidecar.KeyLock;
import io.github.locksidecar.LockClient;
import io.github.locksidecar.LockHeldException;
import io.github.locksidecar.LockOptions;
import io.github.locksidecar.LocksidecarException;
import io.github.locksidecar.WaitTimeoutException;
import java.io.BufferedReader;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;

/** A program of the campaign: {@code java Worker.java TASK}, with what it is to do as JSON. Threads, whose calls are interrupted. */
public final class Worker {
  static final List<String> KEYS = List.of("k0", "k1", "k2", "k3");
  static final List<String> FORMS = List.of("block", "block", "keylock", "keylock", "try", "many", "semaphore", "nested");
  static final int LIMIT = 2;
  // How long an object that all threads use may take until it was granted again, when nothing fails.
  static final Duration AGAIN = Duration.ofSeconds(20);

  final JsonObject task;
  final String name;
  final FileOutputStream records;
  final AtomicInteger number = new AtomicInteger();
  final LockClient client;
  final LockOptions options;
  final Map<String, KeyLock> locks = new ConcurrentHashMap<>();
  final List<String> forms;
  final ScheduledExecutorService timers = Executors.newScheduledThreadPool(1);
  volatile boolean calm;

  public static void main(String[] args) throws Exception {
    sun.misc.Signal.handle(new sun.misc.Signal("TERM"), signal -> Runtime.getRuntime().halt(0));
    new Worker(JsonParser.object().from(args[0])).run();
  }

  Worker(JsonObject task) throws Exception {
    this.task = task;
    name = task.getString("name");
    records = new FileOutputStream(task.getString("records"), true);
    client =
        LockClient.builder().socket(task.getString("socket")).name(name).timeout(seconds("timeout")).reconnect(seconds("reconnect")).build();
    options = LockOptions.defaults().ttl(seconds("ttl"));
    for (String key : KEYS) {
      locks.put(key, client.lock(key, options));
    }
    List<Object> only = task.getArray("forms") == null ? List.of() : task.getArray("forms");
    forms = only.isEmpty() ? FORMS : FORMS.stream().filter(only::contains).toList();
  }

  Duration seconds(String what) {
    return Duration.ofMillis((long) (task.getDouble(what) * 1000));
  }

  // The history: a line for each beginning and each end.

  long now() {
    return System.nanoTime() + task.getLong("offset");
  }

  synchronized void write(Map<String, Object> op) {
    try {
      records.write((JsonWriter.string(op) + "\n").getBytes(StandardCharsets.UTF_8));
    } catch (Exception e) {
      throw new IllegalStateException(e);
    }
  }

  Map<String, Object> begin(String kind, int actor) {
    Map<String, Object> op = new LinkedHashMap<>();
    op.put("id", name + "-" + number.incrementAndGet());
    op.put("app", name);
    op.put("program", task.getString("program"));
    op.put("sidecar", task.getInt("sidecar"));
    op.put("actor", actor);
    op.put("kind", kind);
    op.put("call", now());
    return op;
  }

  void end(Map<String, Object> op, String outcome) {
    op.put("outcome", outcome);
    op.put("return", now());
    write(op);
  }

  void failed(Map<String, Object> op, Throwable error) {
    int wait = (Integer) op.getOrDefault("wait", 0);
    if (error instanceof InterruptedException) {
      end(op, "cancelled");
    } else if (op.get("kind").equals("acquire")
        && (wait == 0 ? error.getClass() == LockHeldException.class : error instanceof WaitTimeoutException)) {
      end(op, "timeout");
    } else {
      String kind = error instanceof LocksidecarException ? error.getClass().getSimpleName() : error.getClass().getName();
      op.put("error", kind);
      op.put("text", String.valueOf(error.getMessage()));
      end(op, "failed");
    }
  }

  /** One acquire, and what becomes of it. */
  final class Hold {
    final int actor;
    final Random rng;
    final Thread thread = Thread.currentThread();
    final Map<String, Object> op;
    final int wait;
    Map<String, Object> release;
    Map<String, Object> exposed;
    boolean granted;

    Hold(int actor, Random rng, String form, List<String> keys, int wait) {
      this.actor = actor;
      this.rng = rng;
      this.wait = wait;
      op = begin("acquire", actor);
      op.put("form", form);
      op.put("keys", keys);
      op.put("wait", wait);
      op.put("limit", keys.equals(List.of("s0")) ? LIMIT : 0);
      write(op);
    }

    synchronized void expose(Map<String, Object> call) {
      exposed = call;
    }

    synchronized void interrupt() {
      if (exposed != null) {
        if (exposed == op) {
          op.put("cancel", now());
          write(op);
        }
        exposed = null;
        thread.interrupt();
      }
    }

    /** From here on the thread is not interrupted. */
    void cover() {
      expose(null);
      Thread.interrupted();
    }

    LockOptions how() {
      LockOptions named = options.data(op.get("id"));
      return wait < 0 ? named.waitForever() : named.maxWait(Duration.ofMillis(wait));
    }

    void got(List<HeldLock> held) {
      op.put("keys", held.stream().map(HeldLock::key).toList());
      op.put("tokens", held.stream().map(HeldLock::token).toList());
      synchronized (this) {
        end(op, "granted");
        granted = true;
        exposed = Collections.emptyMap();
      }
      for (HeldLock one : held) {
        one.lost().thenRun(
            () -> {
              Map<String, Object> lost = begin("lost", actor);
              lost.put("hold", op.get("id"));
              lost.put("keys", List.of(one.key()));
              end(lost, "done");
            });
      }
    }

    void rest() throws InterruptedException {
      try {
        Thread.sleep(rng.nextDouble() < 0.98 ? List.of(0, 5, 20, 50).get(rng.nextInt(4)) : 1000 + rng.nextInt(7000));
      } finally {
        leaves();
      }
    }

    /** From here on it is released. An interrupt may come, and the release ends all the same. */
    void leaves() {
      release = begin("release", actor);
      release.put("form", op.get("form"));
      release.put("hold", op.get("id"));
      write(release);
    }

    void body(List<HeldLock> held) throws InterruptedException {
      got(held);
      rest();
    }

    void block(List<String> keys) throws InterruptedException {
      expose(op);
      try (HeldLock lock = client.acquire(keys.get(0), how())) {
        body(List.of(lock));
      }
    }

    void through(List<String> keys) throws InterruptedException {
      try (HeldLock lock = client.acquire(keys.get(0), how())) {
        CountDownLatch lost = new CountDownLatch(1);
        lock.lost().thenRun(lost::countDown);
        got(List.of(lock));
        while (!calm && !lost.await(50, TimeUnit.MILLISECONDS)) {}
        leaves();
      }
    }

    void tries(List<String> keys) throws InterruptedException {
      try (HeldLock lock = client.tryAcquire(keys.get(0), options.data(op.get("id")))) {
        if (lock == null) {
          end(op, "timeout");
          return;
        }
        body(List.of(lock));
      }
    }

    void many(List<String> keys) throws InterruptedException {
      expose(op);
      try (HeldLocks group = client.acquireMany(keys, how())) {
        body(group.all());
      }
    }

    void semaphore(List<String> keys) throws InterruptedException {
      expose(op);
      try (HeldLock permit = client.semaphore("s0", LIMIT, how()).acquire()) {
        body(List.of(permit));
      }
    }

    void keylock(List<String> keys, boolean twice) throws InterruptedException {
      KeyLock lock = locks.get(keys.get(0));
      expose(op);
      if (wait < 0) {
        lock.lockInterruptibly();
      } else if (!lock.tryLock(wait, TimeUnit.MILLISECONDS)) {
        end(op, "timeout");
        return;
      }
      got(List.of(lock.held()));
      try {
        if (twice) {
          enter(lock);
        }
        rest();
      } finally {
        lock.unlock();
      }
    }

    void enter(KeyLock lock) throws InterruptedException {
      Map<String, Object> enter = begin("enter", actor);
      enter.put("form", "nested");
      enter.put("wait", -1);
      enter.put("hold", op.get("id"));
      try {
        lock.lockInterruptibly();
        end(enter, "granted");
      } catch (Exception e) {
        failed(enter, e);
        if (e instanceof InterruptedException) {
          leaves();
        }
        throw e;
      }
      Map<String, Object> leave = begin("leave", actor);
      leave.put("form", "nested");
      leave.put("hold", op.get("id"));
      try {
        lock.unlock();
        end(leave, "done");
      } catch (Exception e) {
        failed(leave, e);
      }
    }

    void run(List<String> keys) {
      try {
        switch ((String) op.get("form")) {
          case "block" -> block(keys);
          case "through" -> through(keys);
          case "try" -> tries(keys);
          case "many" -> many(keys);
          case "semaphore" -> semaphore(keys);
          case "keylock" -> keylock(keys, false);
          default -> keylock(keys, true);
        }
        cover();
      } catch (Throwable e) {
        cover();
        if (!granted) {
          failed(op, e);
          release = null;
        } else {
          if (release == null) {
            leaves();
          }
          failed(release, e);
          release = null;
        }
      }
      if (release != null) {
        end(release, "done");
      }
      retry(locks.get(keys.get(0)));
    }

    /** If the object says that this thread holds the lock, it is released until it does not. */
    void retry(KeyLock lock) {
      while (lock != null && lock.held() != null) {
        leaves();
        try {
          lock.unlock();
          end(release, "done");
        } catch (Exception e) {
          failed(release, e);
          pause(200);
        }
      }
    }
  }

  static void pause(long ms) {
    try {
      Thread.sleep(ms);
    } catch (InterruptedException e) {
      throw new IllegalStateException(e);
    }
  }

  void act(int actor, Random rng) {
    String form = forms.get(rng.nextInt(forms.size()));
    int wait = form.equals("try") ? 0 : List.of(0, 50, 200, 1000, 2000, -1).get(rng.nextInt(6));
    List<String> keys = new ArrayList<>(KEYS);
    Collections.shuffle(keys, rng);
    keys = form.equals("semaphore") ? List.of("s0") : List.copyOf(keys.subList(0, form.equals("many") ? 2 + rng.nextInt(2) : 1));
    if (!form.equals("semaphore") && !form.equals("many") && rng.nextDouble() < 0.4) {
      keys = List.of("own:" + name + ":" + actor); // nobody else wants it: the call is quick, so an interrupt meets all its steps
      locks.computeIfAbsent(keys.get(0), key -> client.lock(key, options));
    }
    Hold hold = new Hold(actor, rng, form, keys, wait);
    if (rng.nextBoolean()) {
      timers.schedule(hold::interrupt, List.of(0, 200, 400, 700, 1000, 5_000, 50_000, 500_000, 2_000_000).get(rng.nextInt(9)), TimeUnit.MICROSECONDS);
    }
    hold.run(keys);
  }

  /** Holds a lock until it is lost, also while the sidecar is frozen, and then again. */
  void holdThrough() {
    List<String> keys = List.of("through:" + name);
    while (!calm) {
      new Hold(task.getInt("actors"), null, "through", keys, -1).run(keys);
      pause(50);
    }
  }

  List<Thread> work() {
    List<Thread> all = new ArrayList<>();
    all.add(new Thread(this::holdThrough));
    all.get(0).start();
    for (int i = 0; i < task.getInt("actors"); i++) {
      int actor = i;
      Thread one =
          new Thread(
              () -> {
                Random rng = new Random(task.getLong("seed") * 100 + actor);
                while (!calm) {
                  act(actor, rng);
                  pause(rng.nextInt(50));
                }
              });
      one.start();
      all.add(one);
    }
    return all;
  }

  void quiet(String form, HeldLock kept) {
    Map<String, Object> op = begin("quiet", -1);
    op.put("form", form);
    if (kept != null) {
      op.put("keys", List.of(kept.key()));
      op.put("tokens", List.of(kept.token()));
    }
    end(op, "done");
  }

  interface Use {
    void run() throws Exception;
  }

  void again(String form, List<String> keys, Use use) {
    Map<String, Object> op = begin("again", -1);
    op.put("form", form);
    op.put("keys", keys);
    write(op);
    try {
      use.run();
      end(op, "done");
    } catch (Exception e) {
      failed(op, e);
    }
  }

  void useAgain() {
    for (String key : KEYS) {
      KeyLock lock = locks.get(key);
      again(
          "keylock", List.of(key),
          () -> {
            if (!lock.tryLock(AGAIN.toMillis(), TimeUnit.MILLISECONDS)) {
              throw new IllegalStateException("it was not granted");
            }
            lock.unlock();
          });
    }
    again("semaphore", List.of("s0"), () -> client.semaphore("s0", LIMIT, options.maxWait(AGAIN)).acquire().close());
    again("many", KEYS, () -> client.acquireMany(KEYS, options.maxWait(AGAIN)).close());
  }

  void run() throws Exception {
    BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    List<Thread> threads = work();
    HeldLock kept = null;
    for (String line = input.readLine(); line != null; line = input.readLine()) {
      switch (line) {
        case "calm" -> {
          calm = true;
          for (Thread one : threads) {
            one.join();
          }
          kept = client.acquire("keep:" + name, options.maxWait(AGAIN).data("kept"));
          quiet("", kept);
        }
        case "again" -> {
          kept.release();
          useAgain();
          quiet("again", null);
        }
        default -> {
          calm = false;
          threads = work();
        }
      }
    }
    calm = true;
    for (Thread one : threads) {
      one.join();
    }
    client.close();
    quiet("closed", null);
    Thread.sleep(Long.MAX_VALUE); // until SIGTERM
  }
}
