<?php

declare(strict_types=1);

namespace Locksidecar\Internal;

/**
 * Where the sidecar listens.
 *
 * @internal
 */
final class Endpoint
{
    private const ALLOWED = 'allowed: unix:///PATH, http://HOST:PORT or https://HOST:PORT';
    private const UNIX = '~\Aunix://(/[^?#]+)\z~i';
    private const TCP = '~\A(https?)://(\[[\da-f:.]+\]|[^:/?#\[\]]+):(\d{1,5})/?\z~i';

    private function __construct(
        /** The path of a socket, or a URL. */
        public readonly string $name,
        /** The path of a socket; empty: over TCP. */
        public readonly string $path,
        /** Where it was set, for messages. */
        private readonly string $where,
        private readonly string $host = '',
        private readonly int $port = 0,
        public readonly bool $encrypted = false,
        private readonly ?Token $token = null,
        private readonly ?Setting $certificates = null,
    ) {
    }

    /**
     * Reads the settings. What is set in code wins over the environment, and a URL over a socket.
     *
     * @param \Closure(): string $usual the socket of a sidecar that was not told another one
     */
    public static function fromSettings(?string $socket, ?string $url, ?string $tokenFile, ?string $caFile, \Closure $usual): self
    {
        $socket = (string) $socket;
        $where = Setting::of('url', $url);
        if ($where !== null && $socket !== '') {
            throw Problem::invalid('socket and url are both given; one names the sidecar');
        }
        $where ??= $socket === '' ? Setting::ofEnvironment('LOCKSIDECAR_URL') : null;
        if ($where === null) {
            $path = $socket !== '' ? $socket : Setting::ofEnvironment('LOCKSIDECAR_SOCKET')?->value ?? $usual();

            return new self($path, $path, 'socket');
        }
        $token = Setting::of('tokenFile', $tokenFile) ?? Setting::ofEnvironment('LOCKSIDECAR_TOKEN_FILE');

        return self::parse($where, $token === null ? null : new Token($token), Setting::of('caFile', $caFile) ?? Setting::ofEnvironment('LOCKSIDECAR_CA_FILE'));
    }

    /** The lines that each request to this sidecar has. */
    public function headers(): string
    {
        $host = $this->path !== '' ? 'localhost' : "{$this->bracketed()}:{$this->port}";

        return "Host: $host\r\n" . ($this->token === null ? '' : "Authorization: Bearer {$this->token->read()}\r\n");
    }

    /**
     * Where to connect to: `HOST:PORT`, also by address. PHP tries all addresses of a host only while it holds up the process, and it tells only those of
     * IPv4.
     *
     * @return list<string>
     */
    public function addresses(): array
    {
        $found = $this->bracketed() === $this->host ? gethostbynamel($this->host) : false;

        return array_values(array_unique(["{$this->bracketed()}:{$this->port}", ...array_map(fn (string $one): string => "$one:{$this->port}", $found ?: [])]));
    }

    /** @return resource the settings of a connection */
    public function context(): mixed
    {
        $tls = ['verify_peer' => true, 'verify_peer_name' => true, 'allow_self_signed' => false, 'peer_name' => $this->host, 'disable_compression' => true];
        if ($this->encrypted && $this->certificates !== null) {
            $text = Quiet::call(fn (): string|false => file_get_contents($this->certificates->value));
            if ($text === false || !str_contains($text, '-----BEGIN CERTIFICATE-----')) {
                $why = $text === false ? 'cannot be read: ' . preg_replace('/^.*: /', '', Quiet::$warning) : 'this file has no certificate in PEM';
                throw Problem::invalid("{$this->certificates->name} is " . Check::show($this->certificates->value) . ", and $why");
            }
            $tls['cafile'] = $this->certificates->value;
        }

        return stream_context_create(['socket' => ['tcp_nodelay' => true], 'ssl' => $tls]);
    }

    /** Why there is no connection over TCP, and what to look at. */
    public function whatFailed(NoConnection $cause): string
    {
        $text = $cause->getMessage();

        return match (true) {
            str_contains($text, 'did not match') || str_contains($text, 'Unable to locate peer certificate CN') => "its certificate is for another name ($text). {$this->where} has to use a name of it",
            str_contains($text, 'certificate verify failed') => 'its certificate is of a CA that this process does not trust, or is not valid now (PHP does not tell which). '
                . ($this->certificates === null ? 'LOCKSIDECAR_CA_FILE names the file of the CA' : "{$this->certificates->name} is {$this->certificates->value}: it has to be the file of that CA"),
            $cause->isOfTls => "it does not speak TLS as this process does ($text). Is it http://, or another port? Check {$this->where}",
            str_contains($text, 'getaddrinfo') => "its host is not known ($text). Check {$this->where}",
            $cause->getCode() === 111 => "nobody listens. Check that it runs, that its LOCKSIDECAR_TCP_ADDR has this port, and {$this->where}",
            default => "$text. Check {$this->where}, and the network",
        };
    }

    /** A URL with a password, which has no use here, is not shown. */
    private static function parse(Setting $url, ?Token $token, ?Setting $certificates): self
    {
        $text = $url->value;
        $odd = preg_match('/[@\s[:cntrl:]]/', $text) === 1;
        if (!$odd && preg_match(self::UNIX, $text, $match) === 1) {
            return new self($match[1], $match[1], $url->name);
        }
        if ($odd || preg_match(self::TCP, $text, $match) !== 1 || (int) $match[3] < 1 || (int) $match[3] > 65_535) {
            $shown = str_contains($text, '@') ? 'no URL of a sidecar' : Check::show($text);
            throw Problem::invalid("{$url->name} is $shown; " . self::ALLOWED);
        }
        $scheme = strtolower($match[1]);
        $port = (int) $match[3];
        if ($scheme === 'https' && !extension_loaded('openssl')) {
            throw Problem::invalid("{$url->name} is " . Check::show($text) . ', and https needs PHP\'s extension openssl, which is not loaded: load it, or use a socket');
        }

        return new self("$scheme://{$match[2]}:$port", '', $url->name, trim($match[2], '[]'), $port, $scheme === 'https', $token, $certificates);
    }

    private function bracketed(): string
    {
        return str_contains($this->host, ':') ? "[{$this->host}]" : $this->host;
    }
}
