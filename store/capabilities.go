package store

import (
	"context"
	"fmt"
	"time"
)

// As returns a store's capability, or an [UnsupportedError] with its name.
func As[Capability any](s Store, name string) (Capability, error) {
	c, ok := s.(Capability)
	if !ok {
		return c, &UnsupportedError{Capability: name}
	}
	return c, nil
}

// Details returns what a store tells operators about its server, or nil: see [Described].
func Details(s Store) map[string]string {
	if d, ok := s.(Described); ok {
		return d.Details()
	}
	return nil
}

// UnsupportedError says that the engine lacks a capability.
type UnsupportedError struct {
	// Capability is its name, or the name of an operation.
	Capability string
	// Why is the whole text if the reason is not the engine but its configuration.
	Why string
}

func (e *UnsupportedError) Error() string {
	if e.Why != "" {
		return e.Why
	}
	return "this store does not support " + e.Capability
}

// LargestToken is the largest token. JSON readers represent greater integers inexactly.
const LargestToken = 1<<53 - 1

// largestFirst is the largest token at which tokens may begin. It leaves as many for later grants.
const largestFirst = LargestToken / 2

// CheckRaise returns an error if tokens cannot begin at first, because too few would be left.
func CheckRaise(first int64) error {
	if first > largestFirst {
		return &Error{Op: "RaiseTokens", Err: fmt.Errorf("tokens cannot begin at %d: at most at %d, because the largest one is %d", first, int64(largestFirst), int64(LargestToken))}
	}
	return nil
}

// Tokens is an engine that can take another one's place: its tokens can go on where those of the other ended.
type Tokens interface {
	// NextToken returns a number above every token that was granted or reserved so far, in all namespaces. Later grants
	// may reach it, so it is asked for when nobody holds a lock any more. It fails during a quiet time.
	NextToken(ctx context.Context) (int64, error)
	// RaiseTokens makes the token of each grant that begins later at least first. It is called while nobody holds or awaits
	// a lock here, because a sidecar that does so may still grant tokens that it has reserved. An engine may refuse it then.
	// It refuses more than half of [LargestToken].
	RaiseTokens(ctx context.Context, first int64) error
}

// Described is an engine that tells operators how its server keeps what it grants.
type Described interface {
	// Details are facts about the server, by their names, such as its version and whether grants reach a disk. They contain
	// neither hosts nor users. They are empty until a server was reached.
	Details() map[string]string
}

// Elsewhere is an engine that can show the locks of other namespaces: List and Waiting with a Namespace. No other engine gets such a query.
type Elsewhere interface {
	// MayShowNamespaces is nil if it shows them to this sidecar; otherwise the error says why not.
	MayShowNamespaces() error
}

// Quieter is an engine that grants nothing for a while after it may have forgotten grants: see [Quiet].
type Quieter interface {
	// Quiet is the rest of the quiet time as far as this instance knows, or 0. Of several servers, the longest counts, and
	// others may grant meanwhile. It does not ask a server.
	Quiet() time.Duration
}

// QuietFor is the rest of a store's quiet time, or 0: see [Quieter].
func QuietFor(s Store) time.Duration {
	if q, ok := s.(Quieter); ok {
		return q.Quiet()
	}
	return 0
}

// Listener is an engine for which receiving news has a cost, for instance a connection.
type Listener interface {
	// Listen says whether news are needed: a call waits here, a key is watched, keys are kept so often that it pays, or an app would be told of a signal at once. It
	// does not block. A later Watch, or ask that waits, takes effect only when the engine receives news, if it can. When the engine
	// begins to receive news, and when it ends, it reports that some may have been missed (see [EveryWait]). Without news, signals are
	// reported by Renew.
	Listen(on bool)
}

// Keeper is an engine that learns of a Recall as soon as [Traits].Hears says only while it knows that keys are kept here, unless it HearsAlways.
type Keeper interface {
	// Keeping says whether this instance has Keepable grants, or soon will have. It does not block. Traits.Hears may be false until the engine
	// has reacted to it.
	Keeping(on bool)
}

// Joiner is an engine that can acquire and release with the same requests, for less than two operations cost.
type Joiner interface {
	// AcquireAndRelease is Acquire and Release, with the error of each. If a key is in both, the release comes first.
	AcquireAndRelease(ctx context.Context, asks []Ask, claims []Claim) (answers []Answer, acquireErr error, verdicts []Verdict, releaseErr error)
}

// Immediate is an engine with the Trait Inline. Its most frequent operations also exist for a single item,
// without slices.
type Immediate interface {
	AcquireOne(ctx context.Context, ask Ask) (Answer, error)
	ReleaseOne(ctx context.Context, claim Claim) (Verdict, error)
}
