package campaign

import (
	_ "github.com/Shopify/toxiproxy/v2"
	_ "github.com/anishathalye/porcupine"
	_ "github.com/jackc/pgx/v5"
	_ "github.com/locksidecar/locksidecar/internal/pgtest"
	_ "go.uber.org/goleak"
	_ "pgregory.net/rapid"
)
