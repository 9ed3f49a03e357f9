<?php

declare(strict_types=1);

namespace Locksidecar\Tests;

use Locksidecar\Client;
use Locksidecar\Exception\Unavailable;
use Locksidecar\Testing\Sidecar;
use Locksidecar\Testing\WithSidecar;
use PHPUnit\Framework\TestCase;

/** The test kit, as an app uses it. */
final class TestingTest extends TestCase
{
    use WithSidecar;

    protected function locksidecarSettings(): array
    {
        return ['TTL' => '2s'];
    }

    public function testItMisbehavesOnRequest(): void
    {
        $client = new Client(reconnect: 0, timeout: 1);
        $lock = $client->acquire('report');
        $this->locksidecar->lose('report');
        self::assertSame('forced', $lock->waitLost(60)?->reason());
        $lock = $client->acquire('report');
        self::assertLessThanOrEqual(2, $lock->expiresIn());
        $this->locksidecar->hanging(static fn () => self::assertSame('expired', $lock->waitLost(60)?->reason()));
        $lock = $client->acquire('other');
        $this->locksidecar->away(static function () use ($client, $lock): void {
            self::assertSame('disconnected', $lock->waitLost(60)?->reason());
            try {
                $client->get('other');
                self::fail('it is away');
            } catch (Unavailable $e) {
                self::assertSame('unreachable', $e->errorCode);
            }
        });
        self::assertTrue($client->get('other')->isFree());
        $this->locksidecar->stop();
        self::assertStringContainsString('locksidecar', $this->locksidecar->log());
    }

    public function testItLeavesNothing(): void
    {
        $sidecar = Sidecar::start();
        self::assertFileExists($sidecar->path);
        $sidecar->close();
        self::assertFileDoesNotExist(\dirname($sidecar->path));
        $this->expectExceptionMessage('LOCKSIDECAR_BINARY=/nowhere is no program');
        $before = getenv('LOCKSIDECAR_BINARY');
        putenv('LOCKSIDECAR_BINARY=/nowhere');
        try {
            Sidecar::start();
        } finally {
            putenv("LOCKSIDECAR_BINARY=$before");
        }
    }
}
