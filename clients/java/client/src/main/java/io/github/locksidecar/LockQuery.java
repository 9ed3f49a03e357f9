package io.github.locksidecar;

import java.util.LinkedHashMap;
import java.util.Map;

/** Which held locks a list has. Immutable: each method returns a copy with the condition. */
public final class LockQuery {
  private final Scope scope;
  private final Map<String, Object> members;

  private LockQuery(Scope scope, Map<String, Object> members) {
    this.scope = scope;
    this.members = members;
  }

  /**
   * All held locks of a scope.
   *
   * @param scope the scope
   * @return the query
   */
  public static LockQuery of(Scope scope) {
    return new LockQuery(scope, Map.of("scope", scope.word()));
  }

  private LockQuery with(String name, Object value) {
    Map<String, Object> more = new LinkedHashMap<>(members);
    more.put(name, value);
    return new LockQuery(scope, more);
  }

  /**
   * Only keys that begin with this.
   *
   * @param prefix the prefix
   * @return this query with it
   */
  public LockQuery prefix(String prefix) {
    return with("prefix", prefix);
  }

  /**
   * Only keys of this type, the part before the first colon.
   *
   * @param type the type
   * @return this query with it
   */
  public LockQuery type(String type) {
    return with("type", type);
  }

  /**
   * How many locks one call gets.
   *
   * @param pageSize 1 to 1000
   * @return this query with it
   */
  public LockQuery pageSize(int pageSize) {
    return with("limit", pageSize);
  }

  boolean ofSession() {
    return scope == Scope.SESSION;
  }

  Map<String, Object> members() {
    return members;
  }
}
