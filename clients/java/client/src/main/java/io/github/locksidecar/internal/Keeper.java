package io.github.locksidecar.internal;

import io.github.locksidecar.LocksidecarException;
import java.util.Map;
import java.util.concurrent.locks.LockSupport;
import org.jspecify.annotations.Nullable;

/**
 * Asks for the locks of a session. A sidecar that hangs renews nothing and says nothing, and at the end of a lease others get its
 * locks. So in each third of a lease this asks for one of its locks. The answer is news of all of them, because a sidecar that answers
 * also tells of lost locks. Without an answer, the locks are lost when their lease ends by the clock here.
 */
final class Keeper {
  /** The least time for an answer, also if the lease has ended while this process was halted. In ns. */
  private static final long LEAST_PATIENCE = 250_000_000;

  private final Session session;
  private final Caller caller;
  private @Nullable volatile Thread thread;

  /** When it looks next. A lease that is due before wakes it. NEVER while it looks, so that none is missed. */
  private volatile long next = Clock.NEVER;

  Keeper(Session session, Caller caller) {
    this.session = session;
    this.caller = caller;
  }

  /** A lease has news: it is due at this time. */
  void watch(long due) {
    if (thread == null) {
      start();
    }
    if (due < next) {
      LockSupport.unpark(thread);
    }
  }

  /** The session is over. */
  void end() {
    LockSupport.unpark(thread);
  }

  private synchronized void start() {
    if (thread == null) {
      Thread made = new Thread(this::run, "locksidecar-keeper");
      made.setDaemon(true);
      made.start(); // may fail: then the next grant tries again
      thread = made;
    }
  }

  private void run() {
    while (!session.ended()) {
      next = Clock.NEVER;
      Lease lease = session.nextLease();
      long pause = lease == null ? Clock.NEVER : lease.due() - Clock.now();
      if (pause <= 0) {
        try {
          ask(lease);
        } catch (Throwable e) { // an interrupt by a listener of the app, or an error of the JVM: without this thread nobody asks
          Thread.interrupted();
        }
        session.plan(lease);
        continue;
      }
      next = lease == null ? Clock.NEVER : lease.due();
      LockSupport.parkNanos(this, pause);
      Thread.interrupted(); // an interrupted thread would not park
    }
  }

  private void ask(Lease lease) throws InterruptedException {
    Grant grant = session.anyOf(lease);
    if (grant == null) {
      return;
    }
    long asked = Clock.now();
    long patience = Math.max(session.firstEnd() - asked, LEAST_PATIENCE);
    Call call = new Call("PATCH", Target.lock(grant.key), Map.of("token", grant.token), patience);
    call.session = session;
    call.urgent = true;
    try {
      grant.note(caller.perform(call).result(), call.sent);
    } catch (LocksidecarException e) {
      // If the limit came late, this process was halted, and the answer may wait to be read.
      boolean inTime = Clock.now() - asked < patience + LEAST_PATIENCE;
      if (!session.noteEnd(grant, e) && inTime) {
        session.giveUp();
      }
    }
  }
}
