package io.github.locksidecar.internal;

import java.io.IOException;

/** A bare call, without a client. */
public final class Raw {
  private Raw() {}

  /** The status of a GET; 0 if there was no answer. */
  public static int status(String socket, String target) {
    Deadlines deadlines = new Deadlines();
    try (Connection connection = Connection.open(Endpoint.socket(socket), deadlines, 1_000_000_000)) {
      connection.write(new Call("GET", target, null, 0).encode("Host: localhost\r\n"));
      return connection.answer().status;
    } catch (IOException e) {
      return 0;
    } finally {
      deadlines.close();
    }
  }
}
