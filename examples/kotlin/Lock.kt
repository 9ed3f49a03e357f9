import io.github.locksidecar.HeldLock
import io.github.locksidecar.LockClient
import io.github.locksidecar.LockOptions
import io.github.locksidecar.LocksidecarException
import kotlinx.coroutines.*

private class Lost(reason: String) : CancellationException(reason)

/**
 * Runs [work] under a lock. The cancellation of the coroutine ends a wait. A loss of the lock cancels the work, and
 * throws a LockLostException.
 */
suspend fun <T> LockClient.withLock(
    key: String,
    options: LockOptions = LockOptions.defaults(),
    work: suspend (HeldLock) -> T,
): T {
    var held: HeldLock? = null // also if the cancellation comes with the grant
    var failure: Throwable? = null
    try {
        val lock = runInterruptible(Dispatchers.IO) { acquire(key, options).detach().also { held = it } }
        return coroutineScope {
            val job = async { work(lock) }
            lock.lost().thenAccept { job.cancel(Lost(it)) }
            job.await()
        }
    } catch (e: Throwable) {
        failure = e
        throw e
    } finally {
        withContext(NonCancellable + Dispatchers.IO) {
            try {
                held?.close()
            } catch (e: LocksidecarException) {
                if (failure == null || failure is Lost) throw e
                failure.addSuppressed(e)
            }
        }
    }
}
