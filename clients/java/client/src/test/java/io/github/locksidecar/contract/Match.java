package io.github.locksidecar.contract;

import java.math.BigDecimal;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.stream.IntStream;

/** Compares a result with the expectation of a case: clients/contract/README.md, "Matching". */
final class Match {
  private static final List<String> OPERATORS = List.of("$gt", "$ge", "$lt", "$le", "$has", "$is", "$any");

  private Match() {}

  /** The value with each $name replaced by its saved value, and each {$long: n} by a text of n letters. */
  static Object fillIn(Object value, Map<String, Object> saved) {
    if (value instanceof Map<?, ?> map) {
      if (map.keySet().equals(Set.of("$long"))) {
        return "a".repeat(((Number) map.get("$long")).intValue());
      }
      Map<String, Object> filled = new LinkedHashMap<>();
      map.forEach((name, member) -> filled.put((String) name, fillIn(member, saved)));
      return filled;
    }
    if (value instanceof List<?> list) {
      List<Object> filled = new ArrayList<>();
      list.forEach(element -> filled.add(fillIn(element, saved)));
      return filled;
    }
    if (value instanceof String text && text.startsWith("$")) {
      if (!saved.containsKey(text.substring(1))) {
        throw new IllegalArgumentException("nothing was saved as " + text + "; saved: " + saved.keySet());
      }
      return saved.get(text.substring(1));
    }
    return value;
  }

  /** What is wrong, or null if it matches. */
  static String difference(Object want, Object got, String at) {
    if (want instanceof Map<?, ?> map) {
      if (map.keySet().stream().anyMatch(name -> ((String) name).startsWith("$"))) {
        return byOperator(map, got, at);
      }
      if (!(got instanceof Map<?, ?> members)) {
        return at + " is " + got + "; it must be an object with " + map.keySet();
      }
      return map.entrySet().stream()
          .map(one -> difference(one.getValue(), members.get(one.getKey()), at + "." + one.getKey()))
          .filter(Objects::nonNull)
          .findFirst()
          .orElse(null);
    }
    if (want instanceof List<?> list) {
      if (!(got instanceof List<?> elements) || elements.size() != list.size()) {
        return at + " is " + got + "; it must be a list like " + want;
      }
      for (int i = 0; i < list.size(); i++) {
        String wrong = difference(list.get(i), elements.get(i), at + "[" + i + "]");
        if (wrong != null) {
          return wrong;
        }
      }
      return null;
    }
    return same(want, got) ? null : at + " is " + got + "; it must be " + want;
  }

  private static String byOperator(Map<?, ?> map, Object got, String at) {
    String name = (String) map.keySet().iterator().next();
    if (map.size() != 1 || !OPERATORS.contains(name)) {
      throw new IllegalArgumentException(map + ": an operator stands alone, and is one of " + OPERATORS);
    }
    Object argument = map.get(name);
    boolean right =
        switch (name) {
          case "$any" -> got != null;
          case "$is" -> same(argument, got);
          case "$has" -> got instanceof String text && text.contains((String) argument);
          default -> got instanceof Number number && compared(name, decimal(number).compareTo(decimal((Number) argument)));
        };
    return right ? null : at + " is " + got + "; it must be " + name.substring(1) + " " + argument;
  }

  private static boolean compared(String name, int order) {
    return switch (name) {
      case "$gt" -> order > 0;
      case "$ge" -> order >= 0;
      case "$lt" -> order < 0;
      default -> order <= 0;
    };
  }

  private static boolean same(Object a, Object b) {
    if (a instanceof Map<?, ?> x && b instanceof Map<?, ?> y) {
      return x.keySet().equals(y.keySet()) && x.keySet().stream().allMatch(name -> same(x.get(name), y.get(name)));
    }
    if (a instanceof List<?> x && b instanceof List<?> y) {
      return x.size() == y.size() && IntStream.range(0, x.size()).allMatch(i -> same(x.get(i), y.get(i)));
    }
    if (a instanceof Number x && b instanceof Number y) {
      return decimal(x).compareTo(decimal(y)) == 0;
    }
    return Objects.equals(a, b);
  }

  private static BigDecimal decimal(Number number) {
    return new BigDecimal(number.toString());
  }
}
