<?php

declare(strict_types=1);

namespace Locksidecar\Exception;

/** The sidecar, or its store, cannot serve now: NoAnswer, Draining or StoreUnavailable. */
class Unavailable extends LocksidecarException
{
}
