package io.github.locksidecar.internal;

import com.grack.nanojson.JsonObject;
import io.github.locksidecar.ProtocolException;
import java.nio.charset.StandardCharsets;
import java.util.Locale;

/** An answer: its status, the few headers that matter, and its body. */
final class Answer {
  final int status;

  /** Bytes of the body; -1: it comes in chunks. */
  final int length;

  private final String head;
  private final String lower;
  byte[] body = {};

  /**
   * Reads a head.
   *
   * @param head without its last empty line
   */
  Answer(byte[] head) {
    this.head = new String(head, StandardCharsets.ISO_8859_1);
    this.lower = this.head.toLowerCase(Locale.ROOT);
    this.status = status(this.head);
    String size = header("content-length");
    if (!size.isEmpty() && size.length() < 10 && size.chars().allMatch(c -> c >= '0' && c <= '9')) {
      this.length = Integer.parseInt(size);
    } else if (header("transfer-encoding").equalsIgnoreCase("chunked")) {
      this.length = -1;
    } else {
      throw notHttp(this.head);
    }
  }

  /** Whether another head follows. */
  static boolean isInterim(byte[] head) {
    int status = status(new String(head, StandardCharsets.ISO_8859_1));
    return status < 200 && status != 101;
  }

  private static int status(String head) {
    if (head.length() < 12 || !head.startsWith("HTTP/1.1 ")) {
      throw notHttp(head);
    }
    try {
      return Integer.parseInt(head.substring(9, 12));
    } catch (NumberFormatException e) {
      throw notHttp(head);
    }
  }

  static ProtocolException notHttp(String text) {
    return new ProtocolException("the answer is not HTTP/1.1, but \"" + Json.shortened(text) + "\"");
  }

  /** The value of a header; empty if there is none. The name is in lower case. */
  String header(String name) {
    int start = lower.indexOf("\r\n" + name + ":");
    if (start < 0) {
      return "";
    }
    start += name.length() + 3;
    int end = head.indexOf("\r\n", start);
    return head.substring(start, end < 0 ? head.length() : end).trim();
  }

  /** Whether the connection closes after it. */
  boolean last() {
    return header("connection").equalsIgnoreCase("close");
  }

  /** The body of a success. Throws the error of anything else. */
  JsonObject result() {
    JsonObject value = Json.object(body);
    if (status >= 200 && status < 300) {
      return value;
    }
    throw Problem.error(value, status, header("retry-after"));
  }
}
