<?php

declare(strict_types=1);

namespace Locksidecar\Exception;

/** The sidecar cannot reach its store. Nothing was granted, or the sidecar withdraws it. */
class StoreUnavailable extends Unavailable
{
}
