package etcd

import (
	"encoding/binary"
	"errors"
	"net/url"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/cas"
	pb "github.com/locksidecar/locksidecar/store/etcd/internal/etcdpb"
)

// layout makes the names of etcd's keys: see the package's documentation.
type layout struct{ records, leases, opened, letters, mailbox string }

func newLayout(prefix, instance string) layout {
	l := layout{records: prefix + "k/", leases: prefix + "l/", opened: prefix + "o/", letters: prefix + "m/"}
	l.mailbox = l.letter(instance, "")
	return l
}

func (l layout) lease(id store.LeaseID) string { return l.leases + id.String() }

func (l layout) openedBy(instance string) string { return l.opened + url.PathEscape(instance) + "/" }

func (l layout) letter(to, key string) string { return l.letters + url.PathEscape(to) + "/" + key }

// etcdLease is the number of a lease in etcd. A client may choose it, but not zero.
func etcdLease(id store.LeaseID) int64 {
	return max(1, int64(binary.BigEndian.Uint64(id[:8])&^(1<<63)))
}

// format is the first byte of a record's value.
const format = 1

var errFormat = errors.New("a record in etcd has an unknown format: another program has written it, or a newer sidecar")

// encode makes a record's value: the format, the number of leases, their ids, and the data.
func encode(leases []store.LeaseID, data []byte) []byte {
	value := binary.AppendUvarint([]byte{format}, uint64(len(leases)))
	for _, id := range leases {
		value = append(value, id[:]...)
	}
	return append(value, data...)
}

// decode reads the record of a key from what a Get found.
func decode(key string, found []*pb.KeyValue) (cas.Record, error) {
	if len(found) == 0 {
		return cas.Record{Key: key}, nil
	}
	return Record(key, found[0].Value, found[0].ModRevision)
}

// Record reads a record from its value in etcd, and the value's ModRevision. It is also for tools that look at a server.
func Record(key string, value []byte, revision int64) (cas.Record, error) {
	r := cas.Record{Key: key}
	if len(value) == 0 || value[0] != format {
		return r, errFormat
	}
	count, size := binary.Uvarint(value[1:])
	if size <= 0 || count > uint64(len(value)-1-size)/uint64(len(uuid.UUID{})) {
		return r, errFormat
	}
	value = value[1+size:]
	for range count {
		r.Leases = append(r.Leases, store.LeaseID(value[:16]))
		value = value[16:]
	}
	r.Version, r.Base, r.Tokens, r.Data = revision, base(revision), cas.TokensPerSwap, value
	return r, nil
}

func base(revision int64) int64 { return revision * cas.TokensPerSwap }
