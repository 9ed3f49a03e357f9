package io.github.locksidecar.testing;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFilePermissions;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** A CA for a test. */
public final class Authority {
  public static final String TOKEN = "0123456789abcdef0123456789abcdef";

  private static final List<String> NEW_KEY =
      List.of("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes");

  private final Path folder;
  private final Path key;

  /** The file of the CA. */
  public final Path file;

  private int made;

  /** A certificate and its key. */
  public record Signed(Path certificate, Path key) {}

  /** Makes one, with its files in a new folder. */
  public Authority(Path folder) {
    try {
      Files.createDirectories(folder);
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
    this.folder = folder;
    this.file = folder.resolve("ca.crt");
    this.key = folder.resolve("ca.key");
    List<String> request = new ArrayList<>(List.of("req", "-x509"));
    request.addAll(NEW_KEY);
    request.addAll(List.of("-keyout", key.toString(), "-out", file.toString(), "-days", "1", "-subj", "/CN=CA"));
    request.addAll(List.of("-addext", "keyUsage=critical,keyCertSign"));
    openssl(request);
  }

  /** Makes a certificate for a name such as DNS:localhost. It has expired if the days are negative. */
  public Signed sign(String name, int days) {
    String at = folder.resolve(Integer.toString(made++)).toString();
    List<String> request = new ArrayList<>(List.of("req"));
    request.addAll(NEW_KEY);
    request.addAll(List.of("-keyout", at + ".key", "-out", at + ".csr", "-subj", "/CN=x", "-addext", "subjectAltName=" + name));
    openssl(request);
    openssl(
        List.of(
            "x509", "-req", "-in", at + ".csr", "-CA", file.toString(), "-CAkey", key.toString(), "-CAcreateserial",
            "-copy_extensions", "copy", "-days", Integer.toString(days), "-out", at + ".crt"));
    return new Signed(Path.of(at + ".crt"), Path.of(at + ".key"));
  }

  /** The settings of a sidecar with a certificate, and a token. */
  public Map<String, String> settings(String name, int days) {
    Signed signed = sign(name, days);
    Map<String, String> settings = new HashMap<>(plain(folder));
    settings.put("TCP_TLS_CERT_FILE", signed.certificate().toString());
    settings.put("TCP_TLS_KEY_FILE", signed.key().toString());
    return settings;
  }

  /** The settings of a sidecar with a certificate for localhost. */
  public Map<String, String> settings() {
    return settings("DNS:localhost", 1);
  }

  /** The settings of a sidecar over TCP without a certificate. */
  public static Map<String, String> plain(Path folder) {
    Path tokens = write(folder.resolve("tokens"), TOKEN);
    return Map.of("STORE_URL", "memory://", "LOG_LEVEL", "info", "TCP_ADDR", "127.0.0.1:0", "TCP_TOKEN_FILE", tokens.toString());
  }

  /** Makes a file that only this user may read. */
  public static Path write(Path file, String text) {
    try {
      Files.deleteIfExists(file);
      Files.createFile(file, PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString("rw-------")));
      return Files.write(file, text.getBytes(StandardCharsets.ISO_8859_1));
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
  }

  private static void openssl(List<String> arguments) {
    List<String> command = new ArrayList<>(List.of("openssl"));
    command.addAll(arguments);
    try {
      Process process = new ProcessBuilder(command).redirectErrorStream(true).start();
      String said = new String(process.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
      if (process.waitFor() != 0) {
        throw new IllegalStateException(command + ": " + said);
      }
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    } catch (InterruptedException e) {
      throw new IllegalStateException(e);
    }
  }
}
