<?php

declare(strict_types=1);

namespace Locksidecar\Tests;

use Locksidecar\Client;
use Locksidecar\Testing\Sidecar;
use Locksidecar\Tests\Contract\Failed;
use Locksidecar\Tests\Contract\Player;
use PHPUnit\Framework\TestCase;
use Symfony\Component\Yaml\Yaml;

/** The contract suite, on the stores of CONTRACT_STORES, or on the one of CONTRACT_STORE; and over TCP with TLS on memory. */
final class ContractTest extends TestCase
{
    private const SUITE = __DIR__ . '/../../contract';

    /** @var array<string, array{resource, string}> the servers of stores, until the end */
    private static array $servers = [];
    private static ?Tcp $tcp = null;

    public static function tearDownAfterClass(): void
    {
        self::$servers = [];
        self::$tcp = null;
    }

    /** @return iterable<string, array{string, string, bool}> */
    public static function files(): iterable
    {
        $stores = getenv('CONTRACT_STORE') === false ? explode(' ', getenv('CONTRACT_STORES') ?: 'memory postgres etcd mysql redis') : ['given'];
        $files = glob(self::SUITE . '/cases/*.yaml') ?: [];
        foreach ($stores as $store) {
            foreach ($files as $file) {
                if ($store === $stores[0] || !isset((Yaml::parseFile($file)['sidecar'] ?? [])['STORE_URL'])) { // such a file runs once
                    yield basename($file, '.yaml') . " on $store" => [$file, $store, false];
                    if ($store === 'memory') {
                        yield basename($file, '.yaml') . ' over TLS' => [$file, $store, true];
                    }
                }
            }
        }
    }

    public function testThereAreCases(): void
    {
        self::assertGreaterThanOrEqual(10, iterator_count((static fn () => yield from self::files())()));
    }

    /** @dataProvider files */
    public function testFile(string $path, string $store, bool $tls): void
    {
        $file = self::arrays(Yaml::parseFile($path, Yaml::PARSE_OBJECT_FOR_MAP));
        $given = getenv('CONTRACT_STORE') === false ? ['STORE_URL' => self::url($store)] : json_decode((string) getenv('CONTRACT_STORE'), true);
        $settings = ['LOG_LEVEL' => 'warn', 'NAMESPACE' => 'php-' . basename($path, '.yaml'), 'ALLOW_FORCE' => 'false', ...$given, ...$file['sidecar'] ?? []];
        self::$tcp ??= $tls ? new Tcp() : null;
        $sidecar = new Sidecar($tls ? [...$settings, 'LOG_LEVEL' => 'info', ...self::$tcp->settings()] : $settings);
        $sidecar->begin($file['ready'] ?? true);
        $where = $tls ? ['url' => 'https://localhost:' . Tcp::port($sidecar), 'tokenFile' => self::$tcp->write(Tcp::TOKEN), 'caFile' => self::$tcp->file] : ['socket' => $sidecar->path];
        $needed = array_merge([], ...array_map(static fn (array $case): array => $case['features'] ?? [], $file['cases']));
        self::assertSame([], array_diff($needed, (new Client(...$where))->describe()->features), 'cases would not be run');
        $wrong = [];
        foreach ($file['cases'] as $case) {
            try {
                (new Player($sidecar, $where))->play($case['steps']);
            } catch (Failed $e) {
                $wrong[] = "{$case['name']}: {$e->getMessage()}";
            }
        }
        $log = $sidecar->log();
        $sidecar->close();
        self::assertSame([], $wrong, $log);
    }

    /** Maps as arrays, but for empty ones. */
    private static function arrays(mixed $value): mixed
    {
        if ($value instanceof \stdClass && (array) $value === []) {
            return $value;
        }

        return \is_array($value) || $value instanceof \stdClass ? array_map(self::arrays(...), (array) $value) : $value;
    }

    /** The URL of a store, whose server runs until the end. */
    private static function url(string $store): string
    {
        if (!isset(self::$servers[$store])) {
            $process = proc_open(['python3', self::SUITE . '/curl/processes.py', $store], [['pipe', 'r'], ['pipe', 'w']], $pipes);
            $url = trim((string) fgets($pipes[1]));
            if (!\is_resource($process) || $url === '') {
                throw new \RuntimeException("$store has not started");
            }
            self::$servers[$store] = [[$process, $pipes], $url];
        }

        return self::$servers[$store][1];
    }
}
