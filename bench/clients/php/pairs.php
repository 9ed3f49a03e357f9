<?php

declare(strict_types=1);

// pairs.php locksidecar|symfony SOCKET 1 SECONDS: prints the pairs of acquire and release a second of one caller, as a worker of php-fpm is one. Before that
// it looks that a second caller is refused. `symfony` is Symfony Lock with its RedisStore and the extension redis.

use Locksidecar\Client;
use Symfony\Component\Lock\LockFactory;
use Symfony\Component\Lock\Store\RedisStore;

[, $library, $socket, $callers, $seconds] = $argv;
if ($callers !== '1') {
    exit("PHP has one caller in a process\n");
}

if ($library === 'locksidecar') {
    spl_autoload_register(function (string $class): void {
        if (str_starts_with($class, 'Locksidecar\\')) {
            require __DIR__ . '/../../../clients/php/src/' . strtr(substr($class, strlen('Locksidecar\\')), '\\', '/') . '.php';
        }
    });
    $make = function () use ($socket): Closure {
        $client = new Client($socket);
        return function (string $key) use ($client): ?Closure {
            $lock = $client->tryAcquire($key);
            return $lock === null ? null : fn () => $lock->release();
        };
    };
} else {
    require 'Symfony/Component/Lock/autoload.php';
    $make = function () use ($socket): Closure {
        $redis = new Redis();
        $redis->connect($socket);
        $factory = new LockFactory(new RedisStore($redis));
        return function (string $key) use ($factory): ?Closure {
            $lock = $factory->createLock($key, 30.0, false);
            return $lock->acquire() ? fn () => $lock->release() : null;
        };
    };
}

$acquire = $make();
$release = $acquire('bench:one') ?? throw new RuntimeException('nobody got the lock');
if (($make())('bench:one') !== null) {
    throw new RuntimeException('two callers had the lock at a time');
}
$release();

$run = function (float $length) use ($acquire): float {
    $pairs = 0;
    $began = hrtime(true);
    while (($took = (hrtime(true) - $began) / 1e9) < $length) {
        ($acquire('bench:0') ?? throw new RuntimeException('a key that nobody else uses is held'))();
        $pairs++;
    }
    return $pairs / $took;
};
$run(1.0); // warm
printf("%d\n", $run((float) $seconds));
