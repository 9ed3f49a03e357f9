package io.github.locksidecar.internal;

import java.util.List;
import java.util.Map;
import java.util.Objects;
import org.jspecify.annotations.Nullable;

/**
 * The options of an acquire, as the API has them.
 *
 * @param fields the members of the body, without the wait and the id
 * @param needs the features that they need
 * @param maxWait nanoseconds in the queue; 0: not at all; {@link Clock#NEVER}: without limit
 * @param requestId the app's own id, or null
 * @param owner the owner that the app has named, or null: then the thread is the owner
 */
public record AcquireRequest(
    Map<String, @Nullable Object> fields, List<String> needs, long maxWait, @Nullable String requestId,
    @Nullable String owner) {

  boolean joins() {
    return !"ttl".equals(fields.get("bind"));
  }

  /** Whether its call enters the lock of a grant that another request got. */
  boolean enters(AcquireRequest holder) {
    return reentrant() && Objects.equals(fields.get("owner"), holder.fields.get("owner"));
  }

  boolean reentrant() {
    return fields.containsKey("reentrant");
  }

  boolean shared() {
    return fields.containsKey("mode");
  }

  /** The most shared holders; 0: without limit. */
  int limit() {
    return fields.get("limit") instanceof Integer limit ? limit : 0;
  }

  String mode() {
    return shared() ? "shared" : "exclusive";
  }
}
