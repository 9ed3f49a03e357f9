package etcd_test

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/cas"
	"github.com/locksidecar/locksidecar/store/etcd"
	pb "github.com/locksidecar/locksidecar/store/etcd/internal/etcdpb"
)

const wireFloor = 1 << 40

// compares are the conditions of a swap, and does what it does, as objects of the library.
func compares(s *cas.Swap) []*pb.Compare {
	all := []*pb.Compare{{Target: pb.Compare_MOD, Key: []byte("/p/k/" + s.Key), To: &pb.Compare_ModRevision{ModRevision: s.Version}}}
	for _, id := range s.Living {
		all = append(all, &pb.Compare{Is: pb.Compare_GREATER, Target: pb.Compare_CREATE, Key: []byte("/p/l/" + id.String()), To: &pb.Compare_CreateRevision{}})
	}
	return all
}

func does(s *cas.Swap) []*pb.Op {
	put := func(key string, value []byte) *pb.Op {
		return &pb.Op{Request: &pb.Op_Put{Put: &pb.Put{Key: []byte(key), Value: value}}}
	}
	var all []*pb.Op
	if s.Delete {
		all = append(all, &pb.Op{Request: &pb.Op_Delete{Delete: &pb.Delete{Key: []byte("/p/k/" + s.Key)}}})
	} else {
		value := binary.AppendUvarint(binary.AppendUvarint([]byte{2}, wireFloor), uint64(len(s.Leases)))
		for _, id := range s.Leases {
			value = append(value, id[:]...)
		}
		all = append(all, put("/p/k/"+s.Key, append(value, s.Data...)))
	}
	for _, l := range s.Letters {
		all = append(all, put("/p/m/"+l.To+"/"+l.Key, append(binary.AppendUvarint(nil, wireFloor), l.Body...)))
	}
	return all
}

func alone(s *cas.Swap) *pb.Txn {
	read := &pb.Op{Request: &pb.Op_Range{Range: &pb.Range{Key: []byte("/p/k/" + s.Key)}}}
	return &pb.Txn{Compare: compares(s), Success: does(s), Failure: []*pb.Op{read}}
}

// TestTransactionsAreThoseOfTheLibrary: a transaction that is written byte by byte is read as it was meant.
func TestTransactionsAreThoseOfTheLibrary(t *testing.T) {
	b, err := etcd.NewServer(etcd.Config{URL: "etcd://127.0.0.1:1/p"})
	if err != nil {
		t.Fatal(err)
	}
	ids := []store.LeaseID{uuid.New(), uuid.New(), uuid.New()}
	var swaps []cas.Swap
	for i, size := range []int{0, 1, 100, 127, 128, 300, 20_000, 100_000} {
		swaps = append(swaps,
			cas.Swap{Key: fmt.Sprint("k", size), Data: make([]byte, size), Version: 1 << (8 * i) >> 1, Leases: ids[:i%3], Living: ids[i%2 : i%3+i%2]},
			cas.Swap{Key: "letters", Version: 7, Letters: []cas.Letter{{To: "j", Key: "x", Body: make([]byte, size)}, {To: "m", Key: "y"}}, Living: ids[2:]},
			cas.Swap{Key: "gone", Version: 1, Delete: true})
	}
	one, nested, joined := b.Transactions(wireFloor, swaps)
	all, each := &pb.Txn{}, &pb.Txn{}
	for i := range swaps {
		s := &swaps[i]
		same(t, fmt.Sprint("swap ", i), one[i], alone(s))
		for _, c := range compares(s) {
			if !slices.ContainsFunc(all.Compare, func(known *pb.Compare) bool { return c.Target == pb.Compare_CREATE && proto.Equal(known, c) }) {
				all.Compare = append(all.Compare, c)
			}
		}
		all.Success = append(all.Success, does(s)...)
		each.Success = append(each.Success, &pb.Op{Request: &pb.Op_Txn{Txn: alone(s)}})
	}
	same(t, "nested", nested, each)
	same(t, "joined", joined, all)
}

func same(t *testing.T, what string, request []byte, want *pb.Txn) {
	t.Helper()
	got := &pb.Txn{}
	if err := proto.Unmarshal(request, got); err != nil || !proto.Equal(got, want) {
		t.Errorf("%s: %v\n%.300s\n%.300s", what, err, got, want)
	}
}

// TestTransactionsAreWithinEtcdsLimit: etcd refuses one with more than 128 conditions or operations.
func TestTransactionsAreWithinEtcdsLimit(t *testing.T) {
	b, err := etcd.NewServer(etcd.Config{URL: "etcd://127.0.0.1:1/p"})
	if err != nil {
		t.Fatal(err)
	}
	swaps := make([]cas.Swap, 64)
	for i := range swaps {
		swaps[i] = cas.Swap{Key: fmt.Sprint(i), Living: []store.LeaseID{uuid.New()}, Letters: []cas.Letter{{To: "j"}}}
	}
	for _, more := range []bool{false, true} {
		if more {
			swaps[0].Living = append(swaps[0].Living, uuid.New())
		}
		if _, _, joined := b.Transactions(0, swaps); (joined == nil) != more {
			t.Errorf("129 conditions: %t, joined: %t", more, joined != nil)
		}
	}
	swaps[0].Living, swaps[0].Letters = nil, []cas.Letter{{To: "j"}, {To: "m"}}
	if _, _, joined := b.Transactions(0, swaps); joined != nil {
		t.Error("129 operations are joined")
	}
}

// TestAnswersToTransactionsAreRead: the answers of operations are read if they are needed, after a failure always.
func TestAnswersToTransactionsAreRead(t *testing.T) {
	found := &pb.Result{Response: &pb.Result_Range{Range: &pb.Ranged{Kvs: []*pb.KeyValue{{Key: []byte("k"), ModRevision: 3}}}}}
	for _, succeeded := range []bool{true, false} {
		for _, whole := range []bool{true, false} {
			answer, err := proto.Marshal(&pb.Done{Header: &pb.Header{MemberId: 1 << 63, Revision: 1 << 40}, Succeeded: succeeded, Responses: []*pb.Result{found}})
			if err != nil {
				t.Fatal(err)
			}
			is, revision, responses, err := etcd.ReadDone(answer, whole)
			if err != nil || is != succeeded || revision != 1<<40 {
				t.Errorf("read %t, revision %d: %v", is, revision, err)
			}
			if needed := whole || !succeeded; needed && (len(responses) != 1 || !proto.Equal(responses[0], found)) {
				t.Errorf("succeeded %t, whole %t: responses %v", succeeded, whole, responses)
			}
			for n := range answer {
				_, _, _, _ = etcd.ReadDone(answer[:n], whole) // does not panic
			}
		}
	}
}

// TestAnswersAreReadAsByTheLibrary: a field with the number of another one, but of another type, is not that one.
func TestAnswersAreReadAsByTheLibrary(t *testing.T) {
	for name, answer := range map[string]string{
		"a header in the place of the success": "\x12\x03\x18\xd3\x66\x10\x01",
		"a success in the place of a header":   "\x0a\x02\x18\x64\x08\x01",
		"a text for a revision":                "\x0a\x03\x1a\x01\x07\x10\x01",
	} {
		want := &pb.Done{}
		if err := proto.Unmarshal([]byte(answer), want); err != nil {
			t.Fatal(err)
		}
		is, revision, _, err := etcd.ReadDone([]byte(answer), true)
		if err != nil || is != want.Succeeded || revision != want.GetHeader().GetRevision() {
			t.Errorf("%s: succeeded %t, revision %d, %v, want %v", name, is, revision, err, want)
		}
	}
}
