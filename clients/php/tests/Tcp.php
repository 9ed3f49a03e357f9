<?php

declare(strict_types=1);

namespace Locksidecar\Tests;

use Locksidecar\Testing\Sidecar;

/** What a sidecar over TCP needs: a CA, certificates and tokens, in files that end with it. */
final class Tcp
{
    public const TOKEN = '0123456789abcdef0123456789abcdef';
    public const OTHER = 'fedcba9876543210fedcba9876543210';
    private const KEY = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes'];

    /** Of the CA. */
    public readonly string $file;
    private readonly string $folder;
    private readonly int $pid;
    private int $count = 0;

    public function __construct()
    {
        $this->pid = (int) getmypid();
        $this->folder = sys_get_temp_dir() . '/locksidecar-' . bin2hex(random_bytes(4));
        mkdir($this->folder, 0700);
        $this->file = "{$this->folder}/ca.crt";
        self::openssl('req', '-x509', ...self::KEY, ...['-keyout', "{$this->folder}/ca.key", '-out', $this->file, '-days', '1', '-subj', '/CN=CA', '-addext', 'keyUsage=critical,keyCertSign']);
    }

    public function __destruct()
    {
        if ((int) getmypid() === $this->pid) {
            array_map(unlink(...), glob("{$this->folder}/*") ?: []);
            rmdir($this->folder);
        }
    }

    /** The path of a new file, for its owner. */
    public function write(string $text): string
    {
        $path = "{$this->folder}/" . ++$this->count;
        file_put_contents($path, $text);
        chmod($path, 0600);

        return $path;
    }

    /**
     * Those of a sidecar with a certificate, and a token.
     *
     * @return array<string, string>
     */
    public function settings(string $names = 'DNS:localhost', int $days = 1): array
    {
        [$key, $request, $cert] = [$this->write(''), $this->write(''), $this->write('')];
        self::openssl('req', ...self::KEY, ...['-keyout', $key, '-out', $request, '-subj', '/CN=x', '-addext', "subjectAltName=$names"]);
        self::openssl(...['x509', '-req', '-in', $request, '-CA', $this->file, '-CAkey', "{$this->folder}/ca.key", '-CAcreateserial', '-copy_extensions', 'copy', '-days', (string) $days, '-out', $cert]);

        return ['TCP_TLS_CERT_FILE' => $cert, 'TCP_TLS_KEY_FILE' => $key, ...$this->plain()];
    }

    /**
     * Those of a sidecar without TLS.
     *
     * @return array<string, string>
     */
    public function plain(): array
    {
        return ['TCP_ADDR' => '127.0.0.1:0', 'TCP_TOKEN_FILE' => $this->write(self::TOKEN)];
    }

    /** Its log says it, soon after its first answer. */
    public static function port(Sidecar $sidecar): int
    {
        $port = 0;
        Sidecar::until('the log has the port', static function () use ($sidecar, &$port): bool {
            if (preg_match('/^\{.*"msg":"serving".*\}$/m', $sidecar->log(), $line) === 1) {
                $port = (int) substr((string) strrchr(json_decode($line[0], true)['tcp'], ':'), 1);
            }

            return $port !== 0;
        });

        return $port;
    }

    private static function openssl(string ...$arguments): void
    {
        exec('openssl ' . implode(' ', array_map(escapeshellarg(...), $arguments)) . ' 2>&1', $output, $status);
        if ($status !== 0) {
            throw new \RuntimeException(implode("\n", $output));
        }
    }
}
