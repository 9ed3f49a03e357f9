<?php

declare(strict_types=1);

namespace Locksidecar\Tests;

use Locksidecar\Client;
use Locksidecar\Exception\Forbidden;
use Locksidecar\Exception\InvalidRequest;
use Locksidecar\Exception\Unavailable;
use Locksidecar\Internal\Clock;
use Locksidecar\Testing\Sidecar;

/** The sidecar over TCP, with TLS of a CA that the test makes, and a token. */
final class TcpTest extends ClientCase
{
    private static ?Tcp $tcp = null;
    private ?int $sender = null;
    /** The file with the time at which the only signal was sent, because a busy machine needs long until the sender has begun. */
    private string $sent;
    /** Whether the next signal throws. */
    private bool $armed = false;

    public static function tearDownAfterClass(): void
    {
        self::$tcp = null;
    }

    protected function setUp(): void
    {
        parent::setUp();
        $this->sent = (string) tempnam(sys_get_temp_dir(), 'sent');
        self::$tcp ??= new Tcp();
    }

    protected function tearDown(): void
    {
        if ($this->sender !== null) {
            posix_kill($this->sender, 9);
            pcntl_waitpid($this->sender, $status);
        }
        unlink($this->sent);
        pcntl_signal(SIGUSR1, SIG_IGN);
        pcntl_async_signals(false);
        foreach (['LOCKSIDECAR_URL', 'LOCKSIDECAR_SOCKET', 'LOCKSIDECAR_TOKEN_FILE'] as $name) {
            putenv($name);
        }
        parent::tearDown();
    }

    /** Proves: threat tcp */
    public function testLocksWaitsEventsAndLosses(): void
    {
        [$one, $two] = [$this->overTls(), $this->overTls()];
        $lock = $one->acquire($this->key);
        self::assertNull($two->tryAcquire($this->key));
        $waiter = $this->aside(fn (): int => $two->withLock($this->key, static fn ($lock): int => $lock->token, wait: self::LONG));
        $this->tasks->until(fn (): bool => $one->get($this->key, fresh: true)->queueLength === 1);
        $lock->release();
        self::assertGreaterThan($lock->token, $this->result($waiter));
        self::assertSame('state', $one->events($this->key)->next()->type);
        $lost = $one->acquire($this->key, wait: self::LONG);
        $this->own()->lose($this->key);
        self::assertSame('forced', $lost->waitLost(self::LONG)?->reason());
        $kept = $one->acquire($this->key, wait: self::LONG);
        $this->own()->kill();
        self::assertSame('disconnected', $kept->waitLost(self::LONG)?->reason());
        self::assertStringNotContainsString(Tcp::TOKEN, $this->own()->log());
        $this->own()->begin();
    }

    /** Neither a dump nor the arguments of a trace have the token. */
    public function testNothingShowsTheToken(): void
    {
        $client = $this->overTls();
        $client->acquire($this->key);
        ob_start();
        var_dump($client);
        $shown = ob_get_clean() . print_r($client, true);
        $this->own()->kill();
        $error = self::thrown(Unavailable::class, fn () => $client->get($this->key));
        for (; $error !== null; $error = $error->getPrevious()) {
            $shown .= $error . print_r($error->getTrace(), true);
        }
        self::assertStringContainsString('Endpoint', $shown);
        self::assertStringNotContainsString(Tcp::TOKEN, $shown);
    }

    // Proves: client forks
    /**
     * A child that ends, or closes its copies, ends nothing of its parent's: neither the connections nor the session, though PHP ends TLS there.
     */
    public function testAForkedChildHasItsOwnSession(): void
    {
        $code = '$client = new Client(' . implode(', ', array_map(static fn (string $name, string $value): string => "$name: " . var_export($value, true), array_keys($this->whole()), $this->whole())) . ');'
            . <<<'PHP'
                $lock = $client->acquire($key);
                $client->get($key); // an idle connection
                $children = [
                    function () { },
                    fn () => $client->afterFork(),
                    function () use ($client, $key, $lock) {
                        $own = $client->acquire("$key:child");
                        echo json_encode([$lock->lost()?->reason(), $client->tryAcquire($key), $client->get($key)->mine, $own->release()]), "\n";
                    },
                    function () { str_repeat('a', PHP_INT_MAX - 100); },
                ];
                foreach ($children as $work) {
                    if (pcntl_fork() === 0) {
                        $work();
                        exit;
                    }
                    pcntl_wait($status);
                    usleep(200_000);
                    echo json_encode([$lock->lost(), $client->get($key)->mine, $lock->check()->reentry]), "\n";
                }
                echo json_encode($lock->release()), "\n";
                PHP;
        [$process, , $output] = $this->php($code);
        $lines = [];
        for ($n = 0; $n < 6; ++$n) {
            $lines[] = self::line($output);
        }
        proc_close($process);
        $fine = '[null,true,1]';
        self::assertSame([$fine, $fine, '["forked",null,false,true]', $fine, $fine, 'true'], $lines);
    }

    public function testATokenIsReadAgain(): void
    {
        $file = self::$tcp->write(Tcp::OTHER);
        $client = $this->over(['url' => 'http://127.0.0.1:' . Tcp::port($this->own(...self::$tcp->plain())), 'tokenFile' => $file]);
        self::thrown(Forbidden::class, fn () => $client->get($this->key));
        file_put_contents($file, Tcp::TOKEN);
        self::assertTrue($this->tasks->until(function () use ($client): bool {
            try {
                return $client->get($this->key)->isFree();
            } catch (Forbidden) {
                return false;
            }
        }));
        unlink($file); // away for a moment: nothing changes
        usleep(1_100_000); // longer than a token is believed in
        self::assertTrue($client->get($this->key)->isFree());
        file_put_contents($file, '');
        usleep(1_100_000);
        self::assertTrue($client->get($this->key)->isFree());
    }

    // Proves: threat tcp
    /**
     * An error says what is wrong and which setting to look at. It never contains a token.
     *
     * @dataProvider mistakes
     *
     * @param array<string, mixed> $sidecar
     * @param array<string, mixed> $change
     * @param class-string<\Throwable>|null $kind
     */
    public function testMistakes(array $sidecar, array $change, ?string $kind, string $text): void
    {
        $whole = $this->whole($sidecar);
        foreach ($change as $name => $value) {
            $change[$name] = $value instanceof \Closure ? $value($whole) : $value;
        }
        $call = fn () => $this->over([...$whole, ...$change])->get($this->key)->isFree();
        if ($kind === null) {
            self::assertTrue($call());

            return;
        }
        $error = self::thrown($kind, $call);
        self::assertMatchesRegularExpression($text, $error->getMessage());
        self::assertDoesNotMatchRegularExpression('/s3cret|' . Tcp::TOKEN . '|' . Tcp::OTHER . '/', (string) $error);
    }

    /** @return iterable<string, array{array<string, mixed>, array<string, mixed>, class-string<\Throwable>|null, string}> */
    public static function mistakes(): iterable
    {
        $file = static fn (string $text): \Closure => static fn (): string => self::$tcp->write($text);
        yield 'none' => [[], [], null, ''];
        yield 'a wrong token' => [[], ['tokenFile' => $file(Tcp::OTHER)], Forbidden::class, '/LOCKSIDECAR_TCP_TOKEN_FILE/'];
        yield 'no token' => [[], ['tokenFile' => null], Forbidden::class, '/LOCKSIDECAR_TCP_TOKEN_FILE/'];
        yield 'no token file' => [[], ['tokenFile' => '/no/token'], InvalidRequest::class, '~tokenFile is "/no/token", and cannot be read: No such file~'];
        yield 'an odd token' => [[], ['tokenFile' => $file("s3cret\rX: y")], InvalidRequest::class, '/tokenFile.*no token/'];
        yield 'an empty token' => [[], ['tokenFile' => $file('')], InvalidRequest::class, '/tokenFile.*no token/'];
        yield 'a long token' => [[], ['tokenFile' => $file(str_repeat('a', 513))], InvalidRequest::class, '/tokenFile.*up to 512/'];
        yield 'another CA' => [[], ['caFile' => static fn (): string => self::other()->file], Unavailable::class, '/does not trust.*caFile is.*has to be/'];
        yield 'the CAs of the system' => [[], ['caFile' => null], Unavailable::class, '/does not trust.*LOCKSIDECAR_CA_FILE/'];
        yield 'no CA file' => [[], ['caFile' => '/no/ca'], InvalidRequest::class, '~caFile.*"/no/ca", and cannot be read: No such file~'];
        yield 'no CA in it' => [[], ['caFile' => $file('x')], InvalidRequest::class, '/caFile.*PEM/'];
        yield 'expired' => [['days' => -1], [], Unavailable::class, '/is not valid now/'];
        yield 'another name' => [['names' => 'DNS:sidecar.example'], [], Unavailable::class, '/another name .*url has to use/'];
        yield 'an address alone' => [['names' => 'IP:127.0.0.1'], [], Unavailable::class, '/another name/'];
        $byAddress = static fn (array $whole): string => str_replace('localhost', '127.0.0.1', $whole['url']);
        yield 'a name alone' => [[], ['url' => $byAddress], Unavailable::class, '/another name/'];
        yield 'its address' => [['names' => 'IP:127.0.0.1'], ['url' => $byAddress], null, ''];
        yield 'plain to TLS' => [[], ['url' => static fn (array $whole): string => str_replace('https', 'http', $whole['url'])], InvalidRequest::class, '~https://~'];
        yield 'TLS to plain' => [['plain' => true], [], Unavailable::class, '/does not speak TLS.*wrong version number.*Check url/'];
        yield 'nobody' => [[], ['url' => static function (): string {
            $listener = stream_socket_server('tcp://127.0.0.1:0');

            return 'https://localhost' . strrchr((string) stream_socket_get_name($listener, false), ':');
        }], Unavailable::class, '/nobody listens.*LOCKSIDECAR_TCP_ADDR.*url/'];
        yield 'no host' => [[], ['url' => 'https://no.invalid:1'], Unavailable::class, '/host is not known.*Check url/'];
        yield 'two places' => [[], ['socket' => '/s'], InvalidRequest::class, '/socket and url are both given/'];
        $bad = ['https://u:s3cret@localhost:1', 'https://localhost', 'https://localhost:1/v1', 'https://localhost:1?s=3', 'https://localhost:1#s', 'unix://host/s', 'unix:/s', 'unix://',
            'localhost:1', 'ftp://h:1', 'https://localhost:0', 'https://localhost:65536', 'https://:1', 'https://local host:1', "https://localhost:1\r\nX: y", "https://a:1\n"];
        foreach ($bad as $url) {
            yield json_encode($url) . '' => [[], ['url' => $url], InvalidRequest::class, '~\Aurl is .*; allowed: unix:///PATH, http://HOST:PORT or https://HOST:PORT~'];
        }
    }

    public function testACaFileIsReadForEachConnection(): void
    {
        $file = self::$tcp->write((string) file_get_contents(self::other()->file));
        $client = $this->overTls(caFile: $file);
        self::thrown(Unavailable::class, fn () => $client->get($this->key));
        file_put_contents($file, (string) file_get_contents(self::$tcp->file));
        self::assertTrue($client->get($this->key)->isFree());
    }

    public function testWhichAddressWins(): void
    {
        $tcp = 'http://127.0.0.1:1';
        putenv('LOCKSIDECAR_SOCKET=/no/env');
        $cases = [[[], '', '/no/env'], [[], $tcp, $tcp], [[], 'unix:///no/url', '/no/url'], [['socket' => '/no/code'], $tcp, '/no/code'], [['url' => 'https://[::1]:2/'], $tcp, 'https://[::1]:2'], [['url' => ''], $tcp, $tcp]];
        foreach ($cases as [$given, $url, $want]) {
            putenv("LOCKSIDECAR_URL=$url");
            self::assertStringContainsString("the sidecar at $want: ", self::thrown(Unavailable::class, fn () => $this->over($given)->describe())->getMessage());
        }
        putenv('LOCKSIDECAR_URL=ftp://h:1');
        self::assertStringContainsString('LOCKSIDECAR_URL is "ftp', self::thrown(InvalidRequest::class, fn () => new Client())->getMessage());
        putenv("LOCKSIDECAR_URL=$tcp");
        putenv('LOCKSIDECAR_TOKEN_FILE=/no/file');
        $listening = 'http://127.0.0.1' . strrchr((string) stream_socket_get_name($listener = stream_socket_server('tcp://127.0.0.1:0'), false), ':');
        self::assertStringContainsString('LOCKSIDECAR_TOKEN_FILE is', self::thrown(InvalidRequest::class, fn () => $this->over(['url' => $listening])->describe())->getMessage());
    }

    /** Without TLS nobody needs the extension. */
    public function testHttpsAloneNeedsOpenssl(): void
    {
        [$process, , $output] = $this->php('eval("namespace Locksidecar\\\\Internal; function extension_loaded(string \$name): bool { return \$name !== \"openssl\"; }");'
            . 'new Client(url: "http://127.0.0.1:1"); try { new Client(url: "https://localhost:1"); } catch (Locksidecar\Exception\InvalidRequest $e) { echo $e->getMessage(), "\n"; }');
        self::assertStringContainsString('url is "https://localhost:1", and https needs PHP\'s extension openssl', self::line($output));
        proc_close($process);
    }

    /**
     * A peer that vanishes is noticed by the system.
     *
     * @requires extension sockets
     */
    public function testASilentConnectionIsProbed(): void
    {
        $client = $this->over(['url' => 'http://127.0.0.1:' . Tcp::port($this->own(...self::$tcp->plain())), 'tokenFile' => self::$tcp->write(Tcp::TOKEN)]);
        $client->get($this->key);
        $transport = (new \ReflectionProperty($client, 'transport'))->getValue($client);
        $open = (new \ReflectionProperty($transport, 'open'))->getValue($transport);
        $socket = socket_import_stream(array_values($open)[0]->stream);
        self::assertNotFalse($socket);
        self::assertSame([3, 3, 5, 15000, 1], array_map(static fn (int $name): mixed => socket_get_option($socket, SOL_TCP, $name), [4, 5, 6, 18, TCP_NODELAY]));
        self::assertSame(1, socket_get_option($socket, SOL_SOCKET, SO_KEEPALIVE));
    }

    // Proves: client own clock
    /**
     * A lock ends by this process's clock although the network carries nothing.
     */
    public function testALockEndsInTimeWithoutANetwork(): void
    {
        $whole = $this->whole([], ['TTL' => '2s']);
        $wire = new Wire(Tcp::port($this->own()));
        $client = $this->over([...$whole, 'url' => "https://localhost:{$wire->port}"]);
        $lock = $client->acquire($this->key);
        $wire->mute();
        while ($lock->lost() === null) {
            self::assertLessThan($lock->entry->grant->expiresAt + 0.1, Clock::now());
            usleep(10_000);
        }
        self::assertSame('expired', $lock->lost()->reason());
        self::assertEqualsWithDelta($lock->entry->grant->expiresAt, Clock::now(), 0.6);
        $wire->mute(false);
    }

    /** Proves: client deadline */
    public function testAServerThatAcceptsAndNeverAnswers(): void
    {
        $listener = stream_socket_server('tcp://127.0.0.1:0');
        self::assertNotFalse($listener);
        $at = '127.0.0.1' . strrchr((string) stream_socket_get_name($listener, false), ':');
        foreach (['http' => ['/did not answer GET/', 0.5], 'https' => ['/in time.*Check url, and the network/', 5.0]] as $scheme => [$text, $usual]) {
            $began = Clock::now();
            $error = self::thrown(Unavailable::class, fn () => $this->over(['url' => "$scheme://$at", 'timeout' => 0.5])->get($this->key));
            self::assertEqualsWithDelta(0.5, Clock::now() - $began, 0.4);
            self::assertMatchesRegularExpression($text, $error->getMessage());
        }
        $began = Clock::now();
        self::thrown(Unavailable::class, fn () => $this->over(['url' => "https://$at"])->get($this->key));
        self::assertEqualsWithDelta(5.0, Clock::now() - $began, 1.0, 'a handshake has five seconds');
    }

    /** Proves: client interrupts */
    public function testASignalEndsAHandshake(): void
    {
        $listener = stream_socket_server('tcp://127.0.0.1:0');
        self::assertNotFalse($listener);
        $client = $this->over(['url' => 'https://127.0.0.1' . strrchr((string) stream_socket_get_name($listener, false), ':')]);
        foreach ([fn () => $client->get($this->key), fn () => $client->lock($this->key)] as $call) {
            $this->signals(1, 300_000);
            self::thrown(Interrupted::class, $call);
            self::assertLessThan(0.8, $this->sinceSignal());
        }
    }

    // Proves: client interrupts
    /**
     * A release on a new connection, whose handshake hangs, is not ended by a signal, and holds the process for two seconds at most.
     */
    public function testAReleaseWhoseHandshakeHangs(): void
    {
        $whole = $this->whole();
        $wire = new Wire(Tcp::port($this->own()));
        $client = $this->over([...$whole, 'url' => "https://localhost:{$wire->port}", 'ttl' => 3600]);
        $lock = $client->acquire($this->key);
        $transport = (new \ReflectionProperty($client, 'transport'))->getValue($client);
        (new \ReflectionMethod($transport, 'dropIdle'))->invoke($transport);
        $wire->mute();
        $this->signals(1, 300_000);
        $interrupted = self::thrown(Interrupted::class, fn () => $lock->release());
        self::assertEqualsWithDelta(2.3, $this->sinceSignal(), 0.8);
        self::assertInstanceOf(Unavailable::class, $interrupted->getPrevious());
        self::assertFalse($lock->released());
        $wire->mute(false);
        self::assertTrue($lock->release());
    }

    // Proves: client interrupts
    /**
     * Calls that are interrupted at any moment leave no lock, and no connection in the middle of an answer.
     */
    public function testInterruptedCallsLeaveNoLock(): void
    {
        $client = $this->overTls();
        $transport = (new \ReflectionProperty($client, 'transport'))->getValue($client);
        $drop = new \ReflectionMethod($transport, 'dropIdle');
        $client->withLock($this->key, static fn (): int => 1);
        $interrupted = 0;
        $this->signals(100_000, 1500);
        // A busy machine may need long until the sender has begun.
        for ($began = Clock::now(); Clock::now() < $began + 4 || $interrupted <= 50;) {
            self::assertLessThan($began + self::LONG, Clock::now(), "only $interrupted calls were interrupted");
            try {
                $this->armed = true;
                $client->withLock($this->key, static fn (): int => 1);
                $this->armed = false;
            } catch (Interrupted) {
                ++$interrupted;
            }
            random_int(0, 4) === 0 && $drop->invoke($transport); // so that some are in a handshake
        }
        self::assertTrue($client->get($this->key)->isFree());
        self::assertSame([], iterator_to_array($client->locks('session')));
    }

    /** TLS may have decrypted more than was read. Then nothing comes on the socket any more. */
    public function testAnAnswerInOneRecord(): void
    {
        $client = $this->overTls(timeout: 3);
        $keys = array_map(fn (int $n): string => "$this->key:$n", range(1, 60));
        $locks = $client->acquireMany($keys); // an answer of more than 8 KiB, which is what PHP reads at once
        self::assertCount(60, iterator_to_array($client->locks(prefix: $this->key), false));
        $mine = $this->result($this->aside(fn (): int => \count(iterator_to_array($client->locks(prefix: $this->key), false))));
        self::assertSame(60, $mine);
        unset($locks);
    }

    /** The sidecar ends TLS in the middle of an answer. */
    public function testAnAnswerThatIsCut(): void
    {
        $whole = $this->whole();
        $wire = new Wire(Tcp::port($this->own()));
        $client = $this->over([...$whole, 'url' => "https://localhost:{$wire->port}"]);
        $holder = $this->client($this->own()->path)->acquire($this->key);
        $waiter = $this->aside(fn () => $client->acquire($this->key, wait: self::LONG));
        $this->waiting($this->key, 1, $this->own()->path);
        unset($wire);
        self::assertSame('connection_lost', self::thrown(Unavailable::class, fn () => $this->result($waiter))->errorCode);
        $this->waiting($this->key, 0, $this->own()->path);
        self::assertTrue($holder->release());
    }

    /** A CA that signed nothing. */
    private static function other(): Tcp
    {
        static $other = null;

        return $other ??= new Tcp();
    }

    /**
     * What a client needs for the sidecar of this test.
     *
     * @param array<string, mixed> $of arguments of Tcp::settings, or `plain`
     * @param array<string, string> $settings
     *
     * @return array<string, string>
     */
    private function whole(array $of = [], array $settings = []): array
    {
        $tls = isset($of['plain']) ? self::$tcp->plain() : self::$tcp->settings(...$of);
        $sidecar = $this->sidecar ?? $this->own(...$tls, ...$settings);

        return ['url' => 'https://localhost:' . Tcp::port($sidecar), 'tokenFile' => self::$tcp->write(Tcp::TOKEN . "\n" . Tcp::OTHER . "\n"), 'caFile' => self::$tcp->file];
    }

    private function overTls(mixed ...$options): Client
    {
        return $this->over([...$this->whole(), ...$options]);
    }

    /** @param array<string, mixed> $options */
    private function over(array $options): Client
    {
        return $this->made(new Client(...['reconnect' => 0, ...$options]));
    }

    /** The seconds since the signal was sent. */
    private function sinceSignal(): float
    {
        return (hrtime(true) - (int) file_get_contents($this->sent)) / 1e9;
    }

    /** Sends signals to this process, by another one, whose handler throws. */
    private function signals(int $count, int $microseconds): void
    {
        pcntl_async_signals(true);
        $this->armed = true;
        pcntl_signal(SIGUSR1, function (): void {
            if ($this->armed) {
                $this->armed = false;
                throw new Interrupted();
            }
        });
        $me = getmypid();
        $note = $count === 1 ? "file_put_contents('$this->sent', hrtime(true));" : '';
        $code = "for (\$n = 0; \$n < $count; ++\$n) { usleep($microseconds + random_int(0, 300)); $note if (!posix_kill($me, SIGUSR1)) exit; }";
        $this->sender = pcntl_fork();
        if ($this->sender === 0) {
            pcntl_exec(PHP_BINARY, ['-r', $code]);
            posix_kill((int) getmypid(), 9);
        }
    }
}
