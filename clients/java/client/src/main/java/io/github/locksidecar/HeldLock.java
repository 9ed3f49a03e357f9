package io.github.locksidecar;

import com.grack.nanojson.JsonObject;
import io.github.locksidecar.internal.Clock;
import io.github.locksidecar.internal.Grant;
import io.github.locksidecar.internal.Granted;
import io.github.locksidecar.internal.Json;
import io.github.locksidecar.internal.Operations;
import io.github.locksidecar.internal.Problem;
import java.time.Duration;
import java.time.Instant;
import java.util.Collections;
import java.util.Map;
import java.util.concurrent.CompletionStage;
import org.jspecify.annotations.Nullable;

/**
 * A held lock, or one entry of a reentrant lock. {@link #close()} releases it. Any thread may use it.
 *
 * <p>A block without its lock ends with an error: if the lock was lost, {@link #close()} throws
 * {@link LockLostException}. After an error of the block itself, Java adds this error to the suppressed ones.
 */
public final class HeldLock implements AutoCloseable {
  private final Operations operations;
  private final Grant grant;
  private final @Nullable String entry;
  private final @Nullable String session;
  private final String acquiredAt; // read on demand
  private final Duration waited;
  private final int reentry;
  private final LossInterrupt interrupt;
  private volatile LockState state;
  private volatile boolean released;

  /** Whether a release had no answer, or the store did not confirm it. It may have been carried out. */
  private volatile boolean unanswered;

  /** The outcome that the end of a block sends; null: none. */
  private volatile @Nullable Outcome atClose;

  private record LockState(boolean shared, int limit, int slot) {
    static LockState of(JsonObject value) {
      return new LockState(Read.shared(value), value.getInt("limit"), Read.slot(value));
    }
  }

  HeldLock(Operations operations, Granted granted, boolean interrupts) {
    JsonObject value = granted.value();
    this.operations = operations;
    this.grant = granted.grant();
    this.entry = granted.entry();
    this.session = value.getString("session");
    this.acquiredAt = value.getString("acquired_at");
    this.waited = Read.millis(value, "waited_ms");
    this.reentry = value.getInt("reentry");
    this.state = LockState.of(value);
    this.interrupt = new LossInterrupt(interrupts ? Thread.currentThread() : null);
    if (interrupts) {
      grant.lost().thenRun(interrupt::fire);
    }
  }

  /**
   * The key.
   *
   * @return the key
   */
  public String key() {
    return grant.key;
  }

  /**
   * The fencing token. Pass it to the resource that the lock protects. The resource must refuse a token that is smaller
   * than one it has seen.
   *
   * @return 1 to 2^53-1; each grant of a key has a greater one
   */
  public long token() {
    return grant.token;
  }

  /**
   * The public name of the session.
   *
   * @return the name, or null: bind:ttl
   */
  public @Nullable String session() {
    return session;
  }

  /**
   * Whether it is a share.
   *
   * @return false if it is exclusive
   */
  public boolean isShared() {
    return state.shared();
  }

  /**
   * The most shared holders of the key.
   *
   * @return the limit; 0: without limit
   */
  public int limit() {
    return state.limit();
  }

  /**
   * With a limit, the smallest number from 0 that no other holder has.
   *
   * @return the slot; -1 without a limit
   */
  public int slot() {
    return state.slot();
  }

  /**
   * The number of this entry of its owner.
   *
   * @return 1 for the first
   */
  public int reentry() {
    return reentry;
  }

  /**
   * How long the acquire has waited in the queue.
   *
   * @return the time
   */
  public Duration waited() {
    return waited;
  }

  /**
   * The time of the grant.
   *
   * @return by the clock of the store, informative
   */
  public Instant acquiredAt() {
    return Instant.parse(acquiredAt);
  }

  /**
   * The time until the end that the sidecar's last answer named, by this process's clock. A bind:ttl lock ends a little
   * later. The sidecar renews a session's lock, and the client asks for it in good time.
   *
   * @return never negative
   */
  public Duration expiresIn() {
    return Duration.ofNanos(Math.max(0, grant.expiresAt() - Clock.now()));
  }

  /**
   * Completes with the reason when the lock is lost. A release is no loss. If the sidecar hangs, a session's lock is lost, with the
   * reason {@code expired}, when its lease ends by this process's clock. So is a bind:ttl lock at the end that the last answer named.
   *
   * <p>What depends on it runs in a thread of the client, which has to hear of other losses, or in the call that finds the
   * loss, so it must return soon. Use the {@code …Async} methods for more.
   *
   * @return a stage that only this client completes
   */
  public CompletionStage<String> lost() {
    return grant.lost().minimalCompletionStage();
  }

  /**
   * Whether the lock is lost.
   *
   * @return true after {@link #lost()} has completed
   */
  public boolean isLost() {
    return grant.isLost();
  }

  /**
   * Completes with the reason, or null, when somebody asks to release the lock: {@link LockClient#stop}. The lock stays
   * held. See {@link #lost()} for the thread.
   *
   * @return a stage that only this client completes
   */
  public CompletionStage<@Nullable String> stopping() {
    return grant.stopping.minimalCompletionStage();
  }

  /**
   * Whether somebody has asked to release the lock.
   *
   * @return true after {@link #stopping()} has completed
   */
  public boolean isStopping() {
    return grant.stopping.isDone();
  }

  /**
   * Whether this entry of the lock was released.
   *
   * @return true after a release that succeeded
   */
  public boolean isReleased() {
    return released;
  }

  /**
   * Says that another thread may release the lock. Without this, the thread that acquired it gets an
   * {@link IllegalStateException} if it waits for the lock without limit, because it would wait for itself.
   *
   * @return this lock
   */
  public HeldLock detach() {
    grant.detach();
    return this;
  }

  /**
   * How often the owner has entered the lock, as the sidecar's last answer said.
   *
   * @return 1 for a lock without reentries, 0 after its release
   */
  public int entries() {
    return grant.entries();
  }

  /**
   * Asks the sidecar whether the lock is still held.
   *
   * @return its state
   * @throws LockLostException if it is lost
   * @throws NotHolderException if it was released
   */
  public LockStatus check() {
    return change(Map.of());
  }

  Grant grant() {
    return grant;
  }

  /**
   * Sets the remaining time from now. Only for {@link LockOptions#bindTtl()}, because the sidecar renews other locks.
   *
   * @param ttl 500 ms to a day
   * @return its state
   */
  public LockStatus extend(Duration ttl) {
    LockOptions.check("ttl", ttl, Duration.ofMillis(500));
    return change(Map.of("ttl_ms", Clock.millis(ttl)));
  }

  /**
   * Replaces the data that others see.
   *
   * @param data JSON of at most 4 KiB, or null: no data
   * @return its state
   */
  public LockStatus update(@Nullable Object data) {
    return change(Collections.singletonMap("data", Json.copy("data", data)), "data");
  }

  /**
   * Makes an exclusive lock shared, under the same token, and lets waiting shared calls in. There is no way back, because
   * two holders would wait for each other: release the lock, and acquire it.
   *
   * @return its state
   */
  public LockStatus downgrade() {
    return change(Map.of("mode", "shared"), "shared");
  }

  private LockStatus change(Map<String, @Nullable Object> changes, String... needs) {
    requireNotReleased();
    JsonObject value = operations.check(key(), token(), grant, changes, needs);
    state = LockState.of(value);
    return Read.status(value);
  }

  private void requireNotReleased() {
    if (released) {
      throw Problem.released(key());
    }
  }

  /**
   * Releases the lock, or this entry of it. An interrupted thread still releases.
   *
   * @return whether the lock is free now; false: the owner has more entries
   * @throws LockLostException if the lock was lost
   * @throws NotHolderException if it was released before
   * @throws NoAnswerException if no answer came; the client goes on, and this may be called again
   * @throws StoreUnavailableException if the store did not confirm it; the sidecar goes on, and this may be called again
   */
  public boolean release() {
    return release(null, null, 0, false);
  }

  /**
   * Releases the lock with an outcome: see {@link #release()} and {@link Outcome}.
   *
   * @param outcome how the work ended
   * @return whether the lock is free now
   */
  public boolean release(Outcome outcome) {
    return release(outcome, null, 0, false);
  }

  /**
   * Releases the lock with an outcome and a result: see {@link #release()} and {@link Outcome}.
   *
   * @param outcome how the work ended; only a success has a result
   * @param result JSON of at most 4 KiB, or null
   * @return whether the lock is free now
   */
  public boolean release(Outcome outcome, @Nullable Object result) {
    return release(outcome, Collections.singletonMap("result", Json.copy("result", result)), 0, false);
  }

  /**
   * Releases one entry, if it is this one: a repeated call does not end two entries.
   *
   * @param reentry the present number of entries
   * @return whether the lock is free now
   * @throws NotHolderException if the owner has another number of entries
   */
  public boolean releaseEntry(int reentry) {
    return release(null, null, reentry, false);
  }

  private boolean release(
      @Nullable Outcome outcome, @Nullable Map<String, @Nullable Object> body, int expectedEntries, boolean inner) {
    requireNotReleased();
    interrupt.disarm();
    JsonObject value;
    try {
      value =
          operations.release(
              new Operations.Release(
                  key(), token(), grant, expectedEntries == 0 ? entry : null, outcome == null ? null : outcome.word(), body,
                  expectedEntries, inner, unanswered));
    } catch (NoAnswerException | StoreUnavailableException e) {
      unanswered = true;
      grant.detach(); // the client or the sidecar goes on with the release
      throw e;
    }
    released = true;
    return value.getBoolean("released");
  }

  /** Sets the outcome that the end of the block sends, if nothing has released the lock before. */
  void outcomeAtClose(Outcome outcome) {
    atClose = outcome;
  }

  /**
   * Releases the lock, unless it was released before.
   *
   * @throws LockLostException if the lock was lost: the work of the block was not protected
   */
  @Override
  public void close() {
    close(false);
  }

  /** As {@link #close()}. The lock stays held by another entry if this one is an inner one. */
  void close(boolean inner) {
    if (!released) {
      release(atClose, null, 0, inner);
    }
  }

  @Override
  public String toString() {
    return "HeldLock[" + key() + " token=" + token() + (released ? " released" : isLost() ? " lost" : " held") + "]";
  }
}
