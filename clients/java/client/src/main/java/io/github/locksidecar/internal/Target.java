package io.github.locksidecar.internal;

import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import org.jspecify.annotations.Nullable;

/** The paths of calls. */
final class Target {
  private Target() {}

  static String lock(@Nullable String key) {
    return "/v1/locks/" + (key != null && plain(key) ? key : quoted(Problem.text("key", key)));
  }

  static String quoted(String text) {
    if (plain(text)) {
      return text;
    }
    return URLEncoder.encode(text, StandardCharsets.UTF_8).replace("+", "%20").replace("*", "%2A");
  }

  private static boolean plain(String text) {
    for (int i = 0; i < text.length(); i++) {
      char c = text.charAt(i);
      if (!(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_')) {
        return false;
      }
    }
    return true;
  }

  /** The part of a path behind the question mark, with it. Members without a value are left out. */
  static String query(Map<String, ? extends @Nullable Object> members) {
    StringBuilder query = new StringBuilder();
    members.forEach((name, value) -> {
      if (value != null) {
        query.append(query.length() == 0 ? '?' : '&').append(name).append('=').append(quoted(value.toString()));
      }
    });
    return query.toString();
  }
}
