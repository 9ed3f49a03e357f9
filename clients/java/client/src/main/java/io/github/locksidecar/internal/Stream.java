package io.github.locksidecar.internal;

import java.io.ByteArrayOutputStream;
import java.io.EOFException;
import java.io.IOException;
import java.nio.channels.ClosedByInterruptException;
import java.nio.charset.StandardCharsets;

/** A connection that receives server-sent events: those of a key, or of the session. */
public final class Stream implements AutoCloseable {
  /** A stream has a comment line every 15 s. So a sidecar that is silent for this long is gone or hangs. In ns. */
  static final long SILENCE = 45_000_000_000L;

  /** Bytes. The state of a key may have a hundred holders, each with its data. */
  private static final int MAX_LINE = 16 * 1024 * 1024;

  private final Transport transport;
  private final Connection connection;

  private byte[] chunk = {};

  /** How many bytes of the chunk were read. */
  private int read;

  Stream(Transport transport, Connection connection, long timeout, byte[] request) throws IOException {
    this.transport = transport;
    this.connection = connection;
    connection.arm(timeout);
    connection.write(request);
    Answer head = connection.head();
    if (head.length >= 0) {
      head.body = connection.bytes(head.length);
      head.result();
      throw Answer.notHttp("no event stream");
    }
  }

  /**
   * Waits for the next event.
   *
   * @return the event
   * @throws InterruptedException if the thread was interrupted; then the stream is closed
   * @throws io.github.locksidecar.NoAnswerException at the end of the stream
   */
  public Event next() throws InterruptedException {
    return next(SILENCE);
  }

  /** Waits for the next event. The sidecar may be silent for this time, in ns. */
  Event next(long patience) throws InterruptedException {
    try {
      String name = "message";
      StringBuilder data = new StringBuilder();
      while (true) {
        String line = line(patience);
        if (line.isEmpty()) {
          if (data.length() > 0) {
            return new Event(name, Json.object(data.toString()));
          }
          name = "message";
        } else if (line.startsWith("event:")) {
          name = line.substring(6).trim();
        } else if (line.startsWith("data:")) {
          data.append(data.length() > 0 ? "\n" : "").append(line.substring(5).trim());
        }
      }
    } catch (ClosedByInterruptException e) {
      close();
      Thread.interrupted();
      throw new InterruptedException();
    } catch (IOException e) {
      close();
      throw connection.late() ? transport.silent(patience) : transport.broken("ended the event stream", e);
    } catch (RuntimeException | Error e) {
      close();
      throw e;
    }
  }

  private String line(long patience) throws IOException {
    ByteArrayOutputStream line = new ByteArrayOutputStream();
    while (true) {
      while (read < chunk.length) {
        byte next = chunk[read++];
        if (next == '\n') {
          return line.toString(StandardCharsets.UTF_8);
        }
        line.write(next);
      }
      if (line.size() > MAX_LINE) {
        throw Answer.notHttp("a line of more than " + MAX_LINE + " bytes");
      }
      nextChunk(patience);
    }
  }

  private void nextChunk(long patience) throws IOException {
    connection.arm(patience);
    String size = connection.line();
    int count;
    try {
      count = Integer.parseInt(size.split(";", 2)[0].trim(), 16);
    } catch (NumberFormatException e) {
      throw Answer.notHttp(size);
    }
    if (count <= 0) {
      throw new EOFException("the sidecar ended it");
    }
    chunk = connection.bytes(count);
    read = 0;
    connection.line();
  }

  boolean late() {
    return connection.late();
  }

  @Override
  public void close() {
    connection.close();
  }
}
