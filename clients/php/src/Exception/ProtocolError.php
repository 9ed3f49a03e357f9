<?php

declare(strict_types=1);

namespace Locksidecar\Exception;

/** The answer is not from a locksidecar. Something else listens on the socket. */
class ProtocolError extends LocksidecarException
{
}
