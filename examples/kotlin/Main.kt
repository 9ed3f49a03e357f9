import io.github.locksidecar.LockClient
import io.github.locksidecar.LockLostException
import io.github.locksidecar.LockOptions
import java.time.Duration
import kotlin.system.exitProcess
import kotlinx.coroutines.awaitCancellation
import kotlinx.coroutines.coroutineScope
import kotlinx.coroutines.delay
import kotlinx.coroutines.launch
import kotlinx.coroutines.runBlocking
import kotlinx.coroutines.withTimeoutOrNull

/** Coroutines that count under a lock, a wait that is cancelled, and a work that loses its lock. */
fun main() = runBlocking {
    LockClient.create().use { client ->
        var count = 0 // the lock alone protects it
        coroutineScope {
            repeat(20) {
                launch {
                    client.withLock("kotlin:count") {
                        val before = count
                        delay(1)
                        count = before + 1
                    }
                }
            }
        }
        println("counted $count of 20")

        val waited = client.withLock("kotlin:wait") { withTimeoutOrNull(100) { client.withLock("kotlin:wait") { } } }
        println("cancelled: ${waited == null}, free: ${!client.getFresh("kotlin:wait").held()}")

        val lost = try {
            client.withLock("kotlin:lost", LockOptions.defaults().maxHold(Duration.ofMillis(100))) { awaitCancellation() }
        } catch (e: LockLostException) {
            e.reason()
        }
        println("lost: $lost")
        if (count != 20 || waited != null || client.getFresh("kotlin:wait").held() || lost != "max_hold") exitProcess(1)
    }
}
