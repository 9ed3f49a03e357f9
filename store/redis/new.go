package redis

import (
	"context"
	"errors"
	"fmt"

	goredis "github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/store/cas"
)

// Why a server is not new.
var (
	errUsed     = errors.New("sidecars have used it already, so it is not new; it has a quiet time only if it may have forgotten grants")
	errDataLost = errors.New("it was used before and has lost its data, so sidecars may still believe in its locks: the quiet time must pass")
	errPromoted = errors.New("it was a replica before, so its primary may have granted locks that it does not know: the quiet time must pass")
	errListened = errors.New("sidecars are connected, which may believe in locks that it has forgotten: stop them a TTL before, or let the quiet time pass")
	errNotNew   = errors.New("the server's answer is not understood")
)

var notNew = map[string]error{"used": errUsed, "lost": errDataLost, "promoted": errPromoted}

// MarkNew marks a server, or the servers of a cluster, as new: it has no quiet time at its first use. An empty server that is new looks like one
// that has restarted without its data, so only an operator can know that no sidecar has used it. Whatever speaks against that is an
// error, and changes nothing. If a sidecar that knows the lost data comes later, the quiet time begins nevertheless, but locks may have been
// granted before.
func MarkNew(ctx context.Context, url string) error {
	b, err := NewServer(Config{ServerConfig: cas.ServerConfig{URL: url}})
	if err != nil {
		return err
	}
	defer func() { _ = b.client.Close() }()
	ctx, cancel := context.WithTimeout(ctx, b.config.Timeout)
	defer cancel()
	if err := b.check(ctx); err != nil {
		return err
	}
	if err := b.loadLibrary(ctx); err != nil {
		return explained(err)
	}
	err = b.each(ctx, func(ctx context.Context, c goredis.Cmdable) error {
		listeners, err := c.PubSubChannels(ctx, KeyPrefix+"*").Result()
		if err == nil && len(listeners) > 0 {
			err = errListened
		}
		return explained(err)
	})
	for _, step := range []string{"check", "mark"} { // all partitions are checked before one is marked
		for part := range b.parts {
			if err == nil {
				err = b.fresh(ctx, part, step)
			}
		}
	}
	return err
}

// fresh checks or marks a partition.
func (b *Server) fresh(ctx context.Context, part int, step string) error {
	answer, err := b.once(ctx, []any{"fcall", function("fresh"), 2, b.parts[part].meta, b.parts[part].absent, step})
	if err != nil {
		return explained(err)
	}
	said := fmt.Sprint(answer...)
	if said == "new" {
		return nil
	}
	if why := notNew[said]; why != nil {
		return why
	}
	return errNotNew
}

// IsNotNew reports whether MarkNew has refused a server, because it may be used.
func IsNotNew(err error) bool {
	for _, why := range []error{errUsed, errDataLost, errPromoted, errListened} {
		if errors.Is(err, why) {
			return true
		}
	}
	return false
}

// CannotReach reports whether an error of MarkNew is one of the connection.
func CannotReach(err error) bool {
	_, refused := refusal(err)
	var answer goredis.Error
	return err != nil && !IsNotNew(err) && !refused && !errors.As(err, &answer)
}
