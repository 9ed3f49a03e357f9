package io.github.locksidecar;

import io.github.locksidecar.internal.Event;
import io.github.locksidecar.internal.Problem;
import io.github.locksidecar.internal.Stream;

/** The events of one key. It holds a connection until {@link #close()}. One thread at a time may wait for the next event. */
public final class KeyEvents implements AutoCloseable {
  private final String key;
  private final Stream stream;

  KeyEvents(String key, Stream stream) {
    this.key = key;
    this.stream = stream;
  }

  /**
   * Waits for the next event. The first one is the state. Delivery is best effort: events may be missing.
   *
   * @return the event
   * @throws InterruptedException if the thread was interrupted; then the stream is closed
   * @throws UnavailableException at the end of the stream, also by {@link #close()}
   * @throws LocksidecarException if the sidecar ends the stream with an error
   */
  public KeyEvent next() throws InterruptedException {
    Event event = stream.next();
    if (event.name().equals("problem")) {
      close();
      throw Problem.error(event.data(), event.data().getInt("status", 500), "");
    }
    return new KeyEvent(event.name(), key, event.data());
  }

  @Override
  public void close() {
    stream.close();
  }
}
