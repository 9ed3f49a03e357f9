package io.github.locksidecar;

import com.grack.nanojson.JsonObject;
import java.util.Objects;
import org.jspecify.annotations.Nullable;

/**
 * The data of a key's leader, now and after each change: see {@link LockClient#watchLeader}.
 *
 * <p>It tells what the sidecar says, and decides nothing. While the sidecar hangs, the last leader may have gone: 45 s later
 * {@link #next} throws. Only a fencing token stops the write of a leader of before.
 */
public final class LeaderWatch implements AutoCloseable {
  /** The data of an event that does not tell it. */
  private static final Object UNKNOWN = new Object();

  private final KeyEvents events;
  private @Nullable Object last = UNKNOWN;

  LeaderWatch(KeyEvents events) {
    this.events = events;
  }

  /**
   * Returns the leader's data at first, then waits for each change. A later {@link HeldLock#update} is no change.
   *
   * @return JSON as Java values; null without a leader
   * @throws InterruptedException if the thread was interrupted; then the watch is closed
   * @throws UnavailableException at the end of the stream
   */
  public @Nullable Object next() throws InterruptedException {
    while (true) {
      Object data = data(events.next());
      if (data != UNKNOWN && !Objects.equals(data, last)) {
        last = data;
        return data;
      }
    }
  }

  private static @Nullable Object data(KeyEvent event) {
    Object holder = event.data().get("holder");
    return switch (event.type()) {
      case "released", "expired" -> null;
      case "state" -> holder instanceof JsonObject it ? it.get("data") : null;
      case "acquired" -> holder instanceof JsonObject it ? it.get("data") : UNKNOWN;
      default -> UNKNOWN;
    };
  }

  @Override
  public void close() {
    events.close();
  }
}
