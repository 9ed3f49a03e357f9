package postgres

import (
	"encoding/base64"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/store"
)

// The formats of notifications, except for events (event.go). A hint is sent while its waiter waits, so it
// contains only the first half of the attempt id. A grant is believed because it contains the whole id,
// which is sent only when the waiter no longer waits.
const (
	// signalsWord asks an instance to read its signals.
	signalsWord = "signals"
	// hintPrefix begins a hint, which asks for a check of a waiter.
	hintPrefix = "look:"
	// grantPrefix begins the notification of a grant: see the statement notify_grants.
	grantPrefix = "granted:"
	// recallPrefix begins a recall: the instance gives up a key that it keeps. The key follows in base64.
	recallPrefix = "recall:"
	// halfID is the length of an id's first half.
	halfID = len("00000000-0000-0000")
	// secretHalf completes a half to a well-formed id.
	secretHalf = "-0000-000000000000"
)

func hintOf(attempt uuid.UUID) string { return hintPrefix + attempt.String()[:halfID] }

// hintedOf parses a hint. The returned id has only its first half.
func hintedOf(word string) (store.AttemptID, bool) {
	half, ok := strings.CutPrefix(word, hintPrefix)
	if !ok || len(half) != halfID {
		return store.AttemptID{}, false
	}
	id, err := uuid.Parse(half + secretHalf)
	return id, err == nil && id != uuid.Nil
}

func recallOf(key string) string {
	return recallPrefix + base64.StdEncoding.EncodeToString([]byte(key))
}

// recalledOf parses a recall. Any database user can send one: it only ends that the key is kept.
func recalledOf(word string) (key string, ok bool) {
	text, ok := strings.CutPrefix(word, recallPrefix)
	name, err := base64.StdEncoding.DecodeString(text)
	return string(name), ok && err == nil && len(name) > 0 && utf8.Valid(name)
}

// grantOf parses the notification of a grant. Its fields: the attempt id; the token; the times of the
// grant, of the lease's end and of the notification, in microseconds of the database's clock; the trace
// context of the release; and the first halves of the ids of the cohort, because its members still wait. An
// id that is not random could be guessed, so it is refused.
func (s *Space) grantOf(word string) (store.News, bool) {
	text, ok := strings.CutPrefix(word, grantPrefix)
	parts := strings.SplitN(text, ",", 7)
	if !ok || len(parts) != 7 {
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
	cohort, err := cohortOf(parts[6])
	if err != nil {
		return store.News{}, false
	}
	acquired, expires, sent := time.UnixMicro(numbers[1]), time.UnixMicro(numbers[2]), time.UnixMicro(numbers[3])
	heard := sent // or a later time, if known
	if now := s.clock.now(); now.After(heard) {
		heard = now
	}
	return store.News{Attempt: store.Attempt{ID: id}, Answer: store.Answer{
		Outcome: store.Granted, Token: numbers[0], AcquiredAt: acquired,
		ExpiresIn: expires.Sub(heard), GrantedFor: max(0, heard.Sub(acquired)), HandedBy: parts[5], Cohort: cohort,
	}}, true
}

// halvesOf returns the first halves of the ids of waiters.
func halvesOf(ids []uuid.UUID) []store.HalfID {
	if len(ids) == 0 {
		return nil
	}
	halves := make([]store.HalfID, len(ids))
	for i, id := range ids {
		halves[i] = store.HalfOf(id)
	}
	return halves
}

// cohortOf parses the first halves of the ids of waiters.
func cohortOf(word string) ([]store.HalfID, error) {
	if word == "" {
		return nil, nil
	}
	halves := strings.Split(word, "+")
	cohort := make([]store.HalfID, len(halves))
	for i, half := range halves {
		id, err := uuid.Parse(half + secretHalf)
		if err != nil {
			return nil, err
		}
		cohort[i] = store.HalfOf(id)
	}
	return cohort, nil
}
