/**
 * A lock registry for Spring Integration, and Spring Boot's auto-configuration:
 * {@link io.github.locksidecar.spring.LocksidecarLockRegistry}.
 */
@NullMarked
package io.github.locksidecar.spring;

import org.jspecify.annotations.NullMarked;
