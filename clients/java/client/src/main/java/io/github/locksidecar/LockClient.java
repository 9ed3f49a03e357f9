package io.github.locksidecar;

import com.grack.nanojson.JsonObject;
import io.github.locksidecar.internal.Acquire;
import io.github.locksidecar.internal.Clock;
import io.github.locksidecar.internal.Json;
import io.github.locksidecar.internal.Operations;
import io.github.locksidecar.internal.Problem;
import io.github.locksidecar.internal.Settings;
import io.github.locksidecar.internal.Transport;
import java.time.Duration;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import org.jspecify.annotations.Nullable;

/**
 * Locks through the locksidecar beside the app. All threads of a process share one client, which has one session, opened by
 * the first call that needs it. When the process ends, for any reason, its locks are free at once.
 *
 * <pre>{@code
 * LockClient client = LockClient.create();
 * try (HeldLock lock = client.acquire("report:daily", LockOptions.defaults().maxWait(Duration.ofSeconds(5)))) {
 *   write(lock.token());
 * }
 * }</pre>
 *
 * <p>When the sidecar restarts, the locks of the session are lost, and the next call opens a new session. A call that waits
 * goes on, at the end of the queue, for as long as {@link LockClientBuilder#reconnect} says. Each acquire has a request id of its
 * own: if an answer is lost, a call that waits asks again with the same id, and a call that gives up withdraws the grant.
 *
 * <p>Besides the named errors, all calls may throw {@link UnavailableException}, and other
 * {@link LocksidecarException}s.
 */
public final class LockClient implements AutoCloseable {
  private final Transport transport;
  private final Operations operations;

  private LockClient(Settings settings) {
    this.transport = new Transport(settings);
    this.operations = new Operations(transport);
  }

  /**
   * A client of the sidecar at {@code LOCKSIDECAR_URL} or {@code LOCKSIDECAR_SOCKET}, else at the usual socket of a pod, or of this user.
   *
   * @return the client; it does not connect yet
   */
  public static LockClient create() {
    return builder().build();
  }

  /**
   * A client with other settings.
   *
   * @return the settings
   */
  public static LockClientBuilder builder() {
    return new LockClientBuilder();
  }

  static LockClient of(Settings settings) {
    return new LockClient(settings);
  }

  // Acquire.

  /**
   * Waits for an exclusive lock, without limit.
   *
   * @param key 1 to 512 bytes
   * @return the lock
   * @throws InterruptedException if the thread was interrupted: nothing stays granted
   */
  public HeldLock acquire(String key) throws InterruptedException {
    return acquire(key, LockOptions.defaults());
  }

  /**
   * Acquires a lock. If this throws, nothing stays granted.
   *
   * @param key 1 to 512 bytes
   * @param options for how long to wait, and what lock
   * @return the lock
   * @throws InterruptedException if the thread was interrupted
   * @throws LockHeldException if another caller holds it, and the call does not wait
   * @throws IllegalStateException if this thread holds it, and would wait for itself for ever:
   *     see {@link LockOptions#reentrant()} and {@link HeldLock#detach()}
   * @throws WaitTimeoutException if the call has waited for its {@link LockOptions#maxWait}
   * @throws SkippedException if the holder did the work: {@link LockOptions#skipIfDone()}
   */
  public HeldLock acquire(String key, LockOptions options) throws InterruptedException {
    return acquire(key, options, null);
  }

  /** As {@link #acquire(String, LockOptions)}, for a lock that may be held and entered again. */
  HeldLock acquire(String key, LockOptions options, @Nullable HeldLock entered) throws InterruptedException {
    Acquire acquire = prepare(key, options, entered);
    return new HeldLock(operations, acquire.one(), options.interrupts());
  }

  /** As {@link #acquire(String, LockOptions, HeldLock)}, but an interrupt does not end it. */
  HeldLock acquireUninterruptibly(String key, LockOptions options, @Nullable HeldLock entered) {
    Acquire acquire = prepare(key, options, entered);
    return new HeldLock(operations, acquire.oneUninterruptibly(), options.interrupts());
  }

  private Acquire prepare(String key, LockOptions options, @Nullable HeldLock entered) {
    Problem.text("key", key);
    Problem.required("options", options);
    return new Acquire(transport, List.of(key), options.request(), entered == null ? null : entered.grant());
  }

  /**
   * Acquires an exclusive lock if it is free.
   *
   * @param key 1 to 512 bytes
   * @return the lock, or null if another caller holds it; a {@code try} takes null
   */
  public @Nullable HeldLock tryAcquire(String key) {
    return tryAcquire(key, LockOptions.defaults());
  }

  /**
   * Acquires a lock if it can be had without a wait.
   *
   * @param key 1 to 512 bytes
   * @param options what lock
   * @return the lock, or null; a {@code try} takes null
   */
  public @Nullable HeldLock tryAcquire(String key, LockOptions options) {
    try {
      return acquireUninterruptibly(key, Problem.required("options", options).maxWait(Duration.ZERO), null);
    } catch (LockHeldException e) {
      return null;
    }
  }

  /**
   * Acquires 1 to 100 locks, all or none. There are no deadlocks, whatever the order of the keys.
   *
   * @param keys different keys
   * @param options for all locks
   * @return the locks
   * @throws InterruptedException if the thread was interrupted
   */
  public HeldLocks acquireMany(Collection<String> keys, LockOptions options) throws InterruptedException {
    Problem.required("keys", keys).forEach(key -> Problem.text("a key of keys", key));
    Problem.required("options", options);
    Acquire acquire = new Acquire(transport, List.copyOf(keys), options.request(), null);
    return new HeldLocks(
        acquire.many().stream().map(one -> new HeldLock(operations, one, options.interrupts())).toList());
  }

  /**
   * Waits for a share of a lock, without limit: shared holders do not exclude each other.
   *
   * @param key 1 to 512 bytes
   * @return the share
   * @throws InterruptedException if the thread was interrupted
   */
  public HeldLock shared(String key) throws InterruptedException {
    return acquire(key, LockOptions.defaults().shared());
  }

  /**
   * A semaphore.
   *
   * @param key 1 to 512 bytes
   * @param limit at most so many holders, 1 to 1000; all callers of the key name the same
   * @return the semaphore; it makes no call yet
   */
  public LockSemaphore semaphore(String key, int limit) {
    return semaphore(key, limit, LockOptions.defaults());
  }

  /**
   * A semaphore whose permits have options.
   *
   * @param key 1 to 512 bytes
   * @param limit at most so many holders, 1 to 1000; all callers of the key name the same
   * @param options of each permit
   * @return the semaphore; it makes no call yet
   */
  public LockSemaphore semaphore(String key, int limit, LockOptions options) {
    return new LockSemaphore(this, Problem.text("key", key), Problem.required("options", options).shared().limit(limit));
  }

  /**
   * The lock of a key as a {@link java.util.concurrent.locks.Lock}, reentrant for its thread.
   *
   * @param key 1 to 512 bytes
   * @return the lock; it makes no call yet
   */
  public KeyLock lock(String key) {
    return lock(key, LockOptions.defaults());
  }

  /**
   * The lock of a key as a {@link java.util.concurrent.locks.Lock}. It is reentrant unless it is shared.
   *
   * @param key 1 to 512 bytes
   * @param options of each acquire, except the wait
   * @return the lock; it makes no call yet
   */
  public KeyLock lock(String key, LockOptions options) {
    return new KeyLock(this, Problem.text("key", key), Problem.required("options", options));
  }

  // Do it once, lead.

  /**
   * Does the work under the lock, or waits for the result of another caller's {@code once}. If the work throws, its caller
   * gets the error, and the next waiter does the work.
   *
   * @param <E> what the work throws
   * @param key 1 to 512 bytes
   * @param work its result must be JSON of at most 4 KiB: map, list, string, number, boolean or null
   * @return the result as JSON makes it, also for the caller that did the work
   * @throws InterruptedException if the thread was interrupted while it waited
   * @throws E if the work throws it
   */
  public <E extends Exception> @Nullable Object once(String key, Task<? extends @Nullable Object, E> work)
      throws InterruptedException, E {
    return once(key, LockOptions.defaults(), work);
  }

  /**
   * As {@link #once(String, Task)}, with options.
   *
   * @param <E> what the work throws
   * @param key 1 to 512 bytes
   * @param options of the acquire
   * @param work its result must be JSON of at most 4 KiB
   * @return the result as JSON makes it
   * @throws InterruptedException if the thread was interrupted while it waited
   * @throws E if the work throws it
   */
  public <E extends Exception> @Nullable Object once(
      String key, LockOptions options, Task<? extends @Nullable Object, E> work) throws InterruptedException, E {
    HeldLock lock;
    Problem.required("work", work);
    try {
      lock = acquire(key, Problem.required("options", options).skipIfDone());
    } catch (SkippedException e) {
      return e.result();
    }
    try (lock) {
      lock.outcomeAtClose(Outcome.FAILURE); // unless the next lines succeed
      Object result = Json.copy("the result of the work", work.call());
      lock.release(Outcome.SUCCESS, result);
      return result;
    }
  }

  /**
   * Waits until this client is the leader, and runs the task in a thread of its own. At the end of a term it campaigns
   * again.
   *
   * <p>A term is over when the lock is lost or somebody asks to {@link #stop}. Then the task's thread is interrupted, and
   * the lock is held until the task has returned. If the task returns before the end of its term, this gives up the
   * leadership and returns the task's result. The task's errors go on. A campaign goes on through an outage of the sidecar
   * or its store, if the client has reached them before.
   *
   * <p>The client hears of a loss, and of a request to stop, at once while the sidecar answers. If the sidecar hangs, the
   * lock is lost when its lease ends by this process's clock.
   *
   * @param <T> the task's result
   * @param <E> what the task throws
   * @param key 1 to 512 bytes
   * @param options of the lock, such as {@link LockOptions#data}, which {@link #leader} returns to others
   * @param task what the leader does
   * @return the task's result
   * @throws InterruptedException if the calling thread was interrupted: the term is over, and the task has returned
   * @throws UnavailableException until the client has reached a sidecar; {@link LimitReachedException} and {@link
   *     SessionEndedException} likewise
   * @throws SessionEndedException if the client is closed
   * @throws LocksidecarException that will not pass, such as {@link InvalidRequestException}
   * @throws E if the task throws it
   */
  public <T extends @Nullable Object, E extends Exception> T lead(
      String key, LockOptions options, LeaderTask<T, E> task) throws InterruptedException, E {
    Problem.required("task", task);
    return new Campaign<>(this, key, Problem.required("options", options).waitForever(), task).run();
  }

  /** Whether to campaign again after this error. */
  boolean mayReturn(LocksidecarException error) {
    boolean away =
        error instanceof UnavailableException
            || error instanceof LimitReachedException
            || error instanceof SessionEndedException
            || error instanceof LockLostException;
    return away && transport.mayReturn();
  }

  /**
   * The data of the leader.
   *
   * @param key 1 to 512 bytes
   * @return JSON as Java values; null without a leader, or if it has no data
   */
  public @Nullable Object leader(String key) {
    Holder holder = get(key).holder();
    return holder == null ? null : holder.data();
  }

  /**
   * Follows the leader of a key.
   *
   * @param key 1 to 512 bytes
   * @return the leader's data, now and after each change
   * @throws InterruptedException if the thread was interrupted
   */
  public LeaderWatch watchLeader(String key) throws InterruptedException {
    return new LeaderWatch(events(key));
  }

  /**
   * Watches a key. When this returns, the key is watched.
   *
   * @param key 1 to 512 bytes
   * @return its events
   * @throws InterruptedException if the thread was interrupted
   */
  public KeyEvents events(String key) throws InterruptedException {
    return new KeyEvents(key, operations.watch(key));
  }

  // Read.

  /**
   * Shows one lock. The sidecar may answer from its memory.
   *
   * @param key 1 to 512 bytes
   * @return what it knows
   */
  public LockInfo get(String key) {
    return Read.info(operations.get(key, false));
  }

  /**
   * Shows one lock, as the store has it.
   *
   * @param key 1 to 512 bytes
   * @return what the store has
   */
  public LockInfo getFresh(String key) {
    return Read.info(operations.get(key, true));
  }

  /**
   * Lists held locks by key. Each iteration asks the sidecar, page by page.
   *
   * @param query which locks
   * @return the locks
   */
  public Iterable<LockInfo> locks(LockQuery query) {
    return () ->
        new Pages<>(
            more -> operations.page("/v1/locks", more, query.ofSession(), "list"), query.members(), "locks", Read::info);
  }

  /**
   * Lists the calls of all pods that wait for a key, in their order.
   *
   * @param key 1 to 512 bytes
   * @return the calls
   */
  public Iterable<Waiter> waiters(String key) {
    return waiting(Operations.waiters(key), Map.of());
  }

  /**
   * Lists the calls of all pods that wait, by key and position.
   *
   * @param prefix of the keys; may be empty
   * @return the calls
   */
  public Iterable<Waiter> allWaiters(String prefix) {
    return waiting(Operations.waiters(null), prefix.isEmpty() ? Map.of() : Map.of("prefix", prefix));
  }

  private Iterable<Waiter> waiting(String path, Map<String, Object> query) {
    return () -> new Pages<>(more -> operations.page(path, more, false, "waiters"), query, "waiters", Read::waiter);
  }

  /**
   * Asks the sidecar for its version and features.
   *
   * @return its answer
   */
  public Description describe() {
    return Read.description(operations.describe());
  }

  // Locks of others.

  /**
   * Asks the holder of a lock to release it, or all shared holders. They may go on.
   *
   * @param key 1 to 512 bytes
   * @param reason for the holder, or null
   * @throws NotHeldException if nobody holds the lock
   */
  public void stop(String key, @Nullable String reason) {
    operations.stop(key, reason, 0);
  }

  /**
   * Asks one of several holders to release its share.
   *
   * @param key 1 to 512 bytes
   * @param token of the holder
   * @param reason for the holder, or null
   * @throws NotHeldException if the token does not hold the lock
   */
  public void stop(String key, long token, @Nullable String reason) {
    operations.stop(key, reason, token);
  }

  /**
   * Breaks a lock of any holder, or of all shared holders. Returns when it is free.
   *
   * @param key 1 to 512 bytes
   * @throws ForbiddenException unless the sidecar allows it
   * @throws NotHeldException if nobody holds the lock
   */
  public void forceRelease(String key) {
    operations.forceRelease(key, 0);
  }

  /**
   * Breaks the lock of one holder.
   *
   * @param key 1 to 512 bytes
   * @param token of the holder
   */
  public void forceRelease(String key, long token) {
    operations.forceRelease(key, token);
  }

  /**
   * Releases a lock by key and token, such as a bind:ttl lock of another process.
   *
   * @param key 1 to 512 bytes
   * @param token its token
   * @return whether it is free now
   */
  public boolean release(String key, long token) {
    return released(key, token, null, null, 0);
  }

  /**
   * Releases a lock by key and token with an outcome and a result.
   *
   * @param key 1 to 512 bytes
   * @param token its token
   * @param outcome how the work ended
   * @param result JSON of at most 4 KiB, or null
   * @return whether it is free now
   */
  public boolean release(String key, long token, Outcome outcome, @Nullable Object result) {
    return released(key, token, outcome, result == null ? null : Map.of("result", Json.copy("result", result)), 0);
  }

  /**
   * Releases one entry of a lock by key and token, if the owner has this number of entries.
   *
   * @param key 1 to 512 bytes
   * @param token its token
   * @param reentry the present number of entries
   * @return whether it is free now
   */
  public boolean releaseEntry(String key, long token, int reentry) {
    return released(key, token, null, null, reentry);
  }

  private boolean released(
      String key, long token, @Nullable Outcome outcome, @Nullable Map<String, @Nullable Object> body, int reentry) {
    Problem.text("key", key);
    String word = outcome == null ? null : outcome.word();
    JsonObject value = operations.release(new Operations.Release(key, token, null, null, word, body, reentry, false, false));
    return value.getBoolean("released");
  }

  /**
   * Checks that a lock is held under this token.
   *
   * @param key 1 to 512 bytes
   * @param token its token
   * @return its state
   * @throws LockLostException if it is lost
   * @throws NotHolderException if the token does not hold the key here and now
   */
  public LockStatus check(String key, long token) {
    return Read.status(operations.check(key, token, null, Map.of()));
  }

  /**
   * Sets the remaining time of a bind:ttl lock by key and token, from now.
   *
   * @param key 1 to 512 bytes
   * @param token its token
   * @param ttl 500 ms to a day
   * @return its state
   */
  public LockStatus extend(String key, long token, Duration ttl) {
    LockOptions.check("ttl", ttl, Duration.ofMillis(500));
    return Read.status(
        operations.check(key, token, null, Map.of("ttl_ms", Clock.millis(ttl)), "bind_ttl"));
  }

  /** Ends the session and releases its locks. Waiting calls end with an error. May be called twice. */
  @Override
  public void close() {
    transport.close();
  }
}
