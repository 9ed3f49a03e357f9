package etcd

import (
	"encoding/binary"
	"fmt"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/locksidecar/locksidecar/store"
	pb "github.com/locksidecar/locksidecar/store/etcd/internal/etcdpb"
)

// wire is a transaction of swaps in protobuf. Swaps are most of what a sidecar sends, and objects for each condition and operation
// would be a third of all that it allocates. Each method adds to a repeated field, whose elements keep their order.
type wire []byte

// Fields of a transaction, and of the messages in it: see etcd.proto.
const (
	txnCompare, txnSuccess, txnFailure        = 1, 2, 3
	opRange, opPut, opDelete, opTxn           = 1, 2, 3, 4
	compareIs, compareTarget, compareKey      = 1, 2, 3
	compareCreate, compareMod                 = 5, 6
	fieldKey, fieldValue                      = 1, 2
	doneHeader, doneSucceeded, headerRevision = 1, 2, 3
)

// sized is the size of a field of n bytes, whose number is below 16.
func sized(n int) int { return 1 + protowire.SizeBytes(n) }

func (w *wire) begin(field protowire.Number, n int) {
	*w = protowire.AppendVarint(protowire.AppendTag(*w, field, protowire.BytesType), uint64(n))
}

func (w *wire) number(field protowire.Number, n uint64) {
	*w = protowire.AppendVarint(protowire.AppendTag(*w, field, protowire.VarintType), n)
}

func (w *wire) text(field protowire.Number, s string) {
	w.begin(field, len(s))
	*w = append(*w, s...)
}

// unchanged: the key has this ModRevision; 0: it does not exist.
func (w *wire) unchanged(key string, revision int64) {
	w.begin(txnCompare, 2+sized(len(key))+1+protowire.SizeVarint(uint64(revision)))
	w.number(compareTarget, uint64(pb.Compare_MOD))
	w.text(compareKey, key)
	w.number(compareMod, uint64(revision))
}

func (w *wire) exists(key string) {
	w.begin(txnCompare, 4+sized(len(key))+2)
	w.number(compareIs, uint64(pb.Compare_GREATER))
	w.number(compareTarget, uint64(pb.Compare_CREATE))
	w.text(compareKey, key)
	w.number(compareCreate, 0)
}

// op begins an operation of the successful branch with a message of n bytes.
func (w *wire) op(kind protowire.Number, n int) {
	w.begin(txnSuccess, sized(n))
	w.begin(kind, n)
}

// record puts the record of a key: see encode.
func (w *wire) record(key string, floor int64, leases []store.LeaseID, data []byte) {
	n := 1 + protowire.SizeVarint(uint64(floor)) + protowire.SizeVarint(uint64(len(leases))) + 16*len(leases) + len(data)
	w.op(opPut, sized(len(key))+sized(n))
	w.text(fieldKey, key)
	w.begin(fieldValue, n)
	*w = encode(*w, floor, leases, data)
}

// letter puts a letter.
func (w *wire) letter(name string, floor int64, body []byte) {
	n := protowire.SizeVarint(uint64(floor)) + len(body)
	w.op(opPut, sized(len(name))+sized(n))
	w.text(fieldKey, name)
	w.begin(fieldValue, n)
	*w = append(binary.AppendUvarint(*w, uint64(floor)), body...)
}

func (w *wire) remove(key string) {
	w.op(opDelete, sized(len(key)))
	w.text(fieldKey, key)
}

// otherwise reads a key if a condition failed.
func (w *wire) otherwise(key string) {
	w.begin(txnFailure, sized(sized(len(key))))
	w.begin(opRange, sized(len(key)))
	w.text(fieldKey, key)
}

// nest adds a transaction as an operation.
func (w *wire) nest(txn wire) {
	w.op(opTxn, len(txn))
	*w = append(*w, txn...)
}

// done is the answer to a transaction of swaps. whole: the answers of its operations are needed, too, also if it succeeded.
type done struct {
	whole     bool
	succeeded bool
	revision  int64
	responses []*pb.Result
}

// read reads what is always needed, and the rest only if somebody needs it.
func (d *done) read(data []byte) error {
	for rest := data; len(rest) > 0; {
		field, kind, n := protowire.ConsumeTag(rest)
		if n < 0 {
			return protowire.ParseError(n)
		}
		rest = rest[n:]
		if field == doneSucceeded && kind == protowire.VarintType || field == doneHeader && kind == protowire.BytesType {
			if n = d.field(field, rest); n < 0 {
				return protowire.ParseError(n)
			}
		} else if n = protowire.ConsumeFieldValue(field, kind, rest); n < 0 {
			return protowire.ParseError(n)
		}
		rest = rest[n:]
	}
	if d.succeeded && !d.whole {
		return nil
	}
	answer := &pb.Done{}
	err := proto.Unmarshal(data, answer)
	d.responses = answer.GetResponses()
	return err
}

// field reads one of these fields, and returns its size; below zero: it cannot be read.
func (d *done) field(field protowire.Number, data []byte) int {
	if field == doneSucceeded {
		is, n := protowire.ConsumeVarint(data)
		d.succeeded = is != 0
		return n
	}
	header, size := protowire.ConsumeBytes(data)
	for size >= 0 && len(header) > 0 {
		of, kind, n := protowire.ConsumeTag(header)
		if n < 0 {
			return n
		}
		header = header[n:]
		if of == headerRevision && kind == protowire.VarintType {
			revision, _ := protowire.ConsumeVarint(header)
			d.revision = int64(revision)
		}
		if n = protowire.ConsumeFieldValue(of, kind, header); n < 0 {
			return n
		}
		header = header[n:]
	}
	return size
}

// wireCodec sends a wire and reads a done.
type wireCodec struct{}

func (wireCodec) Name() string { return "proto" }

func (wireCodec) Marshal(v any) (mem.BufferSlice, error) {
	w, ok := v.(wire)
	if !ok {
		return nil, fmt.Errorf("%T is no transaction of swaps", v)
	}
	return mem.BufferSlice{mem.SliceBuffer(w)}, nil
}

func (wireCodec) Unmarshal(data mem.BufferSlice, v any) error {
	d, ok := v.(*done)
	if !ok {
		return fmt.Errorf("%T is no answer to a transaction of swaps", v)
	}
	all := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer all.Free()
	return d.read(all.ReadOnlyData())
}
