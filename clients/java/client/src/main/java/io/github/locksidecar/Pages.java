package io.github.locksidecar;

import com.grack.nanojson.JsonObject;
import io.github.locksidecar.internal.Operations;
import java.util.ArrayDeque;
import java.util.HashMap;
import java.util.Iterator;
import java.util.Map;
import java.util.NoSuchElementException;
import java.util.Queue;
import java.util.function.Function;
import org.jspecify.annotations.Nullable;

/** The elements of all pages of a list, one call after the other. */
final class Pages<T> implements Iterator<T> {
  private final Function<Map<String, @Nullable Object>, JsonObject> call;
  private final Map<String, @Nullable Object> query;
  private final String member;
  private final Function<JsonObject, T> read;
  private final Queue<T> page = new ArrayDeque<>();
  private boolean last;

  Pages(
      Function<Map<String, @Nullable Object>, JsonObject> call,
      Map<String, ? extends @Nullable Object> query,
      String member,
      Function<JsonObject, T> read) {
    this.call = call;
    this.query = new HashMap<>(query);
    this.member = member;
    this.read = read;
  }

  @Override
  public boolean hasNext() {
    while (page.isEmpty() && !last) {
      JsonObject value = call.apply(query);
      Operations.list(value, member).forEach(one -> page.add(read.apply((JsonObject) one)));
      String cursor = value.getString("next_cursor");
      query.put("cursor", cursor);
      last = cursor == null;
    }
    return !page.isEmpty();
  }

  @Override
  public T next() {
    if (!hasNext()) {
      throw new NoSuchElementException();
    }
    return page.remove();
  }
}
