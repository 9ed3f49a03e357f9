package io.github.locksidecar.internal;

import io.github.locksidecar.InvalidRequestException;
import io.github.locksidecar.internal.Endpoint.Setting;
import java.io.IOException;
import java.nio.charset.StandardCharsets;

/** A file whose first line is the token. It may be replaced while it is used. */
final class Token {
  /** The least time between two reads, in ns. */
  private static final long PAUSE = 1_000_000_000;

  private static final int MAX = 512;

  private final Setting file;
  private volatile String token = "";
  private volatile long looked;

  Token(Setting file) {
    this.file = file;
  }

  /**
   * The token. Threads may read it at a time: each reads the whole file. An error contains nothing of it. A file that is away or
   * incomplete for a moment changes nothing.
   */
  String read() {
    long now = Clock.now();
    if (token.isEmpty() || now - looked >= PAUSE) {
      looked = now;
      try {
        token = fromFile();
      } catch (InvalidRequestException e) {
        if (token.isEmpty()) {
          throw e;
        }
      }
    }
    return token;
  }

  private String fromFile() {
    byte[] text;
    try {
      text = Endpoint.read(file, 2 * MAX);
    } catch (IOException e) {
      throw Endpoint.unreadable(file, e);
    }
    String line = new String(text, StandardCharsets.ISO_8859_1).split("\n", 2)[0].trim();
    if (line.isEmpty() || line.length() > MAX || !line.chars().allMatch(c -> c > ' ' && c <= '~')) {
      throw Problem.invalid(file.name() + " is \"" + file.value() + "\", and the first line of this file is no token: it has up to "
          + MAX + " printable characters and no space");
    }
    return line;
  }
}
