package io.github.locksidecar.testing;

import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.net.SocketTimeoutException;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;

/** Passes the bytes between a client and a sidecar over TCP, until something goes wrong. */
public final class TcpProxy implements AutoCloseable {
  private final ServerSocket server = new ServerSocket(0, 50, InetAddress.getByName("127.0.0.1"));
  private final List<Socket> open = new CopyOnWriteArrayList<>();
  private volatile Socket session;
  private volatile boolean holds;
  private volatile boolean resets;

  /** Starts one before a sidecar at this port. */
  public TcpProxy(int port) throws IOException {
    inThread(() -> {
      while (true) {
        Socket app = server.accept();
        Socket sidecar = new Socket(InetAddress.getByName("127.0.0.1"), port);
        open.addAll(List.of(app, sidecar));
        inThread(() -> pass(app, sidecar, true));
        inThread(() -> pass(sidecar, app, false));
      }
    });
  }

  public int port() {
    return server.getLocalPort();
  }

  /** Passes no more answers on, and no end of a connection. */
  public void holdAnswers() {
    holds = true;
  }

  /** Resets the connection of the session. */
  public void resetSession() {
    resets = true;
  }

  private void pass(Socket from, Socket to, boolean requests) throws IOException {
    byte[] buffer = new byte[65536];
    InputStream in = from.getInputStream();
    OutputStream out = to.getOutputStream();
    from.setSoTimeout(5);
    while (true) {
      if (resets && from == session) {
        from.setSoLinger(true, 0); // only a thread that does not read resets
        from.close();
        return;
      }
      int count;
      try {
        count = in.read(buffer);
      } catch (SocketTimeoutException e) {
        continue;
      }
      if (count < 0) {
        break;
      }
      if (requests && new String(buffer, 0, count, StandardCharsets.ISO_8859_1).startsWith("POST /v1/sessions")) {
        session = from;
      }
      if (requests || !holds) {
        out.write(buffer, 0, count);
      }
    }
    if (!holds) {
      to.close();
    }
  }

  private interface Io {
    void run() throws IOException;
  }

  private static void inThread(Io io) {
    Thread thread = new Thread(() -> {
      try {
        io.run();
      } catch (IOException e) {
        // The connection ended.
      }
    });
    thread.setDaemon(true);
    thread.start();
  }

  @Override
  public void close() throws IOException {
    server.close();
    for (Socket one : open) {
      one.close();
    }
  }
}
