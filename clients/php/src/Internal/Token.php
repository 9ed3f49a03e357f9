<?php

declare(strict_types=1);

namespace Locksidecar\Internal;

use Locksidecar\Exception\InvalidRequest;

/**
 * A file whose first line is the token. It may be replaced while it is used.
 *
 * @internal
 */
final class Token
{
    /** The least seconds between two reads. */
    private const PAUSE = 1.0;
    private const MOST = 512; // characters

    /** No dump and no trace shows it. */
    private ?\SensitiveParameterValue $token = null;
    private float $looked = -INF;

    public function __construct(private readonly Setting $file)
    {
    }

    /** The token. An error contains nothing of the file. */
    public function read(): string
    {
        if ($this->token === null || Clock::now() - $this->looked >= self::PAUSE) {
            $this->looked = Clock::now();
            try {
                $this->token = $this->firstLine();
            } catch (InvalidRequest $e) {
                if ($this->token === null) { // else a file that is away for a moment changes nothing
                    throw $e;
                }
            }
        }

        return $this->token->getValue();
    }

    private function firstLine(): \SensitiveParameterValue
    {
        $text = Quiet::call(fn (): string|false => file_get_contents($this->file->value, false, null, 0, self::MOST + 2));
        if ($text === false) {
            throw $this->wrong('cannot be read: ' . preg_replace('/^.*: /', '', Quiet::$warning));
        }
        $line = trim(explode("\n", $text, 2)[0]);
        if (preg_match('/\A[!-~]{1,' . self::MOST . '}\z/', $line) !== 1) {
            throw $this->wrong('the first line of this file is no token: it has up to ' . self::MOST . ' printable characters and no space');
        }

        return new \SensitiveParameterValue($line);
    }

    private function wrong(string $what): InvalidRequest
    {
        return Problem::invalid("{$this->file->name} is " . Check::show($this->file->value) . ", and $what");
    }
}
