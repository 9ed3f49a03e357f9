package redis

import (
	"encoding/binary"

	"github.com/locksidecar/locksidecar/store"
)

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
