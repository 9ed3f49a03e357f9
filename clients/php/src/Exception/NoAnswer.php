<?php

declare(strict_types=1);

namespace Locksidecar\Exception;

/**
 * The sidecar could not be reached, went away during the call, or did not answer in time.
 *
 * The outcome of the call is unknown. An acquire that throws it has withdrawn its grant.
 */
class NoAnswer extends Unavailable
{
}
