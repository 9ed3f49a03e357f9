<?php

declare(strict_types=1);

namespace Locksidecar\Internal;

use Locksidecar\Exception as E;

/**
 * Makes the errors of problem documents.
 *
 * @internal
 */
final class Problem
{
    private const BY_CODE = [
        'invalid_request' => E\InvalidRequest::class, 'forbidden' => E\Forbidden::class, 'unauthorized' => E\Forbidden::class, 'not_found' => E\NotFound::class,
        'not_held' => E\NotHeld::class, 'limit_mismatch' => E\LimitMismatch::class, 'not_holder' => E\NotHolder::class,
        'lock_lost' => E\LockLost::class, 'session_ended' => E\SessionEnded::class, 'too_large' => E\TooLarge::class,
        'held' => E\LockHeld::class, 'wait_timeout' => E\WaitTimeout::class, 'limit' => E\LimitReached::class,
        'store_unavailable' => E\StoreUnavailable::class, 'draining' => E\Draining::class, 'unsupported' => E\Unsupported::class,
    ];

    /** The API's names of durations, not inside a key. */
    private const IN_MS = '~(?<![\w:/."-])(wait|ttl|max_hold|min_hold)_ms\b~';

    /** That of a problem document; an unknown code is a LocksidecarException. */
    public static function error(mixed $problem, int $status, string $retryAfter = ''): E\LocksidecarException
    {
        $problem = \is_array($problem) ? $problem : [];
        if (ctype_digit($retryAfter)) {
            $problem['retry_after'] = (float) $retryAfter;
        }
        $code = (string) ($problem['code'] ?? "http_$status");
        $detail = $problem['detail'] ?? $problem['title'] ?? "the sidecar answered with status $status";
        $names = ['max_hold' => 'maxHold', 'min_hold' => 'minHold'];
        $detail = preg_replace_callback(self::IN_MS, static fn (array $m): string => ($names[$m[1]] ?? $m[1]) . ' (in ms)', $detail);
        $class = self::BY_CODE[$code] ?? E\LocksidecarException::class;

        return new $class("$detail ($code)", $code, $status, $problem);
    }

    public static function lost(string $key, string $reason): E\LockLost
    {
        $problem = ['code' => 'lock_lost', 'detail' => 'lock ' . Check::show($key) . " is lost, reason: $reason", 'reason' => $reason, 'key' => $key];

        return new E\LockLost("{$problem['detail']} (lock_lost)", 'lock_lost', 410, $problem);
    }

    public static function invalid(string $detail): E\InvalidRequest
    {
        return new E\InvalidRequest("$detail (invalid_request)", 'invalid_request', 400, ['detail' => $detail]);
    }

    public static function notLocksidecar(string $what): E\ProtocolError
    {
        return new E\ProtocolError("$what: is this the socket of a locksidecar?", 'bad_answer');
    }
}
