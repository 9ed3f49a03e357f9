package redis

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"strings"

	goredis "github.com/redis/go-redis/v9"
)

//go:embed functions.lua
var source string

// version names this version of the functions, so that sidecars of different versions share a server.
var version = func() string {
	sum := sha256.Sum256([]byte(source))
	return hex.EncodeToString(sum[:4])
}()

var library = "#!lua name=locksidecar_" + version + "\n" + strings.ReplaceAll(source, "VERSION", version)

func function(name string) string { return "locksidecar_" + name + "_" + version }

// loadLibrary loads the functions on each server that takes writes. A server that already has them is no error.
func (b *Backend) loadLibrary(ctx context.Context) error {
	return b.each(ctx, func(ctx context.Context, c goredis.Cmdable) error {
		err := c.FunctionLoad(ctx, library).Err()
		if err != nil && strings.Contains(err.Error(), "already exists") {
			return nil
		}
		return err
	})
}
