import io.github.locksidecar.HeldLock;
import io.github.locksidecar.LockClient;
import io.github.locksidecar.LockOptions;
import java.time.Duration;

/** The app of network_test.go with the client for the JVM. It writes a line for each event, with its time. */
final class App {
  public static void main(String[] arguments) throws Exception {
    // Its leases are longer than the time after which the sidecar gives up a silent app.
    LockClient client = LockClient.builder().reconnect(Duration.ZERO).ttl(Duration.ofMinutes(1)).build();
    try {
      if (System.getenv("NETWORK_TEST_APP").equals("waits")) {
        client.acquire("first").release(); // the session is open
        say("waits", "");
        try {
          client.acquire("other");
          say("ended", "<nil>");
        } catch (RuntimeException e) {
          say("ended", e.toString());
        }
        return;
      }
      HeldLock lock = client.acquire("k", LockOptions.defaults().maxWait(Duration.ofSeconds(10)));
      say("held", "");
      say("lost", "lost: " + lock.lost().toCompletableFuture().get());
    } catch (RuntimeException e) {
      say("failed", e.toString());
    }
  }

  private static void say(String what, String error) {
    System.out.println(what + " " + System.currentTimeMillis() + "000000 " + error);
  }
}
