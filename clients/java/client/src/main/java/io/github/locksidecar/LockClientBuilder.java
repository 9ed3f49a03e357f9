package io.github.locksidecar;

import io.github.locksidecar.internal.Clock;
import io.github.locksidecar.internal.Endpoint;
import io.github.locksidecar.internal.Endpoint.Setting;
import io.github.locksidecar.internal.Problem;
import io.github.locksidecar.internal.Settings;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Map;
import java.util.TreeMap;
import java.util.function.Predicate;
import org.jspecify.annotations.Nullable;

/** The settings of a client. Not for several threads. */
public final class LockClientBuilder {
  /** In pods, which have this folder. */
  private static final String DEFAULT_SOCKET = "/run/locksidecar/locksidecar.sock";

  private final Map<String, Object> session = new TreeMap<>();
  private @Nullable String socket;
  private @Nullable String url;
  private @Nullable Path tokenFile;
  private @Nullable Path caFile;
  private Duration timeout = Duration.ofSeconds(10);
  private Duration reconnect = Duration.ofSeconds(30);

  LockClientBuilder() {}

  /**
   * The sidecar's socket.
   *
   * @param path by default {@code LOCKSIDECAR_SOCKET}, else {@code /run/locksidecar/locksidecar.sock} if this folder is there, else
   *     {@code ~/.locksidecar/locksidecar.sock}
   * @return these settings
   */
  public LockClientBuilder socket(String path) {
    this.socket = checked(path);
    return this;
  }

  private static String checked(String path) {
    if (Problem.text("socket", path).isEmpty() || path.contains("://") || path.indexOf('\0') >= 0) {
      throw Problem.invalid("socket is \"" + path + "\"; it must be the path of a socket, such as " + DEFAULT_SOCKET);
    }
    return path;
  }

  /**
   * Names the sidecar instead, also over TCP: {@code https://HOST:PORT}, {@code http://HOST:PORT} or {@code unix:///PATH}.
   *
   * @param url by default {@code LOCKSIDECAR_URL}, which wins over {@code LOCKSIDECAR_SOCKET}
   * @return these settings
   */
  public LockClientBuilder url(String url) {
    this.url = Problem.text("url", url);
    return this;
  }

  /**
   * The file with the token for a sidecar over TCP. Its first line is sent, and it is read again when it changes.
   *
   * @param file by default {@code LOCKSIDECAR_TOKEN_FILE}
   * @return these settings
   */
  public LockClientBuilder tokenFile(Path file) {
    this.tokenFile = Problem.required("tokenFile", file);
    return this;
  }

  /**
   * The file with the CA of the sidecar's certificate, in PEM.
   *
   * @param file by default {@code LOCKSIDECAR_CA_FILE}, else the CAs of this JVM count
   * @return these settings
   */
  public LockClientBuilder caFile(Path file) {
    this.caFile = Problem.required("caFile", file);
    return this;
  }

  /**
   * The public name of the session.
   *
   * @param name others see it as part of the holder
   * @return these settings
   */
  public LockClientBuilder name(String name) {
    session.put("name", Problem.text("name", name));
    return this;
  }

  /**
   * The default of {@link LockOptions#ttl}.
   *
   * @param ttl 500 ms to a day
   * @return these settings
   */
  public LockClientBuilder ttl(Duration ttl) {
    LockOptions.check("ttl", ttl, Duration.ofMillis(500));
    session.put("ttl_ms", Clock.millis(ttl));
    return this;
  }

  /**
   * How long to wait for an answer, in addition to a wait.
   *
   * @param timeout by default 10 s
   * @return these settings
   */
  public LockClientBuilder timeout(Duration timeout) {
    LockOptions.check("timeout", timeout, Duration.ofMillis(1));
    this.timeout = timeout;
    return this;
  }

  /**
   * How long a waiting call goes on in an outage of the sidecar, such as its restart. Other calls fail at once.
   *
   * @param reconnect by default 30 s
   * @return these settings
   */
  public LockClientBuilder reconnect(Duration reconnect) {
    LockOptions.check("reconnect", reconnect, Duration.ZERO);
    this.reconnect = reconnect;
    return this;
  }

  /**
   * Makes the client. It does not connect yet.
   *
   * @return the client
   */
  public LockClient build() {
    Endpoint endpoint = endpoint(System.getenv(), Files::exists);
    return LockClient.of(new Settings(endpoint, Map.copyOf(session), Clock.nanos(timeout), Clock.nanos(reconnect)));
  }

  /** What is set in code wins over the environment, and a URL over a socket. */
  Endpoint endpoint(Map<String, String> environment, Predicate<Path> exists) {
    if (url != null && socket != null) {
      throw Problem.invalid("url and socket are both given; one names the sidecar");
    }
    Setting where = url != null ? new Setting("url", url) : socket == null ? of("LOCKSIDECAR_URL", environment) : null;
    if (where == null) {
      return Endpoint.socket(socket != null ? socket : usualSocket(environment, exists));
    }
    Setting token = tokenFile != null ? new Setting("tokenFile", tokenFile.toString()) : of("LOCKSIDECAR_TOKEN_FILE", environment);
    Setting ca = caFile != null ? new Setting("caFile", caFile.toString()) : of("LOCKSIDECAR_CA_FILE", environment);
    return Endpoint.url(where, token, ca);
  }

  private static @Nullable Setting of(String variable, Map<String, String> environment) {
    String value = environment.getOrDefault(variable, "");
    return value.isEmpty() ? null : new Setting(variable, value);
  }

  /** The socket of a sidecar that was not told another one. The sidecar has the same rule. */
  static String usualSocket(Map<String, String> environment, Predicate<Path> exists) {
    String variable = environment.getOrDefault("LOCKSIDECAR_SOCKET", "");
    if (!variable.isEmpty()) {
      return checked(variable);
    }
    Path home = Path.of(environment.getOrDefault("HOME", ""));
    if (!home.isAbsolute() || exists.test(Path.of(DEFAULT_SOCKET).getParent())) {
      return DEFAULT_SOCKET;
    }
    return home.resolve(".locksidecar/locksidecar.sock").toString();
  }
}
