<?php

declare(strict_types=1);

namespace Locksidecar\Exception;

/** The request is wrong. The text names the field and the reason. */
class InvalidRequest extends LocksidecarException
{
}
