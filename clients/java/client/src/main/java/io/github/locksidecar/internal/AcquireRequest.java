package io.github.locksidecar.internal;

import java.util.List;
import java.util.Map;
import org.jspecify.annotations.Nullable;

/**
 * The options of an acquire, as the API has them.
 *
 * @param fields the members of the body, without the wait and the id
 * @param needs the features that they need
 * @param maxWait nanoseconds in the queue; 0: not at all; {@link Clock#NEVER}: without limit
 * @param requestId the app's own id, or null
 */
public record AcquireRequest(
    Map<String, @Nullable Object> fields, List<String> needs, long maxWait, @Nullable String requestId) {

  boolean joins() {
    return !"ttl".equals(fields.get("bind"));
  }

  boolean reentrant() {
    return fields.containsKey("reentrant");
  }

  String mode() {
    return fields.containsKey("mode") ? "shared" : "exclusive";
  }
}
