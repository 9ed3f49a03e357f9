package io.github.locksidecar.internal;

import io.github.locksidecar.LockClient;
import io.github.locksidecar.testing.Sidecar;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Locale;
import java.util.UUID;

/**
 * What the client costs a call, beside the same calls over a bare channel: `clients/java/bench.sh`. An acquire and a release of a
 * free lock are two calls. Rounds of both take turns in one thread. Both have a session, and send the same.
 */
public final class Bench {
  private static final int WARM_UP = 8_000;
  private static final int ROUNDS = 30;
  private static final int PAIRS = 300;
  private static final double GOAL = 60; // microseconds more a call

  private Bench() {}

  private interface Pair {
    void run() throws Exception;
  }

  /** Runs it. Exits with 1 if the goal is not met. */
  public static void main(String[] arguments) throws Exception {
    try (Sidecar sidecar = Sidecar.inMemory();
        LockClient client = sidecar.client()) {
      Pair ours = () -> client.acquire("bench:ours").release();
      Deadlines deadlines = new Deadlines();
      Connection connection = Connection.open(Endpoint.socket(sidecar.socket()), deadlines, Clock.NEVER);
      String session = session(sidecar.socket(), deadlines);
      Pair bare =
          () -> {
            String body = "{\"request_id\":\"" + UUID.randomUUID() + "\",\"wait_ms\":-1}";
            connection.write(request("PUT", "/v1/locks/bench:bare", session, body));
            String token = text(connection).split("\"token\":", 2)[1].split(",", 2)[0];
            connection.write(request("DELETE", "/v1/locks/bench:bare?token=" + token, session, ""));
            text(connection);
          };
      for (int i = 0; i < WARM_UP; i++) {
        ours.run();
        bare.run();
      }
      double[] oursTimes = new double[ROUNDS];
      double[] bareTimes = new double[ROUNDS];
      for (int i = 0; i < ROUNDS; i++) {
        bareTimes[i] = microsecondsPerCall(bare);
        oursTimes[i] = microsecondsPerCall(ours);
      }
      double more = median(oursTimes) - median(bareTimes);
      System.out.printf(Locale.ROOT, "JDK %s, %d rounds of %d acquires and releases of a free lock, median of a call:%n",
          System.getProperty("java.version"), ROUNDS, PAIRS);
      System.out.printf(Locale.ROOT, "  bare channel  %6.1f us   LockClient  %6.1f us   %+6.1f us%n",
          median(bareTimes), median(oursTimes), more);
      System.out.printf(Locale.ROOT, "goal: at most +%.0f us a call: %s%n", GOAL, more <= GOAL ? "met" : "NOT met");
      deadlines.close();
      System.exit(more <= GOAL ? 0 : 1);
    }
  }

  /** Opens a session, and returns the header line of calls that join it. */
  private static String session(String socket, Deadlines deadlines) throws Exception {
    Connection stream = Connection.open(Endpoint.socket(socket), deadlines, Clock.NEVER);
    stream.write(request("POST", "/v1/sessions", "", ""));
    stream.head();
    String line = stream.line();
    while (!line.startsWith("data:")) {
      line = stream.line();
    }
    return "Lock-Session: " + line.split("\"session\":\"", 2)[1].split("\"", 2)[0] + "\r\n";
  }

  private static byte[] request(String method, String target, String header, String body) {
    String head =
        method + " " + target + " HTTP/1.1\r\nHost: localhost\r\n" + header + "Content-Length: " + body.length() + "\r\n\r\n";
    return (head + body).getBytes(StandardCharsets.ISO_8859_1);
  }

  private static String text(Connection connection) throws Exception {
    Answer answer = connection.answer();
    String body = new String(answer.body, StandardCharsets.UTF_8);
    if (answer.status != 200) {
      throw new IllegalStateException(body);
    }
    return body;
  }

  private static double microsecondsPerCall(Pair pair) throws Exception {
    long began = System.nanoTime();
    for (int i = 0; i < PAIRS; i++) {
      pair.run();
    }
    return (System.nanoTime() - began) / 1000.0 / PAIRS / 2;
  }

  private static double median(double[] times) {
    double[] sorted = times.clone();
    Arrays.sort(sorted);
    return sorted[sorted.length / 2];
  }
}
