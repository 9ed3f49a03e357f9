package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"github.com/locksidecar/locksidecar/store"
)

var (
	errNotReached = errors.New("etcd has not been reached yet")
	errAnswer     = errors.New("etcd gave an answer that is not understood")
	errTooLarge   = errors.New("the record has more leases, or its change more letters, than a transaction of etcd may have operations")
)

// classify makes a store's error. sent is whether a request that may change something has left this process.
func classify(op string, err error, sent bool) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*store.Error](err); ok {
		return err
	}
	return &store.Error{Op: op, Err: explain(err), Unknown: sent && unknown(err)}
}

// unknown reports whether etcd may have carried out a request that failed with this error. It refuses some requests
// before it carries them out. All other errors may have come later. So may a refusal for the quota: of a swap see decide. A lease
// that was opened without an answer only ends unused.
func unknown(err error) bool {
	refused := []codes.Code{
		codes.InvalidArgument, codes.FailedPrecondition, codes.PermissionDenied, codes.Unauthenticated,
		codes.NotFound, codes.ResourceExhausted, codes.OutOfRange,
	}
	return !slices.Contains(refused, status.Code(err)) && !says(err, textNoLeader) // a server without a leader carries out nothing
}

// Errors of etcd that are told apart by their text, as etcd's own client does.
const (
	textNoLeader    = "etcdserver: no leader"
	textLeaseExists = "etcdserver: lease already exists"
	textNoSpace     = "etcdserver: mvcc: database space exceeded"
	textNoUser      = "etcdserver: user name is empty"
	textNotLetIn    = "etcdserver: authentication failed, invalid user ID or password"
	textNoRight     = "etcdserver: permission denied"
	textOldLogin    = "etcdserver: revision of auth store is old"
	textCompacted   = "etcdserver: mvcc: required revision has been compacted"
)

func says(err error, text string) bool {
	answer, ok := errors.AsType[interface {
		error
		GRPCStatus() *status.Status
	}](err)
	return ok && answer.GRPCStatus().Message() == text
}

// naming names the user and the keys for which a right is missing, which etcd does not.
func (b *Server) naming(err error) error {
	if says(err, textNoRight) {
		return fmt.Errorf("the user %q of the store's URL lacks a right: a role of this user needs the permission readwrite for the prefix %s: %w",
			b.target.username, b.target.prefix, err)
	}
	return err
}

// explain says in words what an operator must do.
func explain(err error) error {
	switch {
	case says(err, textNoSpace):
		return fmt.Errorf("etcd's database has reached its quota (alarm NOSPACE), so nothing new is granted; "+
			"compact and defragment it, or raise --quota-backend-bytes, then run `etcdctl alarm disarm`: %w", err)
	case notLetIn(err) && !says(err, textNoRight):
		return fmt.Errorf("etcd refuses the user of the store's URL: %w", err)
	}
	return err
}

func notLetIn(err error) bool {
	code := status.Code(err)
	return code == codes.PermissionDenied || code == codes.Unauthenticated || says(err, textNoUser) || says(err, textNotLetIn)
}

// needsLogin reports whether a request was refused because its token is missing, has expired, or is older than a change of the
// users. Nothing was done.
func needsLogin(err error) bool {
	return status.Code(err) == codes.Unauthenticated || says(err, textNoUser) || says(err, textOldLogin)
}

type sentKey struct{}

// noteSent returns a context whose requests set the flag when they leave this process.
func noteSent(ctx context.Context) (context.Context, *atomic.Bool) {
	sent := new(atomic.Bool)
	return context.WithValue(ctx, sentKey{}, sent), sent
}

// sendNoter sets the flag of noteSent. A request that waited in vain for a connection never sets it.
type sendNoter struct{}

func (sendNoter) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

func (sendNoter) HandleRPC(ctx context.Context, s stats.RPCStats) {
	if _, ok := s.(*stats.OutHeader); !ok {
		return
	}
	if sent, ok := ctx.Value(sentKey{}).(*atomic.Bool); ok {
		sent.Store(true)
	}
}

func (sendNoter) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

func (sendNoter) HandleConn(context.Context, stats.ConnStats) {}
