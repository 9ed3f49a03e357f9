package postgres

import (
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/store"
)

// The words of notifications, but for events (event.go). Anybody who may connect to the
// database may send any word, and hear all that are sent. So a hint, which is sent while
// its waiter waits, names only the first half of its grant id; and the word of a grant,
// which is sent when the waiter waits no more, is believed because it names all of it.
const (
	// signalsWord tells an instance to look at its signals.
	signalsWord = "signals"
	// hintPrefix begins the word that tells a waiter to look.
	hintPrefix = "look:"
	// grantPrefix begins the word that tells a waiter of its grant: see the statement tell.
	grantPrefix = "granted:"
	// halfID is how much of the text of an id is its first half.
	halfID = len("00000000-0000-0000")
	// secretHalf completes that to an id.
	secretHalf = "-0000-000000000000"
)

// hintOf is the word that tells a waiter to look.
func hintOf(grant uuid.UUID) string { return hintPrefix + grant.String()[:halfID] }

// hintedOf reads a hint. The id has only its first half.
func hintedOf(word string) (store.GrantID, bool) {
	half, ok := strings.CutPrefix(word, hintPrefix)
	if !ok || len(half) != halfID {
		return store.GrantID{}, false
	}
	id, err := uuid.Parse(half + secretHalf)
	return id, err == nil && id != uuid.Nil
}

// grantOf reads the word of a grant: its id, its token, when it was made, when its lease
// ends, when that was told, all by the database's clock in microseconds, and the trace
// context of the release. An id that is not random could be guessed: it is no secret.
func (s *Store) grantOf(word string) (store.News, bool) {
	text, ok := strings.CutPrefix(word, grantPrefix)
	parts := strings.SplitN(text, ",", 6)
	if !ok || len(parts) != 6 {
		return store.News{}, false
	}
	id, err := uuid.Parse(parts[0])
	if err != nil || id.Version() != 4 {
		return store.News{}, false
	}
	var numbers [4]int64
	for i := range numbers {
		if numbers[i], err = strconv.ParseInt(parts[1+i], 10, 64); err != nil || numbers[i] <= 0 {
			return store.News{}, false
		}
	}
	acquired, expires, told := time.UnixMicro(numbers[1]), time.UnixMicro(numbers[2]), time.UnixMicro(numbers[3])
	heard := told // or later, if that is known
	if now := s.clock.now(); now.After(heard) {
		heard = now
	}
	return store.News{Attempt: store.Attempt{Grant: id}, Answer: store.Answer{
		Outcome: store.Granted, Token: numbers[0], AcquiredAt: acquired,
		ExpiresIn: expires.Sub(heard), GrantedFor: max(0, heard.Sub(acquired)), HandedBy: parts[5],
	}}, true
}
