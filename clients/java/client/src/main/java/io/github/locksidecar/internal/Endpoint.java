package io.github.locksidecar.internal;

import io.github.locksidecar.InvalidRequestException;
import java.io.ByteArrayInputStream;
import java.io.FileInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.security.GeneralSecurityException;
import java.security.KeyStore;
import java.security.cert.Certificate;
import java.security.cert.CertificateException;
import java.security.cert.CertificateFactory;
import java.util.Arrays;
import java.util.Collection;
import java.util.List;
import java.util.Locale;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;
import org.jspecify.annotations.Nullable;

/** Where the sidecar listens: at a socket, or over TCP. */
public final class Endpoint {
  /** The most time for a connection over TCP with its handshake, in ns. */
  static final long DIAL = 5_000_000_000L;

  private static final int MAX_CA = 1 << 20;
  private static final Pattern UNIX = Pattern.compile("unix://(/[^\\s?#@]+)", Pattern.CASE_INSENSITIVE);
  private static final Pattern TCP =
      Pattern.compile("(https?)://(([\\w.-]+|\\[[\\da-f:.]*:[\\da-f:.]*\\]):(\\d{1,5}))/?", Pattern.CASE_INSENSITIVE);

  /**
   * A value, and where it was set, for messages.
   *
   * @param name of the setting
   * @param value of the setting
   */
  public record Setting(String name, String value) {}

  /** The path of a socket, or a URL. */
  private final String name;

  /** Null: over TCP. */
  private final @Nullable String path;

  private final boolean encrypted;
  private final String authority;
  private final String host;
  private final int port;

  /** The name of the setting with the URL. */
  private final String setting;

  private final @Nullable Token token;
  private final @Nullable Setting ca;

  private final Lookup lookup;

  /** The CA that was read last. */
  private volatile @Nullable Trust trust;

  private record Trust(byte[] pem, SSLContext context) {}

  private Endpoint(String path) {
    this.name = path;
    this.path = path;
    this.encrypted = false;
    this.authority = "localhost";
    this.host = "";
    this.port = 0;
    this.setting = "";
    this.token = null;
    this.ca = null;
    this.lookup = new Lookup(host);
  }

  private Endpoint(Setting url, Matcher parts, @Nullable Setting token, @Nullable Setting ca) {
    String scheme = parts.group(1).toLowerCase(Locale.ROOT);
    this.path = null;
    this.encrypted = scheme.equals("https");
    this.authority = parts.group(2);
    this.name = scheme + "://" + authority;
    this.host = parts.group(3).startsWith("[") ? parts.group(3).substring(1, parts.group(3).length() - 1) : parts.group(3);
    this.port = Integer.parseInt(parts.group(4));
    this.setting = url.name();
    this.token = token == null ? null : new Token(token);
    this.ca = ca;
    this.lookup = new Lookup(host);
  }

  /**
   * At a socket.
   *
   * @param path of the socket
   * @return the endpoint
   */
  public static Endpoint socket(String path) {
    return new Endpoint(path);
  }

  /**
   * Where a URL says.
   *
   * @param url {@code unix:///PATH}, {@code http://HOST:PORT} or {@code https://HOST:PORT}
   * @param token the file with the token, or null
   * @param ca the file with the CA of the certificate; null: the JVM's CAs count
   * @return the endpoint
   */
  public static Endpoint url(Setting url, @Nullable Setting token, @Nullable Setting ca) {
    Matcher unix = UNIX.matcher(url.value());
    String path = unix.matches() ? decoded(unix.group(1)) : null;
    if (path != null) {
      return new Endpoint(path);
    }
    Matcher tcp = TCP.matcher(url.value());
    int port = tcp.matches() ? Integer.parseInt(tcp.group(4)) : 0;
    if (port < 1 || port > 65_535) {
      // A URL with a password, which has no use here, is not shown.
      String shown = url.value().contains("@") ? "not a URL of a sidecar" : "\"" + url.value() + "\"";
      throw Problem.invalid(
          url.name() + " is " + shown + "; allowed: unix:///PATH, http://HOST:PORT or https://HOST:PORT");
    }
    return new Endpoint(url, tcp, token, ca);
  }

  private static @Nullable String decoded(String path) {
    try {
      String text = URLDecoder.decode(path.replace("+", "%2B"), StandardCharsets.UTF_8);
      return text.indexOf('\0') < 0 ? text : null;
    } catch (IllegalArgumentException e) {
      return null;
    }
  }

  /**
   * The path of the socket, or the URL.
   *
   * @return the name, for messages
   */
  public String name() {
    return name;
  }

  /** The path of the socket; null: over TCP. */
  @Nullable String path() {
    return path;
  }

  boolean encrypted() {
    return encrypted;
  }

  Lookup lookup() {
    return lookup;
  }

  String host() {
    return host;
  }

  int port() {
    return port;
  }

  /** The name of the setting with the URL. */
  String setting() {
    return setting;
  }

  /** The setting of the CA, or null. */
  @Nullable Setting ca() {
    return ca;
  }

  /** The lines that a request begins with. */
  String head() {
    String lines = "Host: " + authority + "\r\n";
    return token == null ? lines : lines + "Authorization: Bearer " + token.read() + "\r\n";
  }

  /** Loads what a first connection needs. What is wrong, the first connection tells. */
  void load() {
    if (encrypted) {
      try {
        context();
      } catch (IOException | RuntimeException e) {
        // see above
      }
    }
  }

  /** The CAs that it trusts. Their file is read each time, because it may be replaced. */
  SSLContext context() throws IOException {
    Trust last = trust;
    byte[] pem;
    try {
      pem = ca == null ? new byte[0] : read(ca, MAX_CA);
    } catch (IOException e) {
      if (ca != null && !Unreachable.noDescriptors(e)) {
        throw unreadable(ca, e);
      }
      if (last == null) {
        throw e;
      }
      return last.context();
    }
    if (last == null || !Arrays.equals(last.pem(), pem)) {
      try {
        last = new Trust(pem, trusting(ca == null ? null : authorities(ca, pem)));
      } catch (GeneralSecurityException e) {
        throw new IOException("this JVM cannot make TLS connections: " + e.getMessage(), e);
      }
      trust = last;
    }
    return last.context();
  }

  /** Null: the JVM's own. */
  private static SSLContext trusting(@Nullable KeyStore authorities) throws GeneralSecurityException {
    TrustManagerFactory trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
    trust.init(authorities);
    SSLContext context = SSLContext.getInstance("TLS");
    context.init(null, trust.getTrustManagers(), null);
    return context;
  }

  private static KeyStore authorities(Setting ca, byte[] pem) throws GeneralSecurityException, IOException {
    KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
    store.load(null, null);
    for (Certificate one : certificates(pem)) {
      store.setCertificateEntry("ca" + store.size(), one);
    }
    if (store.size() == 0) {
      throw Problem.invalid(ca.name() + " is \"" + ca.value() + "\", and this file has no certificate in PEM");
    }
    return store;
  }

  private static Collection<? extends Certificate> certificates(byte[] pem) throws GeneralSecurityException {
    try {
      return CertificateFactory.getInstance("X.509").generateCertificates(new ByteArrayInputStream(pem));
    } catch (CertificateException e) {
      return List.of();
    }
  }

  /** Reads the beginning of a file. Not by a channel, which an interrupt of the thread would close. */
  static byte[] read(Setting file, int limit) throws IOException {
    try (InputStream content = new FileInputStream(file.value())) {
      return content.readNBytes(limit);
    }
  }

  static InvalidRequestException unreadable(Setting file, IOException cause) {
    return Problem.invalid(file.name() + " cannot be read: " + cause.getMessage());
  }
}
