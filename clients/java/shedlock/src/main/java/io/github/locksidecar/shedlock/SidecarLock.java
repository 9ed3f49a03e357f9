package io.github.locksidecar.shedlock;

import io.github.locksidecar.LockClient;
import java.util.Optional;
import net.javacrumbs.shedlock.core.AbstractSimpleLock;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.SimpleLock;

/** A lock that the sidecar has granted. ShedLock's base class refuses a second unlock or extension. */
final class SidecarLock extends AbstractSimpleLock {
  private final LockClient client;
  private final Granted granted;

  SidecarLock(LockClient client, LockConfiguration configuration, Granted granted) {
    super(configuration);
    this.client = client;
    this.granted = granted;
  }

  @Override
  protected void doUnlock() {
    granted.release();
  }

  @Override
  protected Optional<SimpleLock> doExtend(LockConfiguration next) {
    return Extension.of(client, granted, lockConfiguration.getLockAtLeastFor(), next)
        .map(extension -> new ExtendedLock(client, next, extension));
  }
}
