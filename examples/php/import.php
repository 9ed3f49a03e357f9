<?php
// PHP with streams from its standard library: a long import that stops on request.
//
// PHP's http:// wrapper cannot use a Unix socket, and would close the connection after each answer. So this
// program opens the socket as a stream and keeps it. The connection is the session: if this process dies,
// its lock is free.
declare(strict_types=1);

/** A refusal of the sidecar. $problem['code'] is stable; decide by it. */
final class Refused extends RuntimeException
{
    public function __construct(public readonly array $problem)
    {
        parent::__construct("{$problem['code']}: {$problem['detail']}");
    }
}

/** One connection to the sidecar. It is a session: when it closes, its locks are free. */
final class Sidecar
{
    /** @var resource */
    private $stream;

    public function __construct()
    {
        $path = getenv('LOCKSIDECAR_SOCKET') ?: getenv('HOME') . '/.locksidecar/locksidecar.sock';
        $stream = @stream_socket_client("unix://$path", $errno, $error, 5);
        if ($stream === false) {
            throw new RuntimeException("there is no sidecar at $path ($error); is it running, and is LOCKSIDECAR_SOCKET right?");
        }
        $this->stream = $stream;
    }

    /** Returns the decoded answer. $waitMs is how long the call may wait at the sidecar; -1: for ever. */
    public function call(string $method, string $path, array $body = [], int $waitMs = 0): array
    {
        // default_socket_timeout (60 s) also limits the wait for the first byte, so a call that waits needs more.
        stream_set_timeout($this->stream, $waitMs < 0 ? 10 * 86400 : intdiv($waitMs, 1000) + 10);
        $json = json_encode((object) $body, JSON_THROW_ON_ERROR);
        $this->write("$method /v1/$path HTTP/1.1\r\nHost: localhost\r\nContent-Length: " . strlen($json) . "\r\n\r\n$json");

        $status = (int) explode(' ', $this->line())[1];
        $length = 0;
        while (($header = $this->line()) !== '') {
            [$name, $value] = explode(':', $header, 2);
            if (strcasecmp($name, 'Content-Length') === 0) {
                $length = (int) $value;
            }
        }
        $answer = json_decode($length > 0 ? $this->read($length) : '{}', true, flags: JSON_THROW_ON_ERROR);
        return $status < 300 ? $answer : throw new Refused($answer);
    }

    // fwrite may write only a part.
    private function write(string $bytes): void
    {
        while ($bytes !== '') {
            $written = fwrite($this->stream, $bytes);
            if ($written === false || $written === 0) {
                throw new RuntimeException('the sidecar has closed the connection: its locks are gone');
            }
            $bytes = substr($bytes, $written);
        }
    }

    private function line(): string
    {
        $line = fgets($this->stream);
        if ($line === false) {
            throw new RuntimeException(stream_get_meta_data($this->stream)['timed_out']
                ? 'the sidecar did not answer in time'
                : 'the sidecar has closed the connection: its locks are gone');
        }
        return rtrim($line, "\r\n");
    }

    private function read(int $length): string
    {
        $bytes = stream_get_contents($this->stream, $length);
        if ($bytes === false || strlen($bytes) !== $length) {
            throw new RuntimeException('the answer ended too early');
        }
        return $bytes;
    }
}

const CHUNKS = 20_000;

$key = rawurlencode('import:customers'); // a key may have any character

$import = new Sidecar();
$lock = $import->call('PUT', "locks/$key", ['wait_ms' => 30000, 'data' => ['file' => 'customers.csv']], 30000);
echo "import:customers is mine, fencing token {$lock['token']}\n";

$operator = new Sidecar(); // another connection is another session, as in another pod
try {
    $operator->call('PUT', "locks/$key");
    fwrite(STDERR, "another caller got the lock, too\n");
    exit(1);
} catch (Refused $refusal) {
    echo "the operator gets {$refusal->problem['code']}, by an import of {$refusal->problem['holder']['data']['file']}\n";
}

for ($chunk = 1; $chunk <= CHUNKS; $chunk++) {
    // A safe point between two chunks. The check does not ask the database, and throws if the lock is lost.
    $state = $import->call('PATCH', "locks/$key", ['token' => $lock['token']]);
    if ($state['stopping'] !== null) {
        echo "asked to stop, before chunk $chunk: {$state['stopping']['reason']}\n";
        break;
    }
    usleep(1000); // the work
    if ($chunk === 3) {
        $operator->call('POST', "locks/$key/stop", ['reason' => 'maintenance']);
        echo "the operator asks to stop\n";
    }
}
$import->call('DELETE', "locks/$key?token={$lock['token']}&outcome=failure");

$next = $operator->call('PUT', "locks/$key", ['wait_ms' => 5000], 5000);
echo "the operator has it now, fencing token {$next['token']}\n";
$stopped = $chunk <= CHUNKS;
unset($operator); // the connection closes, and the lock is free
exit($stopped && $next['token'] > $lock['token'] ? 0 : 1);
