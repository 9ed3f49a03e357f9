<?php

declare(strict_types=1);

namespace Locksidecar\Tests;

/** The examples of the README run. */
final class PagesTest extends ClientCase
{
    public function testTheExamples(): void
    {
        [$first, $loss, $kit] = $this->examples();
        $app = 'require ' . var_export(__DIR__ . '/autoload.php', true) . "; function write(int \$fencingToken): void { echo 'written '; }\n"
            . "function work(string \$part): void { echo \"\$part \"; }\n\$parts = ['a', 'b'];\n";
        $said = $this->runs(str_replace("require 'vendor/autoload.php';", $app, $first) . $loss);
        self::assertSame('written written a b ', $said);
        $report = "final class Report { private \$lock; function __construct(Client \$client) { \$this->lock = \$client->acquire('report:daily'); }\n"
            . 'function finish(): void { $this->lock->waitLost(60); $this->lock->check(); } }';
        $file = sys_get_temp_dir() . '/ReportTest.php';
        file_put_contents($file, "<?php\n$kit\n$report");
        try {
            exec('phpunit --no-configuration --do-not-cache-result --bootstrap ' . escapeshellarg(__DIR__ . '/autoload.php') . " $file 2>&1", $lines, $code);
            self::assertSame(0, $code, implode("\n", $lines));
            self::assertContains('OK (1 test, 1 assertion)', $lines);
        } finally {
            unlink($file);
        }
    }

    /** @return list<string> */
    private function examples(): array
    {
        preg_match_all('/^```php\n(.*?)^```$/ms', (string) file_get_contents(__DIR__ . '/../README.md'), $matches);

        return $matches[1];
    }

    private function runs(string $code): string
    {
        $process = proc_open([PHP_BINARY, '-d', 'error_reporting=-1'], [['pipe', 'r'], ['pipe', 'w']], $pipes, null, ['LOCKSIDECAR_SOCKET' => self::path(), ...getenv()]);
        self::assertIsResource($process);
        fwrite($pipes[0], "<?php\n$code");
        fclose($pipes[0]);
        $said = (string) stream_get_contents($pipes[1]);
        proc_close($process);

        return $said;
    }
}
