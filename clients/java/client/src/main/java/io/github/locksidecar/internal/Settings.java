package io.github.locksidecar.internal;

import java.util.Map;

/**
 * The settings of a client.
 *
 * @param endpoint where the sidecar listens
 * @param session the body of the call that opens its session
 * @param timeout nanoseconds to wait for an answer, in addition to a wait
 * @param reconnect nanoseconds that a waiting call goes on in an outage of the sidecar
 */
public record Settings(Endpoint endpoint, Map<String, Object> session, long timeout, long reconnect) {}
