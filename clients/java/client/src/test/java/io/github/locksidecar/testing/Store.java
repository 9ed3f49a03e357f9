package io.github.locksidecar.testing;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;

/** The server of a store. The contract suite's own program starts it. */
public final class Store implements AutoCloseable {
  private final Process process;
  private final String url;

  /** Starts it: memory, postgres or etcd. */
  public Store(String name) throws IOException {
    String program = Sidecar.root().resolve("clients/contract/curl/processes.py").toString();
    process = new ProcessBuilder("python3", program, name).redirectError(ProcessBuilder.Redirect.INHERIT).start();
    BufferedReader output =
        new BufferedReader(new InputStreamReader(process.getInputStream(), StandardCharsets.UTF_8));
    url = output.readLine();
    if (url == null) {
      throw new IllegalStateException("the server of " + name + " did not start");
    }
  }

  /** For STORE_URL. */
  public String url() {
    return url;
  }

  @Override
  public void close() throws IOException, InterruptedException {
    process.getOutputStream().close(); // the program ends the server, and then itself
    process.waitFor();
  }
}
