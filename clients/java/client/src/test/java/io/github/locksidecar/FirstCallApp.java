package io.github.locksidecar;

import java.io.Closeable;
import java.io.FileInputStream;
import java.io.IOException;
import java.util.ArrayDeque;
import java.util.Deque;

/** An app that makes its first calls while it has no descriptor, and others when it has. */
public final class FirstCallApp {
  private FirstCallApp() {}

  public static void main(String[] arguments) throws Exception {
    LockClient client = LockClient.create();
    Deque<Closeable> all = new ArrayDeque<>();
    takeDescriptors(all);
    System.out.println("error " + call(client));
    all.pop().close(); // one is free: for a connection, and for nothing else
    System.out.println("error " + call(client));
    while (!all.isEmpty()) {
      all.pop().close();
    }
    try (HeldLock lock = client.acquire("key")) {
      System.out.println("acquired " + lock.token());
    }
    client.close();
    Class.forName("io.opentelemetry.api.OpenTelemetry"); // its jar, too
    System.out.println("closed");
  }

  private static void takeDescriptors(Deque<Closeable> all) {
    try {
      while (true) {
        all.push(new FileInputStream("/dev/null"));
      }
    } catch (IOException e) {
      // There is none left.
    }
  }

  private static String call(LockClient client) throws InterruptedException {
    try (HeldLock lock = client.acquire("key")) {
      return "none: " + lock;
    } catch (UnavailableException e) {
      return e.getMessage();
    }
  }
}
