package io.github.locksidecar.internal;

import java.io.EOFException;
import java.io.IOException;
import java.net.ConnectException;
import java.net.UnknownHostException;
import java.nio.channels.AsynchronousCloseException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.cert.CertificateException;
import java.security.cert.CertificateExpiredException;
import java.security.cert.CertificateNotYetValidException;
import javax.net.ssl.SSLException;
import org.jspecify.annotations.Nullable;

/** Says why no connection could be made, and what to check. */
final class Unreachable {
  private Unreachable() {}

  /** Whether this process, or its machine, can open no more files. */
  static boolean noDescriptors(IOException cause) {
    return String.valueOf(cause.getMessage()).contains("Too many open files");
  }

  static String why(Endpoint at, IOException cause) {
    String path = at.path();
    if (path == null && !noDescriptors(cause)) {
      return overTcp(at, cause);
    }
    return atSocket(path == null ? "" : path, cause);
  }

  private static String overTcp(Endpoint at, IOException cause) {
    String url = at.setting();
    CertificateException certificate = in(cause, CertificateException.class);
    String message = certificate != null ? certificate.getMessage() : String.valueOf(cause.getMessage());
    if (certificate != null && (message.startsWith("No name ") || message.startsWith("No subject "))) {
      return "its certificate is for another name (" + message + "). " + url + " has to use a name of it";
    }
    CertificateException late = in(cause, CertificateExpiredException.class);
    CertificateException early = in(cause, CertificateNotYetValidException.class);
    if (late != null || early != null) {
      return "its certificate is not valid now: " + (late != null ? "it has expired, " + late.getMessage() : String.valueOf(early.getMessage()));
    }
    if (certificate != null) {
      Endpoint.Setting ca = at.ca();
      String remedy = ca == null ? "LOCKSIDECAR_CA_FILE or caFile names the file of the CA"
          : ca.name() + ", \"" + ca.value() + "\", has to be the file of its CA";
      return "its certificate is of a CA that this process does not trust (" + message + "). " + remedy;
    }
    if (cause instanceof SSLException && in(cause, EOFException.class) == null) {
      return "it does not speak TLS as this process does (" + message + "). Is it http://, or another port? Check " + url;
    }
    if (cause instanceof UnknownHostException) {
      return "its host is not known (" + message + "). Check " + url;
    }
    if (cause instanceof ConnectException && message.contains("refused")) {
      return "nobody listens. Check that it runs, that its LOCKSIDECAR_TCP_ADDR has this port, and " + url;
    }
    return "no connection: " + message + ". Check " + url + ", and the network";
  }

  private static <T> @Nullable T in(Throwable error, Class<T> kind) {
    for (Throwable cause = error; cause != null; cause = cause.getCause()) {
      if (kind.isInstance(cause)) {
        return kind.cast(cause);
      }
    }
    return null;
  }

  private static String atSocket(String path, IOException cause) {
    String message = String.valueOf(cause.getMessage());
    if (noDescriptors(cause)) {
      return "this process has no free file descriptor. Raise its limit (ulimit -n), or let fewer calls wait at a time:"
          + " each has a connection";
    }
    if (message.contains("Permission denied")) {
      return "this process may not use it. Check the sidecar's LOCKSIDECAR_SOCKET_MODE, and the owner and group of the"
          + " socket and its folder";
    }
    if (message.contains("path too long")) {
      return "a socket's path has at most 107 bytes";
    }
    if (!Files.exists(Path.of(path))) {
      return "there is no such socket. Check that the sidecar runs (`locksidecar serve`), that LOCKSIDECAR_SOCKET is the"
          + " same for it and for this process, and that the socket's folder is mounted into this container";
    }
    if (Files.isRegularFile(Path.of(path)) || Files.isDirectory(Path.of(path))) {
      return "this is no socket, but a " + (Files.isDirectory(Path.of(path)) ? "folder" : "plain file");
    }
    if (cause instanceof AsynchronousCloseException) {
      return "it has not accepted the connection in time. Check that the sidecar is not halted, and its log";
    }
    if (cause instanceof ConnectException) {
      return "the socket is there, but nobody listens. Check that the sidecar still runs, and its log";
    }
    return message + ". Check that it is the socket of a locksidecar, and that this runs";
  }
}
