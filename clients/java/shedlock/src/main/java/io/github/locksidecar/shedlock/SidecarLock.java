package io.github.locksidecar.shedlock;

import io.github.locksidecar.LockClient;
import java.util.Optional;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.SimpleLock;

/** A lock that the sidecar has granted. */
final class SidecarLock extends ReleasableLock {
  private final LockClient client;
  private final Granted granted;

  SidecarLock(LockClient client, LockConfiguration configuration, Granted granted) {
    super(configuration);
    this.client = client;
    this.granted = granted;
  }

  @Override
  void release() {
    granted.release();
  }

  @Override
  Optional<SimpleLock> extended(LockConfiguration next) {
    return Extension.of(client, granted, configuration.getLockAtLeastFor(), next)
        .map(extension -> new ExtendedLock(client, next, extension));
  }
}
