package io.github.locksidecar.internal;

import java.io.IOException;
import java.net.InetAddress;
import java.net.SocketTimeoutException;
import java.net.UnknownHostException;
import java.nio.channels.ClosedByInterruptException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.jspecify.annotations.Nullable;

/**
 * The addresses of a host. A name is looked up in a thread of its own, because the system has no limit for that which a call could set.
 * Calls at the same time share a lookup.
 */
final class Lookup {
  /** The system. Tests replace it. */
  interface Names {
    InetAddress[] addresses(String host) throws UnknownHostException;
  }

  static volatile Names names = InetAddress::getAllByName;

  private final String host;
  private final boolean isName;
  private @Nullable CompletableFuture<InetAddress[]> last;

  Lookup(String host) {
    this.host = host;
    this.isName = host.indexOf(':') < 0 && !host.matches("\\d+(\\.\\d+){3}");
  }

  /**
   * The addresses.
   *
   * @param timeout the most time, in ns
   * @throws ClosedByInterruptException if the thread was interrupted
   */
  InetAddress[] addresses(long timeout) throws IOException {
    if (!isName) {
      return InetAddress.getAllByName(host);
    }
    try {
      return current().get(timeout, TimeUnit.NANOSECONDS);
    } catch (TimeoutException e) {
      throw new SocketTimeoutException("its host was not looked up within " + timeout / 1_000_000 + " ms");
    } catch (ExecutionException e) {
      throw e.getCause() instanceof IOException why ? why : new IOException(e.getCause());
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt();
      throw new ClosedByInterruptException();
    }
  }

  private synchronized CompletableFuture<InetAddress[]> current() throws IOException {
    if (last != null && !last.isDone()) {
      return last;
    }
    CompletableFuture<InetAddress[]> made = new CompletableFuture<>();
    Thread thread = new Thread(() -> run(made), "locksidecar-lookup");
    thread.setDaemon(true);
    try {
      thread.start();
    } catch (OutOfMemoryError e) {
      throw new IOException("there is no thread for the lookup of its host: " + e.getMessage());
    }
    last = made;
    return made;
  }

  private void run(CompletableFuture<InetAddress[]> made) {
    try {
      made.complete(names.addresses(host));
    } catch (Throwable e) {
      made.completeExceptionally(e);
    }
  }
}
