package cas

import (
	"errors"
	"fmt"
	"time"

	"github.com/fxamacker/cbor/v2"

	"github.com/locksidecar/locksidecar/store/key"
)

// recordFormat is the first byte of an encoded record. A sidecar that does not know a format does not touch the key.
const recordFormat = 1

// Only the swap reserves tokens, so nobody knows them before. A new token has three forms:
//
//   - While the machine runs it is provisional: provisional + n. That is above all tokens, so the machine may compare.
//   - What is written, records and letters, has an offset: -1 - n. Its reader adds the Base that is beside it.
//   - Answers, news and remembered records have the token itself, Base + n.
//
// Tokens of earlier swaps are the same in all forms.

// provisional is the first token of a swap while the machine runs.
const provisional = 1 << 60

// complete makes a provisional token the token itself.
func complete(token *int64, base int64) {
	if *token >= provisional {
		*token += base - provisional
	}
}

// offset is a provisional token as it is written.
func offset(token int64) int64 {
	if token >= provisional {
		return provisional - token - 1
	}
	return token
}

// absolute is the token that was written so.
func absolute(token, base int64) int64 {
	if token < 0 {
		return base - token - 1
	}
	return token
}

var (
	encoding = must(cbor.EncOptions{Time: cbor.TimeRFC3339NanoUTC}.EncMode())
	decoding = must(cbor.DecOptions{MaxArrayElements: 1 << 16, MaxMapPairs: 64, MaxNestedLevels: 8, IndefLength: cbor.IndefLengthForbidden}.DecMode())

	errFormat  = errors.New("its format is unknown: a newer sidecar may have written it")
	errNumbers = errors.New("it is damaged: it names what it does not contain")
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func marshal(v any) []byte { return must(encoding.Marshal(v)) }

// latest is the last moment that a record can contain: its text has a year of four digits.
var latest = time.Date(9999, time.December, 31, 23, 59, 59, 0, time.UTC)

// writable is a time of this machine's clock as a record can contain it. A record that cannot be read would stall its key.
func writable(t time.Time) time.Time {
	if t.After(latest) {
		return latest
	}
	return t
}

// useOffsets changes the provisional tokens of a record into offsets.
func useOffsets(rec *key.Record) { tokens(rec, func(t *int64) { *t = offset(*t) }) }

// encode returns the data of a record without provisional tokens.
func encode(rec *key.Record) []byte {
	e := encoder{to: append(make([]byte, 0, usualRecord), recordFormat)}
	e.record(rec)
	return e.to
}

// Decode reads the data of a record that exists. It is also for tools that look at a server.
func Decode(r *Record) (*key.Record, error) {
	rec := &key.Record{}
	err := errFormat
	if len(r.Data) > 0 && r.Data[0] == recordFormat {
		if err = decoding.Unmarshal(r.Data[1:], rec); err == nil {
			tokens(rec, func(t *int64) { *t = absolute(*t, r.Base) })
			err = check(rec)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("the record of key %q cannot be read: %w", r.Key, err)
	}
	return rec, nil
}

// tokens visits the tokens of a record.
func tokens(rec *key.Record, each func(*int64)) {
	each(&rec.Holder.Token)
	for i := range rec.Shares {
		each(&rec.Shares[i].Token)
	}
	for i := range rec.Signals {
		each(&rec.Signals[i].Signal.Token)
	}
}

// check reports numbers that name nothing, because the machine relies on them.
func check(rec *key.Record) error {
	ok := true
	lease := func(n, least int) { ok = ok && n >= least && n <= len(rec.Leases) }
	by := func(n, least int) { ok = ok && n >= least && n <= len(rec.Instances) }
	for _, l := range rec.Leases {
		by(l.By, 0)
	}
	holder := func(h *key.RecordHolder, needs int) {
		lease(h.Lease, key.Ended)
		lease(h.Hold, 0)
		if h.Lease > 0 || h.Hold > 0 {
			needs = 1
		}
		by(h.By, needs)
		ok = ok && h.Slot >= 0
	}
	holder(&rec.Holder, 0)
	for i := range rec.Shares {
		holder(&rec.Shares[i], 1)
		ok = ok && rec.Shares[i].Lease != 0 && (i == 0 || rec.Shares[i-1].Token < rec.Shares[i].Token)
	}
	ok = ok && (rec.Holder.Lease != 0 || rec.Holder.Token == 0 || rec.Holder.Released)
	ok = ok && (len(rec.Waiters) == 0 || len(rec.Shares) > 0 || rec.Holder.By > 0 && rec.Holder.Lease != 0) // waiters wait for a holder
	for _, of := range [][]key.RecordWaiter{rec.Waiters, rec.Skipped} {
		for i := range of {
			by(of[i].By, 1)
			lease(of[i].Lease, 1)
			ok = ok && of[i].Result >= 0 && of[i].Result <= len(rec.Results)
			ok = ok && (i == 0 || of[i-1].Order < of[i].Order)
		}
	}
	for _, w := range rec.Watchers {
		by(w.By, 1)
		lease(w.Lease, 1)
	}
	for _, g := range rec.Signals {
		lease(g.Lease, 1)
	}
	if !ok {
		return errNumbers
	}
	return nil
}
