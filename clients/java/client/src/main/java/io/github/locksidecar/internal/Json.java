package io.github.locksidecar.internal;

import com.grack.nanojson.JsonObject;
import com.grack.nanojson.JsonParser;
import com.grack.nanojson.JsonParserException;
import com.grack.nanojson.JsonWriter;
import com.grack.nanojson.JsonWriterException;
import io.github.locksidecar.ProtocolException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Collection;
import java.util.Map;
import org.jspecify.annotations.Nullable;

/** JSON as Java values: map, list, string, number, boolean, null. */
public final class Json {
  private static final int MAX_DEPTH = 100;

  private Json() {}

  /**
   * Writes a value.
   *
   * @param value the value
   * @return UTF-8
   * @throws IllegalArgumentException if a part of the value is not JSON
   */
  static byte[] bytes(@Nullable Object value) {
    return text(value).getBytes(StandardCharsets.UTF_8);
  }

  static String text(@Nullable Object value) {
    try {
      return JsonWriter.string(value);
    } catch (JsonWriterException e) {
      throw new IllegalArgumentException("not JSON (a map, list, string, number, boolean or null): " + e.getMessage(), e);
    }
  }

  /**
   * Checks a value of the app, and returns it as its receivers read it: an array is a list.
   *
   * @param name what the app calls it
   * @param value the value
   * @return a copy
   * @throws IllegalArgumentException if a part of the value is not JSON
   */
  public static @Nullable Object copy(String name, @Nullable Object value) {
    try {
      check(value, 0);
      return JsonParser.any().from(text(value));
    } catch (IllegalArgumentException e) {
      throw new IllegalArgumentException(name + " is " + e.getMessage(), e);
    } catch (JsonParserException e) {
      throw new IllegalArgumentException(name + " is not JSON: " + e.getMessage(), e);
    }
  }

  // The writer would write NaN, which is not JSON, and would not end if a value contains itself.
  private static void check(@Nullable Object value, int depth) {
    if (depth > MAX_DEPTH) {
      throw new IllegalArgumentException("not JSON: it has more than " + MAX_DEPTH + " levels");
    }
    if (value instanceof Map<?, ?> map) {
      map.forEach((key, member) -> {
        if (!(key instanceof String)) {
          throw new IllegalArgumentException("not JSON: the name " + key + " of a member is no text");
        }
        check(member, depth + 1);
      });
    } else if (value instanceof Collection<?> list) {
      list.forEach(one -> check(one, depth + 1));
    } else if (value instanceof Object[] array) {
      check(Arrays.asList(array), depth);
    } else if (value instanceof Number number && !Double.isFinite(number.doubleValue())) {
      throw new IllegalArgumentException("not JSON: the number " + number);
    }
  }

  /**
   * Reads an object of the sidecar.
   *
   * @param utf8 the text
   * @return the object
   * @throws ProtocolException if it is none
   */
  static JsonObject object(byte[] utf8) {
    return object(new String(utf8, StandardCharsets.UTF_8));
  }

  static JsonObject object(String text) {
    try {
      return JsonParser.object().from(text);
    } catch (JsonParserException e) {
      throw new ProtocolException("the answer is not a JSON object, but \"" + shortened(text) + "\"");
    }
  }

  static String shortened(String text) {
    return text.length() <= 80 ? text : text.substring(0, 80);
  }
}
