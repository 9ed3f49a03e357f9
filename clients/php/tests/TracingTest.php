<?php

declare(strict_types=1);

namespace Locksidecar\Tests;

/** The trace of the app goes with its calls. */
final class TracingTest extends ClientCase
{
    private const PARENT = '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01';

    public function testTheHeadersThatTheAppGives(): void
    {
        $lock = $this->client(trace: static fn (): array => ['TraceParent' => self::PARENT, 'other' => 'x'])->lock($this->key);
        self::assertSame(self::PARENT, $this->client()->get($this->key)->holder?->traceparent);
        $lock->release();
        $bad = $this->client(trace: static fn (): array => ['traceparent' => "x\r\nLock-Session: 1"]);
        self::assertTrue($bad->lock($this->key)->release());
    }

    /** With a stand-in for OpenTelemetry's class, because the real package is not one of Debian. */
    public function testOpenTelemetry(): void
    {
        [$process, , $output] = $this->php('eval(\'namespace OpenTelemetry\API; class Globals { static function propagator() { return new self; }'
            . ' function inject(&$carrier) { $carrier["traceparent"] = "' . self::PARENT . '"; } }\'); $lock = $client->lock($key);'
            . 'echo $client->get($key)->holder->traceparent, "\n";');
        self::assertSame(self::PARENT, self::line($output));
        proc_close($process);
    }
}
