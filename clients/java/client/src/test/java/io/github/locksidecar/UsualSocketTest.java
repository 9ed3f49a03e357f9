package io.github.locksidecar;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.nio.file.Path;
import java.util.Map;
import org.junit.jupiter.api.Test;

/** Where the sidecar is looked for, if nobody says where. The sidecar has the same rule. */
class UsualSocketTest {
  private static final String POD = "/run/locksidecar/locksidecar.sock";
  private static final String OWN = "/home/ada/.locksidecar/locksidecar.sock";

  @Test
  void isInTheHomeWhereNoPodIs() {
    assertEquals(OWN, socket(Map.of("HOME", "/home/ada"), false));
    assertEquals(OWN, socket(Map.of("HOME", "/home/ada", "LOCKSIDECAR_SOCKET", ""), false));
    assertEquals(POD, socket(Map.of("HOME", "/home/ada"), true));
    assertEquals(POD, socket(Map.of(), false));
    assertEquals(POD, socket(Map.of("HOME", "relative"), false));
  }

  @Test
  void isThatOfTheVariable() {
    assertEquals("/given", socket(Map.of("HOME", "/home/ada", "LOCKSIDECAR_SOCKET", "/given"), true));
  }

  private static String socket(Map<String, String> environment, boolean isPod) {
    return LockClientBuilder.usualSocket(environment, path -> isPod && path.equals(Path.of("/run/locksidecar")));
  }
}
