package io.github.locksidecar.internal;

import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.locks.LockSupport;
import org.jspecify.annotations.Nullable;

/**
 * Closes connections whose answer does not come in time, because a blocking channel has no timeout of its own.
 *
 * <p>It also knows all open connections of a client, so that {@link #close} can end them.
 */
final class Deadlines {
  private final Set<Connection> open = ConcurrentHashMap.newKeySet();
  private volatile @Nullable Thread timer;
  private volatile boolean closed;

  /** When the timer looks next. A deadline before that wakes it. NEVER while it looks, so that no deadline is missed. */
  private volatile long next = Clock.NEVER;

  /** Adds a connection. Returns false if the client was closed. */
  boolean add(Connection connection) {
    open.add(connection);
    if (timer == null) {
      startTimer();
    }
    if (closed) {
      open.remove(connection);
      return false;
    }
    return true;
  }

  private synchronized void startTimer() {
    if (timer == null && !closed) {
      Thread made = new Thread(this::run, "locksidecar-timer");
      made.setDaemon(true);
      made.start(); // may fail: then the next connection tries again
      timer = made;
    }
  }

  void remove(Connection connection) {
    open.remove(connection);
  }

  /** Looks at a deadline that has just been set. */
  void watch(long deadline) {
    if (deadline < next) {
      LockSupport.unpark(timer);
    }
  }

  private void run() {
    while (!closed) {
      next = Clock.NEVER;
      long now = Clock.now();
      long earliest = Clock.NEVER;
      for (Connection connection : open) {
        try {
          if (!connection.expire(now)) {
            earliest = Math.min(earliest, connection.deadline());
          }
        } catch (Throwable e) {
          // It is closed as far as can be. Without this thread, no call would end in its time.
        }
      }
      next = earliest;
      if (earliest == Clock.NEVER) {
        LockSupport.park(this);
      } else {
        LockSupport.parkNanos(this, Math.max(earliest - Clock.now(), 1));
      }
      Thread.interrupted(); // an interrupted thread would not park
    }
  }

  /** Closes all connections: each call under way fails. */
  void closeConnections() {
    open.forEach(Connection::close);
  }

  /** Ends the timer, and closes all connections. */
  void close() {
    synchronized (this) {
      closed = true;
    }
    closeConnections();
    LockSupport.unpark(timer);
  }
}
