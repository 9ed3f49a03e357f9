package etcd

import (
	"encoding/binary"
	"errors"
	"math"
	"net/url"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/cas"
	pb "github.com/locksidecar/locksidecar/store/etcd/internal/etcdpb"
)

// layout makes the names of etcd's keys: see the package's documentation.
type layout struct{ records, leases, opened, letters, floor string }

func newLayout(prefix string) layout {
	return layout{records: prefix + "k/", leases: prefix + "l/", opened: prefix + "o/", letters: prefix + "m/", floor: prefix + "floor"}
}

func (l layout) lease(id store.LeaseID) string { return l.leases + id.String() }

func (l layout) openedBy(instance string) string { return l.opened + url.PathEscape(instance) + "/" }

func (l layout) letter(to, key string) string { return l.letters + url.PathEscape(to) + "/" + key }

// etcdLease is the number of a lease in etcd. A client may choose it, but not zero.
func etcdLease(id store.LeaseID) int64 {
	return max(1, int64(binary.BigEndian.Uint64(id[:8])&^(1<<63)))
}

// format is the first byte of a record's value.
const format = 2

var errFormat = errors.New("a record in etcd has an unknown format: another program has written it, or a newer sidecar")

// encode adds a record's value: the format, the floor of its tokens, the number of leases, their ids, and the data.
func encode(to []byte, floor int64, leases []store.LeaseID, data []byte) []byte {
	to = binary.AppendUvarint(append(to, format), uint64(floor))
	to = binary.AppendUvarint(to, uint64(len(leases)))
	for i := range leases {
		to = append(to, leases[i][:]...)
	}
	return append(to, data...)
}

// decode reads the record of a key from what a Get found. Whoever changes the record later uses at least its floor.
func (b *Server) decode(key string, found []*pb.KeyValue) (cas.Record, error) {
	if len(found) == 0 {
		return cas.Record{Key: key}, nil
	}
	r, floor, err := record(key, found[0].Value, found[0].ModRevision)
	b.floor.Raise(floor)
	return r, err
}

// Record reads a record from its value in etcd, and the value's ModRevision. It is for tools that look at a server.
func Record(key string, value []byte, revision int64) (cas.Record, error) {
	r, _, err := record(key, value, revision)
	return r, err
}

func record(key string, value []byte, revision int64) (r cas.Record, floor int64, err error) {
	r = cas.Record{Key: key}
	if len(value) == 0 || value[0] != format {
		return r, 0, errFormat
	}
	floor, value, ok := cutFloor(value[1:])
	count, size := binary.Uvarint(value)
	if !ok || size <= 0 || count > uint64(len(value)-size)/uint64(len(uuid.UUID{})) {
		return r, 0, errFormat
	}
	value = value[size:]
	for range count {
		r.Leases = append(r.Leases, store.LeaseID(value[:16]))
		value = value[16:]
	}
	r.Version, r.Base, r.Tokens, r.Data = revision, base(floor, revision), cas.TokensPerSwap, value
	return r, floor, nil
}

// cutFloor reads the floor with which records and letters begin.
func cutFloor(value []byte) (floor int64, rest []byte, ok bool) {
	read, size := binary.Uvarint(value)
	if size <= 0 || read > math.MaxInt64 {
		return 0, nil, false
	}
	return int64(read), value[size:], true
}

func base(floor, revision int64) int64 { return floor + revision*cas.TokensPerSwap }
