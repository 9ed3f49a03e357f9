package io.github.locksidecar.shedlock;

import io.github.locksidecar.LockClient;
import java.util.Optional;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.SimpleLock;

/** A lock that was extended, perhaps more than once. */
final class ExtendedLock extends ReleasableLock {
  private final LockClient client;
  private final Extension extension;

  ExtendedLock(LockClient client, LockConfiguration configuration, Extension extension) {
    super(configuration);
    this.client = client;
    this.extension = extension;
  }

  @Override
  void release() {
    extension.release();
  }

  @Override
  Optional<SimpleLock> extended(LockConfiguration next) {
    return extension
        .granted()
        .flatMap(granted -> Extension.of(client, granted, extension.atLeast(), next))
        .map(longer -> new ExtendedLock(client, next, longer));
  }
}
