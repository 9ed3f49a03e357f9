package etcd

import (
	"context"
	"encoding/binary"
	"errors"

	"google.golang.org/protobuf/proto"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/cas"
	pb "github.com/locksidecar/locksidecar/store/etcd/internal/etcdpb"
)

// floor is added to the tokens that revisions give, because another store may have granted greater ones before. Its key is written
// only while no lease lives. An instance reads the key when it opens leases, and grants nothing without them. A record has the
// floor with which it was written, and each of its readers uses that one at least. So the tokens of a key never go back.
type floor struct{ cas.Highest }

// read raises the floor to what was found at its key.
func (f *floor) read(found []*pb.KeyValue) error {
	if len(found) == 0 {
		return nil
	}
	at, rest, ok := cutFloor(found[0].Value)
	if !ok || len(rest) > 0 {
		return errFormat
	}
	f.Raise(at)
	return nil
}

var errInUse = errors.New("a sidecar has leases here, or had some a moment ago: stop all sidecars that use this store, and try again")

// NextToken implements [cas.Backend].
func (b *Server) NextToken(ctx context.Context) (int64, error) {
	_, err := b.readFloor(ctx)
	return base(b.floor.Load(), b.newest.Load()+1), err
}

// readFloor raises the floor to that of its key, and returns the key's ModRevision; zero: there is none.
func (b *Server) readFloor(ctx context.Context) (revision int64, err error) {
	found, err := b.read(ctx, "floor", []*pb.Op{get(b.layout.floor)})
	if err != nil {
		return 0, err
	}
	if len(found[0].Kvs) > 0 {
		revision = found[0].Kvs[0].ModRevision
	}
	return revision, b.floor.read(found[0].Kvs)
}

// RaiseTokens implements [cas.Backend].
func (b *Server) RaiseTokens(ctx context.Context, first int64) error {
	revision, err := b.readFloor(ctx)
	if err != nil {
		return cas.Failed("raise", err, false)
	}
	first = max(first, b.floor.Load())
	txn := &pb.Txn{
		Compare: []*pb.Compare{unchanged(b.layout.floor, revision), none(b.leases)},
		Success: []*pb.Op{put(b.layout.floor, binary.AppendUvarint(nil, uint64(first)), 0)},
	}
	request, err := proto.Marshal(txn)
	if err != nil {
		return cas.Failed("raise", err, false)
	}
	answer, err := b.send(ctx, request, false)
	if err == nil && !answer.succeeded {
		err = &store.Error{Op: "raise", Err: errInUse}
	}
	if err == nil {
		b.floor.Raise(first)
	}
	return err
}
