<?php

declare(strict_types=1);

namespace Locksidecar\Testing;

use PHPUnit\Framework\Attributes\After;
use PHPUnit\Framework\Attributes\Before;

/**
 * A sidecar for each test of a PHPUnit test case, which the clients that the test makes find.
 *
 *     final class ReportTest extends TestCase
 *     {
 *         use \Locksidecar\Testing\WithSidecar;
 *
 *         public function testTheReportEndsWhenItsLockIsLost(): void
 *         {
 *             $report = new Report(new Client()); // holds the lock report:daily
 *             $this->locksidecar->lose('report:daily');
 *             $this->expectException(LockLost::class);
 *             $report->nextPart();
 *         }
 *     }
 *
 * A method `locksidecarSettings` of your own returns settings of the sidecar: `['TTL' => '2s']`.
 */
trait WithSidecar
{
    /** That of this test. */
    protected Sidecar $locksidecar;
    /** @var array<string, string|false> */
    private array $locksidecarBefore = [];

    /** @return array<string, string> */
    protected function locksidecarSettings(): array
    {
        return [];
    }

    /**
     * @internal
     *
     * @before
     */
    #[Before]
    protected function startLocksidecar(): void
    {
        $this->locksidecarBefore = ['LOCKSIDECAR_SOCKET' => getenv('LOCKSIDECAR_SOCKET'), 'LOCKSIDECAR_URL' => getenv('LOCKSIDECAR_URL')];
        $this->locksidecar = Sidecar::start($this->locksidecarSettings());
        putenv("LOCKSIDECAR_SOCKET={$this->locksidecar->path}");
        putenv('LOCKSIDECAR_URL'); // it would win
    }

    /**
     * @internal
     *
     * @after
     */
    #[After]
    protected function stopLocksidecar(): void
    {
        foreach ($this->locksidecarBefore as $name => $value) {
            putenv($value === false ? $name : "$name=$value");
        }
        if (isset($this->locksidecar)) {
            $this->locksidecar->close();
        }
    }
}
