package io.github.locksidecar.testing;

import io.github.locksidecar.LockClient;
import io.github.locksidecar.LockClientBuilder;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;

/** A sidecar whose clients call it over TCP, with TLS and a token. */
public final class TlsSidecar extends Sidecar {
  private final Path ca;
  private final Path token;

  private TlsSidecar(Map<String, String> settings, String until, Path ca, Path token) {
    super(settings, until);
    this.ca = ca;
    this.token = token;
  }

  /** Starts one, and waits until this path is answered with 200. */
  public static TlsSidecar start(Map<String, String> settings, String until) {
    try {
      Path folder = Files.createTempDirectory("lsj");
      Authority authority = new Authority(folder);
      Map<String, String> all = new HashMap<>(authority.settings());
      all.putAll(settings);
      Path token = Authority.write(folder.resolve("token"), Authority.TOKEN);
      return new TlsSidecar(all, until, authority.file, token);
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
  }

  /** One with the embedded store. */
  public static TlsSidecar inMemory() {
    return start(Map.of(), "/readyz");
  }

  public String url() {
    return "https://localhost:" + port();
  }

  @Override
  public LockClientBuilder builder() {
    return LockClient.builder().url(url()).tokenFile(token).caFile(ca);
  }

  /** What an app must find in its environment. */
  public Map<String, String> environment() {
    return Map.of("LOCKSIDECAR_URL", url(), "LOCKSIDECAR_TOKEN_FILE", token.toString(), "LOCKSIDECAR_CA_FILE", ca.toString());
  }

  @Override
  public synchronized void close() {
    super.close();
    if (ca == null) {
      return; // it did not start
    }
    try (var files = Files.list(ca.getParent())) {
      files.forEach(file -> file.toFile().delete());
      Files.delete(ca.getParent());
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
  }
}
