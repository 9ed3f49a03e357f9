package io.github.locksidecar.internal;

import io.github.locksidecar.UnsupportedException;
import io.github.locksidecar.LocksidecarException;
import io.github.locksidecar.NoAnswerException;
import io.github.locksidecar.SessionEndedException;
import java.io.EOFException;
import java.io.IOException;
import java.net.SocketTimeoutException;
import java.net.UnknownHostException;
import java.nio.channels.ClosedByInterruptException;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.ConcurrentLinkedDeque;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.ReentrantLock;
import org.jspecify.annotations.Nullable;

/** The connections of one client, and its session. Calls run in the calling thread. */
public final class Transport {
  /** The most idle connections of a client. */
  private static final int MAX_IDLE = 16;

  /** The most connections over TCP that are made, or have sent nothing, at a time. */
  private static final int MAX_DIALING = 16;

  /** How long it may take to connect in reserve. A sidecar that hangs takes connections, too. In ns. */
  private static final long REFILL_PATIENCE = 100_000_000;

  final Settings settings;
  private final Deadlines deadlines = new Deadlines();
  private final ConcurrentLinkedDeque<Connection> idle = new ConcurrentLinkedDeque<>();
  private final AtomicInteger idleCount = new AtomicInteger();

  /**
   * A connection in reserve. Calls that wait may use up the descriptors of the process. A release then goes over this one. It is
   * the first that was kept; empty while it is in use, or before that.
   */
  private final ArrayBlockingQueue<Connection> reserve = new ArrayBlockingQueue<>(1);

  /** Connections over TCP until their first request. Above 64 that have shown no token yet, the sidecar ends the oldest. */
  private final Semaphore dialing = new Semaphore(MAX_DIALING);

  private final ReentrantLock opening = new ReentrantLock();
  private volatile @Nullable Session session;

  /** When no session was opened, and why. Guarded by opening. */
  private @Nullable NotOpened notOpened;

  /** What the sidecar said of itself; null: not asked yet. */
  private volatile @Nullable Known known;

  private volatile boolean reached;
  private volatile boolean closed;

  private record NotOpened(long at, NoAnswerException why) {}

  private record Known(String version, Set<String> features) {}

  /**
   * Makes a transport. It does not connect yet.
   *
   * @param settings of the client
   */
  public Transport(Settings settings) {
    this.settings = settings;
    load();
    settings.endpoint().load();
  }

  /**
   * Loads what calls need from libraries. To load it needs free descriptors, which calls that wait may use up. A class or a library
   * that could not be loaded once is missing until the end of the process.
   */
  private static void load() {
    Connection.load();
    Json.object(Json.text(Map.of()));
    Tracing.current();
  }

  /** Whether a session was opened: a sidecar that is away now may come back. */
  boolean reached() {
    return reached;
  }

  /**
   * Whether the client was closed.
   *
   * @return true after {@link #close}
   */
  public boolean closed() {
    return closed;
  }

  /**
   * Whether an acquire may succeed later: the sidecar was reached before, and may come back.
   *
   * @return false if the client was closed
   */
  public boolean mayReturn() {
    return reached && !closed;
  }

  /** Makes a call. Joins or opens the session if the call wants this. */
  Answer perform(Call call) throws InterruptedException {
    if (closed) {
      throw isClosed();
    }
    if (call.joins) {
      call.session = openSession();
    } else {
      learn(call);
    }
    require(call);
    return exchange(call);
  }

  /** Makes a call whose answer is an event stream, on a connection of its own. */
  Stream stream(Call call) throws InterruptedException {
    if (closed) {
      throw isClosed();
    }
    learn(call);
    require(call);
    if (Thread.interrupted()) {
      throw new InterruptedException();
    }
    byte[] request = call.encode(settings.endpoint().head());
    long ends = Clock.after(call.timeout);
    Connection connection = connect(call, call.timeout);
    try {
      return new Stream(this, connection, Clock.until(ends), request);
    } catch (IOException e) {
      connection.close();
      throw failed(connection, call, e);
    } catch (RuntimeException | Error e) {
      connection.close();
      throw e;
    }
  }

  private void learn(Call call) throws InterruptedException {
    if (!call.needs.isEmpty() && known == null) {
      describe();
    }
  }

  /** Asks the sidecar what it can do. */
  Answer describe() throws InterruptedException {
    Answer answer = exchange(new Call("GET", "/v1", null, settings.timeout()));
    var value = answer.result();
    Set<String> features = new HashSet<>();
    value.getArray("features").forEach(feature -> features.add(String.valueOf(feature)));
    known = new Known(value.getString("version"), features);
    return answer;
  }

  private void require(Call call) {
    Known sidecar = known;
    if (sidecar == null) {
      return;
    }
    for (String feature : call.needs) {
      if (!sidecar.features().contains(feature)) {
        throw new UnsupportedException(feature, sidecar.version());
      }
    }
  }

  private Answer exchange(Call call) throws InterruptedException {
    byte[] request = call.encode(settings.endpoint().head());
    long ends = Clock.after(call.timeout); // of all tries, with their connections
    while (true) {
      if (Thread.interrupted()) {
        throw new InterruptedException();
      }
      Connection connection = takeIdle();
      if (connection == null) {
        connection = connect(call, Clock.until(ends));
      }
      boolean written = false;
      try {
        connection.arm(Clock.until(ends));
        call.sent = Clock.now();
        connection.write(request);
        written = true;
        Answer answer = connection.answer();
        if (connection.disarm() && !answer.last() && !closed) {
          keep(connection);
        } else {
          connection.close();
        }
        return answer;
      } catch (IOException e) {
        connection.close();
        refillReserve();
        if (e instanceof ClosedByInterruptException || connection.late() || !call.again(connection.kept, written) || closed) {
          throw failed(connection, call, e);
        }
        dropIdle(); // after a restart of the sidecar all are dead
        call.repeated = true;
      } catch (RuntimeException | Error e) {
        connection.close();
        throw e;
      }
    }
  }

  private Connection connect(Call call, long timeout) throws InterruptedException {
    long ends = Clock.after(timeout);
    try {
      return open(Math.min(timeout, settings.timeout()));
    } catch (ClosedByInterruptException e) {
      Thread.interrupted();
      throw new InterruptedException();
    } catch (IOException e) {
      // The JDK remembers for a while that a name could not be looked up, as for want of a descriptor.
      boolean needsReserve = Unreachable.noDescriptors(e) || e instanceof UnknownHostException && known != null;
      Connection reserved = call.urgent && needsReserve ? takeReserve(Clock.until(ends)) : null;
      if (reserved != null) {
        return reserved;
      }
      throw closed ? isClosed() : unreachable(e);
    }
  }

  private Connection open(long timeout) throws IOException, InterruptedException {
    if (settings.endpoint().path() != null) {
      return Connection.open(settings.endpoint(), deadlines, timeout);
    }
    long end = Clock.after(timeout);
    if (!dialing.tryAcquire(timeout, TimeUnit.NANOSECONDS)) {
      throw new SocketTimeoutException("others were being made for " + seconds(timeout));
    }
    Connection made = null;
    try {
      made = Connection.open(settings.endpoint(), deadlines, Math.max(end - Clock.now(), 1));
      made.onFirstRequest(dialing::release);
      return made;
    } finally {
      if (made == null) {
        dialing.release();
      }
    }
  }

  private @Nullable Connection takeReserve(long timeout) throws InterruptedException {
    return reserve.poll(timeout, TimeUnit.NANOSECONDS);
  }

  /** If the connection in reserve broke, opens another one before another thread takes its descriptor. */
  private void refillReserve() {
    if (closed || liveSession() == null || !reserve.isEmpty()) {
      return;
    }
    boolean interrupted = Thread.interrupted(); // it would close the new one
    try {
      Connection made = open(REFILL_PATIENCE);
      made.firstRequest(); // there may be none for long
      if (made.disarm()) {
        keep(made);
      }
    } catch (InterruptedException e) {
      interrupted = true;
    } catch (IOException | LocksidecarException e) {
      // The next connection that is kept takes its place.
    } finally {
      if (interrupted) {
        Thread.currentThread().interrupt();
      }
    }
  }

  private @Nullable Connection takeIdle() {
    Connection connection = idle.pollLast();
    if (connection != null) {
      idleCount.decrementAndGet();
    }
    return connection;
  }

  private void keep(Connection connection) {
    connection.kept = true;
    if (!reserve.offer(connection)) {
      if (idleCount.incrementAndGet() > MAX_IDLE) {
        idleCount.decrementAndGet();
        connection.close();
        return;
      }
      idle.addLast(connection);
    }
    if (closed) {
      connection.close();
    }
  }

  private void dropIdle() {
    for (Connection one = takeIdle(); one != null; one = takeIdle()) {
      one.close();
    }
    Connection reserved = reserve.poll();
    if (reserved != null) {
      reserved.close();
    }
  }

  // The session.

  /** The session, or null if none is open. */
  @Nullable Session liveSession() {
    Session now = session;
    return now == null || now.ended() ? null : now;
  }

  private Session openSession() throws InterruptedException {
    Session live = liveSession();
    if (live != null) {
      return live;
    }
    long began = Clock.now();
    opening.lockInterruptibly();
    try {
      live = liveSession();
      if (live != null) {
        return live;
      }
      NotOpened last = notOpened;
      if (last != null && last.at() >= began) { // so the calls that wait at a time wait for one try, and not for one after the other
        throw new NoAnswerException(last.why().code(), last.why().getMessage(), last.why().address(), last.why());
      }
      return newSession();
    } finally {
      opening.unlock();
    }
  }

  private Session newSession() throws InterruptedException {
    try {
      return begin();
    } catch (NoAnswerException e) {
      notOpened = new NotOpened(Clock.now(), e);
      throw e;
    }
  }

  private Session begin() throws InterruptedException {
    describe(); // a restarted sidecar may have another version
    Call call = new Call("POST", "/v1/sessions", settings.session(), settings.timeout()).needs("sessions");
    long ends = Clock.after(call.timeout);
    Stream stream = stream(call);
    try {
      Session made = new Session(stream.next(Clock.until(ends)).data().getString("session"), this::perform, stream::close);
      Thread reader = new Thread(() -> read(made, stream), "locksidecar-session");
      reader.setDaemon(true);
      reader.start();
      session = made;
      reached = true;
      if (closed) { // its end came in between
        stream.close();
        throw isClosed();
      }
      return made;
    } catch (RuntimeException | Error e) {
      stream.close();
      throw e;
    }
  }

  /** Reads the events of the session until its end. */
  private void read(Session made, Stream stream) {
    try {
      while (true) {
        made.receive(stream.next());
      }
    } catch (Throwable e) { // an error of the JVM, too: without this thread nobody hears of the locks
      if (stream.late() || isSilenced(e)) {
        deadlines.closeConnections(); // the sidecar hangs, or its network does, so calls that wait would not end
      }
    } finally {
      made.end();
    }
  }

  /**
   * Whether the session's connection over TCP ended, but not by the sidecar. The JDK has no limit for what is sent and not received, so
   * calls that wait would not end for a quarter of an hour.
   */
  private boolean isSilenced(Throwable e) {
    return settings.endpoint().path() == null && e instanceof NoAnswerException && !(e.getCause() instanceof EOFException);
  }

  /** Ends the session and closes all connections. May be called twice. */
  public void close() {
    synchronized (this) {
      if (closed) {
        return;
      }
      closed = true; // first, so that a waiting call does not open another session
    }
    Session last = liveSession();
    if (last != null) {
      endSession(last);
      last.end();
    }
    deadlines.close();
    dropIdle();
  }

  // When this returns, the locks are free. The end of the stream frees them too, a little later.
  private void endSession(Session last) {
    Call call = new Call("DELETE", "/v1/sessions/" + last.id, null, settings.timeout());
    call.repeatable = false;
    call.urgent = true;
    try {
      Uninterrupted.run(() -> exchange(call));
    } catch (LocksidecarException e) {
      // The end of its stream ends it.
    }
  }

  // Errors.

  private RuntimeException failed(Connection connection, Call call, IOException e) throws InterruptedException {
    if (e instanceof ClosedByInterruptException) {
      Thread.interrupted();
      throw new InterruptedException();
    }
    if (closed) {
      return isClosed();
    }
    if (connection.late()) {
      String what = "did not answer " + call.method + " " + call.target + " within " + seconds(call.timeout);
      return noAnswer("timeout", what, e);
    }
    return broken("broke the connection (" + e.getMessage() + ")", e);
  }

  private static String seconds(long nanos) {
    return nanos / 1_000_000 / 1000.0 + " s";
  }

  NoAnswerException broken(String what, @Nullable IOException cause) {
    return noAnswer("connection_lost", what, cause);
  }

  NoAnswerException silent(long time) {
    return noAnswer("timeout", "has said nothing for " + seconds(time), null);
  }

  private NoAnswerException noAnswer(String code, String what, @Nullable IOException cause) {
    String at = settings.endpoint().name();
    String text = "the sidecar at " + at + " " + what + ". Check that it still runs, and its log";
    return new NoAnswerException(code, text, at, cause);
  }

  private NoAnswerException unreachable(IOException cause) {
    String at = settings.endpoint().name();
    String text = "cannot reach the sidecar at " + at + ": " + Unreachable.why(settings.endpoint(), cause);
    return new NoAnswerException("unreachable", text, at, cause);
  }

  /** The error of a closed client. */
  SessionEndedException isClosed() {
    String text = "this client was closed; make another";
    return new SessionEndedException(410, "session_ended", text, Map.of("code", "session_ended"));
  }
}
