<?php

declare(strict_types=1);

namespace Locksidecar\Internal;

/**
 * The trace context of calls: that of the app's OpenTelemetry, or what the client was told.
 *
 * @internal
 */
final class Tracing
{
    /** The headers that the sidecar reads. */
    private const NAMES = ['traceparent', 'tracestate', 'baggage'];

    /** @param (\Closure(): array<string, string>)|null $context */
    public function __construct(private readonly ?\Closure $context)
    {
    }

    /** The header lines of the current context. Empty outside of a trace. */
    public function headers(): string
    {
        $lines = '';
        $carrier = array_change_key_case($this->context === null ? self::ofOpenTelemetry() : ($this->context)());
        foreach (self::NAMES as $name) {
            if (isset($carrier[$name]) && preg_match('/\A[\x20-\x7e]+\z/', $carrier[$name]) === 1) {
                $lines .= "$name: {$carrier[$name]}\r\n";
            }
        }

        return $lines;
    }

    /** @return array<string, string> */
    private static function ofOpenTelemetry(): array
    {
        $globals = 'OpenTelemetry\API\Globals';
        $carrier = [];
        if (class_exists($globals)) {
            $globals::propagator()->inject($carrier);
        }

        return $carrier;
    }
}
