package io.github.locksidecar.internal;

import java.io.IOException;
import java.net.ConnectException;
import java.nio.channels.AsynchronousCloseException;
import java.nio.file.Files;
import java.nio.file.Path;

/** Says why no connection could be made, and what to check. */
final class Unreachable {
  private Unreachable() {}

  /** Whether this process, or its machine, can open no more files. */
  static boolean noDescriptors(IOException cause) {
    return String.valueOf(cause.getMessage()).contains("Too many open files");
  }

  static String why(String path, IOException cause) {
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
