package io.github.locksidecar.internal;

import com.grack.nanojson.JsonObject;
import com.grack.nanojson.JsonParser;
import com.grack.nanojson.JsonParserException;
import com.grack.nanojson.JsonWriter;
import com.grack.nanojson.JsonWriterException;
import io.github.locksidecar.ProtocolException;
import java.nio.charset.StandardCharsets;
import java.util.Collection;
import java.util.Map;
import org.jspecify.annotations.Nullable;

/** JSON as Java values: map, list, string, number, boolean, null. */
public final class Json {
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

  private static String text(@Nullable Object value) {
    try {
      return JsonWriter.string(value);
    } catch (JsonWriterException e) {
      throw new IllegalArgumentException("not JSON (a map, list, string, number, boolean or null): " + e.getMessage(), e);
    }
  }

  /**
   * Checks a value of the app, and returns it as its receivers read it: an array is a list.
   *
   * @param value the value
   * @return a copy
   * @throws IllegalArgumentException if a part of the value is not JSON
   */
  public static @Nullable Object copy(@Nullable Object value) {
    checkNumbers(value);
    try {
      return JsonParser.any().from(text(value));
    } catch (JsonParserException e) {
      throw new IllegalArgumentException("not JSON: " + e.getMessage(), e);
    }
  }

  // The writer would write NaN, which is not JSON.
  private static void checkNumbers(@Nullable Object value) {
    if (value instanceof Map<?, ?> map) {
      map.values().forEach(Json::checkNumbers);
    } else if (value instanceof Collection<?> list) {
      list.forEach(Json::checkNumbers);
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
