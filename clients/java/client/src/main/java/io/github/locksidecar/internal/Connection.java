package io.github.locksidecar.internal;

import java.io.EOFException;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.SocketOption;
import java.net.SocketTimeoutException;
import java.net.StandardProtocolFamily;
import java.net.StandardSocketOptions;
import java.net.UnixDomainSocketAddress;
import java.net.UnknownHostException;
import java.nio.ByteBuffer;
import java.nio.channels.ClosedByInterruptException;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.LockSupport;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLParameters;
import javax.net.ssl.SSLSocket;
import jdk.net.ExtendedSocketOptions;
import org.jspecify.annotations.Nullable;

/**
 * A connection to the sidecar, for one call after the other. An interrupt of the thread that reads or writes closes it.
 */
final class Connection implements AutoCloseable {
  private static final int MAX_HEAD = 64 * 1024;

  private final SocketChannel channel;
  private final Deadlines deadlines;
  private final AtomicLong deadline = new AtomicLong(Clock.NEVER);

  /** Whether it was kept for a later call. The sidecar may have closed it meanwhile. */
  boolean kept;

  /** Whether it was closed because its deadline passed. */
  private volatile boolean late;

  /** What its first request brings about, or its end. */
  private final AtomicReference<@Nullable Runnable> onFirstRequest = new AtomicReference<>();

  /** Bytes that were received and not read yet: those from start to end. */
  private byte[] buffer = new byte[2048];

  private int start;
  private int end;

  /** Those of TLS; null: those of the channel. */
  private @Nullable InputStream in;

  private @Nullable OutputStream out;

  private Connection(SocketChannel channel, Deadlines deadlines) {
    this.channel = channel;
    this.deadlines = deadlines;
  }

  /**
   * Loads what the JDK needs for a connection until its end. The JDK loads a part of it when the first connection is closed, and
   * that fails for good if no descriptor is free then.
   */
  static void load() {
    try (SocketChannel unconnected = SocketChannel.open(StandardProtocolFamily.UNIX)) {
      unconnected.getOption(StandardSocketOptions.SO_SNDBUF);
    } catch (IOException e) {
      // The first connection tells why.
    }
  }

  /** Connects. */
  static Connection open(Endpoint at, Deadlines deadlines, long timeout) throws IOException {
    String path = at.path();
    return path != null ? toSocket(path, deadlines, timeout) : overTcp(at, deadlines, Math.min(timeout, Endpoint.DIAL));
  }

  private static Connection overTcp(Endpoint at, Deadlines deadlines, long timeout) throws IOException {
    long end = Clock.after(timeout);
    IOException failed = null;
    for (InetAddress address : addresses(at, timeout)) {
      Connection made = new Connection(SocketChannel.open(), deadlines);
      try {
        if (!deadlines.add(made)) {
          throw new EOFException("the client was closed");
        }
        made.arm(Math.max(end - Clock.now(), 1));
        made.noticeSilence();
        made.channel.connect(new InetSocketAddress(address, at.port()));
        if (at.encrypted()) {
          made.encrypt(at);
        }
        return made;
      } catch (ClosedByInterruptException e) {
        made.close();
        throw e;
      } catch (IOException e) {
        made.close();
        if (made.late) {
          throw new SocketTimeoutException("it was not made within " + timeout / 1_000_000 + " ms");
        }
        failed = failed == null ? e : failed;
      } catch (RuntimeException | Error e) {
        made.close();
        throw e;
      }
    }
    throw Objects.requireNonNull(failed); // a host has an address
  }

  private static InetAddress[] addresses(Endpoint at, long timeout) throws IOException {
    try {
      return at.lookup().addresses(timeout);
    } catch (UnknownHostException e) {
      SocketChannel.open().close(); // without a free descriptor no name is known, and this says so
      throw e;
    }
  }

  /** A peer that vanishes closes nothing. So the system probes one that says nothing, and ends the connection after 18 s. */
  private void noticeSilence() throws IOException {
    channel.setOption(StandardSocketOptions.TCP_NODELAY, true);
    channel.setOption(StandardSocketOptions.SO_KEEPALIVE, true);
    Map<SocketOption<Integer>, Integer> probes =
        Map.of(ExtendedSocketOptions.TCP_KEEPIDLE, 3, ExtendedSocketOptions.TCP_KEEPINTERVAL, 3, ExtendedSocketOptions.TCP_KEEPCOUNT, 5);
    for (Map.Entry<SocketOption<Integer>, Integer> probe : probes.entrySet()) {
      if (channel.supportedOptions().contains(probe.getKey())) {
        channel.setOption(probe.getKey(), probe.getValue());
      }
    }
  }

  /** Verifies the certificate and its name. Nothing of the app is sent before. */
  private void encrypt(Endpoint at) throws IOException {
    SSLContext trusted = at.context();
    try {
      SSLSocket socket =
          (SSLSocket) trusted.getSocketFactory().createSocket(channel.socket(), at.host(), at.port(), true);
      SSLParameters how = socket.getSSLParameters();
      how.setEndpointIdentificationAlgorithm("HTTPS");
      how.setProtocols(new String[] {"TLSv1.3", "TLSv1.2"});
      socket.setSSLParameters(how);
      socket.startHandshake();
      in = socket.getInputStream();
      out = socket.getOutputStream();
    } catch (IOException e) {
      throw ofChannel(e);
    }
  }

  /** An interrupt closes the channel, also below TLS, which throws an error of its own then. */
  private IOException ofChannel(IOException e) {
    for (Throwable cause = e; cause != null; cause = cause.getCause()) {
      if (cause instanceof ClosedByInterruptException interrupt) {
        return interrupt;
      }
    }
    if (!channel.isOpen() && !late && Thread.currentThread().isInterrupted()) {
      return new ClosedByInterruptException();
    }
    return e;
  }

  private static Connection toSocket(String path, Deadlines deadlines, long timeout) throws IOException {
    UnixDomainSocketAddress address = UnixDomainSocketAddress.of(Path.of(path));
    // In a virtual thread a connect does not wait if the sidecar has not accepted earlier ones yet.
    long end = Clock.after(timeout);
    while (true) {
      Connection made = new Connection(SocketChannel.open(StandardProtocolFamily.UNIX), deadlines);
      try {
        if (!deadlines.add(made)) {
          throw new EOFException("the client was closed");
        }
        made.arm(timeout);
        made.channel.connect(address);
        return made;
      } catch (IOException e) {
        made.close();
        if (!backlogFull(e) || Clock.now() > end) {
          throw e;
        }
        LockSupport.parkNanos(1_000_000);
      } catch (RuntimeException | Error e) {
        made.close();
        throw e;
      }
    }
  }

  private static boolean backlogFull(IOException e) {
    return e.getMessage() != null && e.getMessage().contains("temporarily unavailable");
  }

  /** Sets the time until which the next answer must come. */
  void arm(long timeout) {
    long at = Clock.after(timeout);
    deadline.set(at);
    deadlines.watch(at);
  }

  /** The answer has come. Returns false if the deadline passed at the same time: then the connection is closed. */
  boolean disarm() {
    deadline.set(Clock.NEVER);
    return !late;
  }

  long deadline() {
    return deadline.get();
  }

  boolean expire(long now) {
    long at = deadline.get();
    if (at > now || !deadline.compareAndSet(at, Clock.NEVER)) {
      return false;
    }
    late = true;
    close();
    return true;
  }

  boolean late() {
    return late;
  }

  void write(byte[] request) throws IOException {
    send(request);
    firstRequest();
  }

  /** Sets what runs, once, after the first request or at the end of the connection. */
  void onFirstRequest(Runnable runs) {
    onFirstRequest.set(runs);
  }

  /** Its first request was sent, or there is none. */
  void firstRequest() {
    Runnable runs = onFirstRequest.getAndSet(null);
    if (runs != null) {
      runs.run();
    }
  }

  private void send(byte[] request) throws IOException {
    OutputStream encrypted = out;
    if (encrypted != null) {
      try {
        encrypted.write(request);
        return;
      } catch (IOException e) {
        throw ofChannel(e);
      }
    }
    ByteBuffer rest = ByteBuffer.wrap(request);
    while (rest.hasRemaining()) {
      channel.write(rest);
    }
  }

  /** Reads an answer with a length. */
  Answer answer() throws IOException {
    Answer answer = head();
    if (answer.length < 0) {
      throw Answer.notHttp("a body in chunks");
    }
    answer.body = bytes(answer.length);
    return answer;
  }

  /** Reads the head of an answer. A proxy may send others before it, such as 103 Early Hints. */
  Answer head() throws IOException {
    byte[] head = nextHead();
    while (Answer.isInterim(head)) {
      head = nextHead();
    }
    return new Answer(head);
  }

  private byte[] nextHead() throws IOException {
    int searched = start;
    while (true) {
      for (int at = Math.max(start, searched - 3); at + 4 <= end; at++) {
        if (buffer[at] == '\r' && buffer[at + 1] == '\n' && buffer[at + 2] == '\r' && buffer[at + 3] == '\n') {
          byte[] head = Arrays.copyOfRange(buffer, start, at);
          start = at + 4;
          return head;
        }
      }
      if (end - start > MAX_HEAD) {
        throw Answer.notHttp("a head of more than " + MAX_HEAD + " bytes");
      }
      int unread = end - start;
      fill();
      searched = start + unread;
    }
  }

  /** Reads the next bytes. */
  byte[] bytes(int count) throws IOException {
    while (end - start < count) {
      fill();
    }
    byte[] read = Arrays.copyOfRange(buffer, start, start + count);
    start += count;
    return read;
  }

  /** Reads a line, without its end. */
  String line() throws IOException {
    int at = start;
    while (true) {
      for (; at < end; at++) {
        if (buffer[at] == '\n') {
          String line = new String(buffer, start, at - start, StandardCharsets.UTF_8);
          start = at + 1;
          return line.endsWith("\r") ? line.substring(0, line.length() - 1) : line;
        }
      }
      if (end - start > MAX_HEAD) {
        throw Answer.notHttp("a line of more than " + MAX_HEAD + " bytes");
      }
      int unread = end - start;
      fill();
      at = start + unread;
    }
  }

  private void fill() throws IOException {
    if (start > 0) {
      System.arraycopy(buffer, start, buffer, 0, end - start);
      end -= start;
      start = 0;
    }
    if (end == buffer.length) {
      buffer = Arrays.copyOf(buffer, buffer.length * 2);
    }
    int count = receive();
    if (count < 0) {
      throw new EOFException("the sidecar closed it");
    }
    end += count;
  }

  private int receive() throws IOException {
    InputStream encrypted = in;
    if (encrypted == null) {
      return channel.read(ByteBuffer.wrap(buffer, end, buffer.length - end));
    }
    try {
      return encrypted.read(buffer, end, buffer.length - end);
    } catch (IOException e) {
      throw ofChannel(e);
    }
  }

  /** Closes the channel only: the last word of TLS could block, and a sidecar needs none. */
  @Override
  public void close() {
    firstRequest();
    deadlines.remove(this);
    try {
      channel.close();
    } catch (IOException e) {
      // It is closed in any case.
    }
  }
}
