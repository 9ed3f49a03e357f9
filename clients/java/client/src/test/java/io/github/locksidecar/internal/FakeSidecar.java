package io.github.locksidecar.internal;

import java.io.IOException;
import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.CountDownLatch;

/** Passes the bytes of a real sidecar on, and can hold back or cut off an answer. Or it answers by itself. */
public final class FakeSidecar implements AutoCloseable {
  private final Path folder;
  private final ServerSocketChannel server;
  private final List<SocketChannel> open = new CopyOnWriteArrayList<>();
  private volatile String hold = "";
  private volatile String cut = "";
  private volatile String refuse = "";
  private volatile String drop = "";
  private volatile boolean hangs;
  private volatile CountDownLatch held = new CountDownLatch(1);

  private FakeSidecar() throws IOException {
    folder = Files.createTempDirectory(Path.of("/tmp"), "lsf");
    server = ServerSocketChannel.open(StandardProtocolFamily.UNIX);
    server.bind(UnixDomainSocketAddress.of(socket()));
  }

  /** One before a real sidecar. */
  public static FakeSidecar before(String real) throws IOException {
    FakeSidecar made = new FakeSidecar();
    inThread(() -> {
      while (true) {
        SocketChannel app = made.server.accept();
        SocketChannel sidecar = SocketChannel.open(UnixDomainSocketAddress.of(real));
        made.open.addAll(List.of(app, sidecar));
        boolean[] holds = {false};
        inThread(() -> made.pass(app, sidecar, holds, true));
        inThread(() -> made.pass(sidecar, app, holds, false));
      }
    });
    return made;
  }

  /** One that answers each request with these bytes, a piece at a time. */
  public static FakeSidecar answering(String... pieces) throws IOException {
    FakeSidecar made = new FakeSidecar();
    inThread(() -> {
      while (true) {
        SocketChannel app = made.server.accept();
        made.open.add(app);
        inThread(() -> {
          while (app.read(ByteBuffer.allocate(65536)) > 0) {
            for (String piece : pieces) {
              app.write(ByteBuffer.wrap(piece.getBytes(StandardCharsets.ISO_8859_1)));
            }
          }
        });
      }
    });
    return made;
  }

  /** One that answers the first requests with these, each with one, and then no more. */
  public static FakeSidecar answeringInTurn(String... answers) throws IOException {
    FakeSidecar made = new FakeSidecar();
    Queue<String> left = new ConcurrentLinkedQueue<>(List.of(answers));
    inThread(() -> {
      while (true) {
        SocketChannel app = made.server.accept();
        made.open.add(app);
        inThread(() -> {
          while (app.read(ByteBuffer.allocate(65536)) > 0) {
            String answer = left.poll();
            app.write(ByteBuffer.wrap((answer == null ? "" : answer).getBytes(StandardCharsets.ISO_8859_1)));
          }
        });
      }
    });
    return made;
  }

  public String socket() {
    return folder.resolve("s").toString();
  }

  /** Holds the answer to the next request that begins with this. */
  public void holdNextAnswerTo(String request) {
    held = new CountDownLatch(1);
    hold = request;
  }

  /** Closes the connection in place of the answer to the next request that begins with this. */
  public void cutNextAnswerTo(String request) {
    held = new CountDownLatch(1);
    cut = request;
  }

  /** Answers the next request that begins with this by itself: the store is not available. */
  public void refuseNext(String request) {
    refuse = request;
  }

  /** Does not pass on the next request that begins with this. */
  public void dropNext(String request) {
    drop = request;
  }

  /** Holds back all that comes from now on, as a sidecar that hangs. But the real one does not hang. */
  public void hang() {
    hangs = true;
  }

  /** Passes on what was held back, also what came over connections that the client has closed meanwhile. */
  public void goOn() {
    synchronized (this) {
      hangs = false;
      notifyAll();
    }
  }

  private void awaitHang() {
    synchronized (this) {
      while (hangs) {
        try {
          wait();
        } catch (InterruptedException e) {
          throw new IllegalStateException(e);
        }
      }
    }
  }

  /** Waits until an answer is held or was cut off. */
  public void awaitHeldAnswer() throws InterruptedException {
    held.await();
  }

  private void pass(SocketChannel from, SocketChannel to, boolean[] holds, boolean requests) throws IOException {
    ByteBuffer buffer = ByteBuffer.allocate(65536);
    boolean[] cuts = holds;
    try (from; to) {
      while (from.read(buffer) >= 0) {
        awaitHang();
        buffer.flip();
        String text = StandardCharsets.ISO_8859_1.decode(buffer.duplicate()).toString();
        if (requests && !hold.isEmpty() && text.startsWith(hold)) {
          hold = "";
          holds[0] = true;
        }
        if (requests && !cut.isEmpty() && text.startsWith(cut)) {
          holds[0] = true;
        }
        if (requests && !drop.isEmpty() && text.startsWith(drop)) {
          drop = "";
        } else if (requests && !refuse.isEmpty() && text.startsWith(refuse)) {
          refuse = "";
          String body = "{\"code\":\"store_unavailable\"}";
          String answer = "HTTP/1.1 503 x\r\nContent-Length: " + body.length() + "\r\n\r\n" + body;
          from.write(ByteBuffer.wrap(answer.getBytes(StandardCharsets.ISO_8859_1)));
        } else if (!requests && cuts[0]) {
          boolean cutting = !cut.isEmpty();
          cut = "";
          held.countDown();
          if (cutting) {
            return;
          }
        } else {
          while (buffer.hasRemaining()) {
            to.write(buffer);
          }
        }
        buffer.clear();
      }
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
    for (SocketChannel one : open) {
      one.close();
    }
    Files.delete(Path.of(socket()));
    Files.delete(folder);
  }
}
