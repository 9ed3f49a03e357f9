package redis

import (
	"context"
	"encoding/binary"
	"slices"
	"strconv"
	"time"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/cas"
)

const (
	// perCall limits the swaps or keys of one call, because the server does nothing else meanwhile.
	perCall = 200
	// maxBytes limits their size. A larger swap has a call of its own.
	maxBytes = 1 << 20
	// usualSwap is more bytes than most swaps have.
	usualSwap = 384
)

// Swap implements [cas.Backend].
func (b *Server) Swap(ctx context.Context, swaps []cas.Swap) ([]cas.Swapped, error) {
	done := make([]cas.Swapped, len(swaps))
	groups := b.group(len(swaps), func(i int) string { return swaps[i].Key })
	err := each(groups, "swap", true, func(part int, of []int) error {
		did := false
		for len(of) > 0 {
			n := 1
			for size := len(swaps[of[0]].Data); n < len(of) && n < perCall && size < maxBytes; n++ {
				size += len(swaps[of[n]].Data)
			}
			if err := b.swapSome(ctx, part, of[:n], swaps, done); err != nil {
				return cas.Failed("swap", err, did || store.OutcomeUnknown(err))
			}
			did, of = true, of[n:]
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return done, nil
}

func (b *Server) swapSome(ctx context.Context, part int, some []int, swaps []cas.Swap, done []cas.Swapped) error {
	err := b.sendSome(ctx, part, some, swaps, done)
	if !isFull(err) || !slices.ContainsFunc(swaps, fitsFullMemory) {
		return err
	}
	// Nothing new is granted, and the others of the call are carried out.
	var rest []int
	for _, i := range some {
		if fitsFullMemory(swaps[i]) {
			rest = append(rest, i)
		} else {
			done[i] = cas.Swapped{Later: true, Record: cas.Record{Key: swaps[i].Key}}
		}
	}
	if len(rest) == 0 {
		return nil
	}
	return b.sendSome(ctx, part, rest, swaps, done)
}

// fitsFullMemory reports whether a server with full memory carries a swap out.
func fitsFullMemory(w cas.Swap) bool { return w.Ends || w.Tokens == 0 }

// sendSome sends swaps in one call.
func (b *Server) sendSome(ctx context.Context, part int, some []int, swaps []cas.Swap, done []cas.Swapped) error {
	name, list, fields := "swap", newList(usualSwap*len(some)), 0
	for _, i := range some {
		if !fitsFullMemory(swaps[i]) {
			name = "grant"
		}
		fields += b.add(list, &swaps[i])
	}
	sent := time.Now()
	answer, quiet, err := b.call(ctx, "swap", name, sends, part, nil, list.of(fields))
	if err != nil {
		return err
	}
	if len(answer) != len(some) {
		return classify("swap", errAnswer, true)
	}
	for n, i := range some {
		if done[i], err = swapped(&swaps[i], answer[n], sent, quiet); err != nil {
			return classify("swap", err, true)
		}
		b.history.saw(&done[i].Record)
	}
	return nil
}

// add adds a swap to a list as functions.lua reads it, and returns how many elements it added.
func (b *Server) add(list *list, w *cas.Swap) int {
	what := "w"
	switch {
	case w.Delete:
		what = "d"
	case w.Tokens > 0:
		what = "g"
	}
	list.text(w.Key)
	list.number(w.Version)
	list.text(what)
	if w.Delete {
		list.text("")
	} else {
		head := make([]byte, 0, 32)
		head = strconv.AppendInt(append(head, ' '), int64(w.Tokens), 10)
		head = append(strconv.AppendInt(append(head, ' '), int64(len(w.Leases)), 10), '|')
		list.size(len(head) + 16*len(w.Leases) + len(w.Data))
		list.to = append(list.to, head...)
		list.ids(w.Leases)
		list.to = append(list.to, w.Data...)
	}
	list.size(16 * len(w.Living))
	list.ids(w.Living)
	list.number(int64(len(w.Letters)))
	for l := range w.Letters {
		list.text(b.channel(w.Letters[l].To))
		list.text(w.Letters[l].Key)
		list.text(string(w.Letters[l].Body))
	}
	const ofSwap, ofLetter = 6, 3
	return ofSwap + ofLetter*len(w.Letters)
}

// swapped reads the answer to one swap.
func swapped(w *cas.Swap, answer any, sent time.Time, quiet time.Duration) (cas.Swapped, error) {
	if text, ok := answer.(string); ok {
		version, err := strconv.ParseInt(text, 10, 64)
		r := cas.Record{Key: w.Key, Version: version, Base: version, Tokens: w.Tokens}
		if w.Delete {
			r.Version = 0
		}
		return cas.Swapped{Done: true, Record: r}, err
	}
	parts, ok := answer.([]any)
	if !ok || len(parts) < 2 {
		return cas.Swapped{}, errAnswer
	}
	s := cas.Swapped{}
	if code, _ := parts[0].(int64); code == 2 {
		s.Quiet = max(quiet, time.Millisecond)
	}
	var err error
	s.Record, err = decode(w.Key, parts[1:], sent)
	return s, err
}

// NextToken implements [cas.Backend].
func (b *Server) NextToken(ctx context.Context) (next int64, err error) {
	for part := range b.parts {
		answer, quiet, err := b.call(ctx, "next", "next", repeats, part, nil)
		if err != nil {
			return 0, err
		}
		if quiet > 0 {
			return 0, &store.Error{Op: "next", Err: &store.QuietError{Left: quiet}}
		}
		text, _ := answer[0].(string)
		of, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return 0, classify("next", errAnswer, false)
		}
		next = max(next, of)
	}
	return next, nil
}

// RaiseTokens implements [cas.Backend]. A repeat does no harm.
func (b *Server) RaiseTokens(ctx context.Context, first int64) error {
	for part := range b.parts {
		if _, _, err := b.call(ctx, "raise", "raise", repeats, part, nil, first); err != nil {
			return err
		}
	}
	return nil
}

// list is a list in MessagePack, as a function on the server reads it.
type list struct{ to []byte }

// The types of MessagePack, each with a length or a number of fixed size behind it.
const (
	isText   = 0xdb
	isNumber = 0xd3
	isList   = 0xdd
	listHead = 5
)

func newList(size int) *list { return &list{make([]byte, listHead, listHead+size)} }

// size begins an element of so many bytes.
func (l *list) size(n int) { l.to = binary.BigEndian.AppendUint32(append(l.to, isText), uint32(n)) }

func (l *list) text(s string) {
	l.size(len(s))
	l.to = append(l.to, s...)
}

// ids writes the bytes of ids, without a size.
func (l *list) ids(ids []store.LeaseID) {
	for i := range ids {
		l.to = append(l.to, ids[i][:]...)
	}
}

func (l *list) number(n int64) {
	l.to = binary.BigEndian.AppendUint64(append(l.to, isNumber), uint64(n))
}

// of returns the list of so many elements.
func (l *list) of(n int) []byte {
	l.to[0] = isList
	binary.BigEndian.PutUint32(l.to[1:], uint32(n))
	return l.to
}
