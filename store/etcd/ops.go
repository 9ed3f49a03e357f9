package etcd

import (
	"github.com/locksidecar/locksidecar/store/cas"
	pb "github.com/locksidecar/locksidecar/store/etcd/internal/etcdpb"
)

func opGet(r *pb.Range) *pb.Op { return &pb.Op{Request: &pb.Op_Range{Range: r}} }

func get(key string) *pb.Op { return opGet(&pb.Range{Key: []byte(key)}) }

func getName(key string) *pb.Op { return opGet(&pb.Range{Key: []byte(key), KeysOnly: true}) }

func put(key string, value []byte, lease int64) *pb.Op {
	return &pb.Op{Request: &pb.Op_Put{Put: &pb.Put{Key: []byte(key), Value: value, Lease: lease}}}
}

func remove(key string) *pb.Op {
	return &pb.Op{Request: &pb.Op_Delete{Delete: &pb.Delete{Key: []byte(key)}}}
}

func removeAll(prefix string) *pb.Op {
	return &pb.Op{Request: &pb.Op_Delete{Delete: &pb.Delete{Key: []byte(prefix), RangeEnd: behind(prefix)}}}
}

// unchanged holds if a key has this ModRevision; 0: if it does not exist.
func unchanged(key string, revision int64) *pb.Compare {
	return &pb.Compare{Target: pb.Compare_MOD, Is: pb.Compare_EQUAL, Key: []byte(key), To: &pb.Compare_ModRevision{ModRevision: revision}}
}

// none holds if no key begins with a prefix.
func none(prefix string) *pb.Compare {
	c := unchanged(prefix, 0)
	c.RangeEnd = behind(prefix)
	return c
}

// behind ends the range of the keys that begin with a prefix. Every prefix of this package ends in a slash, or continues with a
// key's bytes, so there is such an end.
func behind(prefix string) []byte { return []byte(cas.Behind(prefix)) }
