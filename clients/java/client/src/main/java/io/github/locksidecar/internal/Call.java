package io.github.locksidecar.internal;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.jspecify.annotations.Nullable;

/** One request, and how it is made. Used by one thread at a time. */
final class Call {
  private static final byte[] EMPTY = {};

  final String method;
  final String target;
  private final byte[] body;

  /** Nanoseconds to wait for the answer. */
  final long timeout;

  /** The features of the sidecar that it needs. */
  final List<String> needs = new ArrayList<>(4);

  /** Whether it joins the client's session, which is opened if there is none. */
  boolean joins;

  /** The session that it joins. */
  @Nullable Session session;

  /** Whether it may be made again if its connection breaks before the answer is complete. */
  boolean repeatable = true;

  /** Whether it was made more than once. */
  boolean repeated;

  /** Whether calls of others may wait for its end, so it also has the connection in reserve. */
  boolean urgent;

  /** Whether the sidecar asks the store, and does not answer from its memory. */
  boolean noCache;

  /** The header lines of its trace; null: those of the current context. */
  @Nullable String trace;

  /** When it was sent, by {@link Clock}; 0: not yet. */
  long sent;

  Call(String method, String target, @Nullable Object body, long timeout) {
    this(method, target, body == null ? EMPTY : Json.bytes(body), timeout);
  }

  private Call(String method, String target, byte[] body, long timeout) {
    this.method = method;
    this.target = target;
    this.body = body;
    this.timeout = timeout;
  }

  /** The same request, to be made once more with another timeout. */
  Call copy(long patience) {
    Call made = new Call(method, target, body, patience);
    made.needs.addAll(needs);
    made.session = session;
    made.urgent = urgent;
    made.trace = trace;
    return made;
  }

  Call needs(String... features) {
    needs.addAll(List.of(features));
    return this;
  }

  /**
   * Whether to make it again on another connection, after one broke. A reused connection may have been closed before the
   * call. If the write has failed, the sidecar has not got the whole call. If the session is over, the operation decides.
   */
  boolean again(boolean reused, boolean written) {
    return reused && (repeatable || !written) && !(session != null && session.ended());
  }

  /** The request, with these lines first: see {@link Endpoint#head}. */
  byte[] encode(String first) {
    StringBuilder head = new StringBuilder(256);
    head.append(method).append(' ').append(target).append(" HTTP/1.1\r\n").append(first);
    head.append(trace == null ? Tracing.current() : trace);
    if (session != null) {
      head.append(session.header);
    }
    if (noCache) {
      head.append("Cache-Control: no-cache\r\n");
    }
    if (body.length > 0 || !method.equals("GET")) {
      head.append("Content-Length: ").append(body.length).append("\r\n");
    }
    byte[] start = head.append("\r\n").toString().getBytes(StandardCharsets.ISO_8859_1);
    byte[] request = new byte[start.length + body.length];
    System.arraycopy(start, 0, request, 0, start.length);
    System.arraycopy(body, 0, request, start.length, body.length);
    return request;
  }
}
