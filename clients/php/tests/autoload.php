<?php

// For the tests, which need no installation: the classes of this package, and those of Debian's packages.

declare(strict_types=1);

spl_autoload_register(static function (string $class): void {
    foreach (['Locksidecar\\Tests\\' => __DIR__ . '/', 'Locksidecar\\' => __DIR__ . '/../src/', '' => '/usr/share/php/'] as $prefix => $folder) {
        $file = $folder . str_replace('\\', '/', substr($class, strlen($prefix))) . '.php';
        if (str_starts_with($class, $prefix) && is_file($file)) {
            require $file;

            return;
        }
    }
});
if (getenv('LOCKSIDECAR_BINARY') === false) {
    putenv('LOCKSIDECAR_BINARY=' . dirname(__DIR__, 3) . '/bin/locksidecar');
}
