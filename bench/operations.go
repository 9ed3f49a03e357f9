package main

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	rand2 "math/rand/v2"
	"strconv"
	"sync/atomic"
)

// operations are what a load does again and again on each connection; i is its number.
// Preparations are not measured.
var operations = map[string]func(c *conn, i int) (func() error, error){
	"echo":      echoes,
	"pair":      ownKey,
	"unsampled": tracedPair(0),
	"hundredth": tracedPair(0.01),
	"sampled":   tracedPair(1),
	"fresh":     freshKey,
	"keep":      keeps,
	"hot":       hotKey,
	"alternate": takesTurns,
	"near":      near(9),
	"half":      near(5),
	"semaphore": sharedPlaces,
	"get":       readsOwn,
	"patch":     amends,
	"reentry":   reenters,
	"denied":    refusals,
}

// echoes is the same request again and again.
func echoes(c *conn, _ int) (func() error, error) {
	request := []byte("PUT /v1/locks/bench:1 HTTP/1.1\r\nHost: b\r\n\r\n")
	return func() error { return c.roundTrip(request) }, nil
}

// ownKey acquires and releases a key of the connection's own.
func ownKey(c *conn, i int) (func() error, error) {
	key, request := fmt.Sprintf("bench:%d", i), make([]byte, 0, 256)
	return func() (err error) {
		request, err = c.pair(key, request)
		return err
	}, nil
}

// tracedPair is ownKey of an app that has a trace for each pair, and samples a part of them.
func tracedPair(part float64) func(*conn, int) (func() error, error) {
	return func(c *conn, i int) (func() error, error) {
		pair, err := ownKey(c, i)
		id := make([]byte, 8)
		return func() error {
			binary.NativeEndian.PutUint64(id, rand2.Uint64()|1)
			c.more = append(c.more[:0], "Traceparent: 00-"...)
			c.more = hex.AppendEncode(hex.AppendEncode(c.more, id), id)
			c.more = hex.AppendEncode(append(c.more, '-'), id)
			if rand2.Float64() < part {
				c.more = append(c.more, "-01\r\n"...)
			} else {
				c.more = append(c.more, "-00\r\n"...)
			}
			return pair()
		}, err
	}
}

// freshKey acquires and releases a key that was never used, anywhere in the order of keys.
func freshKey(c *conn, _ int) (func() error, error) {
	request, key := make([]byte, 0, 256), make([]byte, 16)
	return func() (err error) {
		_, _ = rand.Read(key)
		request, err = c.pair(hex.EncodeToString(key), request)
		return err
	}, nil
}

// keeps acquires keys that were never used, anywhere in the order of keys, and keeps
// them until its connection ends.
func keeps(c *conn, _ int) (func() error, error) {
	request, key := make([]byte, 0, 256), make([]byte, 16)
	return func() (err error) {
		_, _ = rand.Read(key)
		request, err = c.acquire(hex.EncodeToString(key), request)
		return err
	}, nil
}

// hot is the key of hotKey's load, as the load process sees it: who holds it is
// alone, and tokens grow.
var hot struct {
	held  atomic.Bool
	token atomic.Int64
}

// hotKey waits for a key that all connections want, and releases it at once.
func hotKey(c *conn, _ int) (func() error, error) {
	const key = "bench:hot"
	body, request := []byte(`{"wait_ms":20000}`), make([]byte, 0, 256)
	return func() (err error) {
		if request, err = c.call(request, "PUT", key, body, 200); err != nil {
			return err
		}
		if !hot.held.CompareAndSwap(false, true) {
			return fmt.Errorf("%s was granted twice", key)
		}
		token, err := c.tokenNumber()
		if err != nil {
			return err
		}
		if before := hot.token.Swap(token); token <= before {
			return fmt.Errorf("%s: token %d after %d", key, token, before)
		}
		hot.held.Store(false)
		request, err = c.release(key, request)
		return err
	}, nil
}

// baton is who has the next turn: the number of a connection.
var baton = func() [2]chan struct{} {
	turns := [2]chan struct{}{make(chan struct{}, 1), make(chan struct{}, 1)}
	turns[0] <- struct{}{}
	return turns
}()

// takesTurns acquires and releases one key, each of two connections in turn.
func takesTurns(c *conn, i int) (func() error, error) {
	const key = "bench:turns"
	body, request := []byte(`{"wait_ms":20000}`), make([]byte, 0, 256)
	return func() (err error) {
		<-baton[i]
		defer func() { baton[1-i] <- struct{}{} }()
		if request, err = c.call(request, "PUT", key, body, 200); err != nil {
			return err
		}
		request, err = c.release(key, request)
		return err
	}, nil
}

// podCount is how many sidecars there are: connection i is to the one of number i modulo it.
var podCount int

// manyKeys are those of near, with the pod that had each last, or -1 while a connection uses it.
var manyKeys [1000]atomic.Int32

// near acquires and releases keys of which so many of ten were last in the connection's own pod. Nobody else wants the key meanwhile.
func near(ofTen int) func(c *conn, i int) (func() error, error) {
	return func(c *conn, i int) (func() error, error) {
		own, request := int32(i%podCount), make([]byte, 0, 256)
		body := []byte(`{"wait_ms":20000}`)
		for k := i; k < len(manyKeys); k += podCount { // they begin evenly
			manyKeys[k].Store(own)
		}
		return func() (err error) {
			at := rand2.IntN(len(manyKeys))
			for here := rand2.IntN(10) < ofTen; ; at = (at + 1) % len(manyKeys) {
				if pod := manyKeys[at].Load(); pod >= 0 && (pod == own) == here && manyKeys[at].CompareAndSwap(pod, -1) {
					break
				}
			}
			key := fmt.Sprintf("bench:near:%d", at)
			if request, err = c.call(request, "PUT", key, body, 200); err == nil { // a try could be refused, if the recall takes long
				request, err = c.release(key, request)
			}
			manyKeys[at].Store(own)
			return err
		}, nil
	}
}

// semaphoreLimit is the limit of sharedPlaces' key, places which of its slots are taken, as the load process sees it.
const semaphoreLimit = 10

var places [semaphoreLimit]atomic.Bool

// sharedPlaces waits for a place of a semaphore, and releases it at once. Slots are unique, so there are no more holders.
func sharedPlaces(c *conn, _ int) (func() error, error) {
	const key = "bench:semaphore"
	body, request := fmt.Appendf(nil, `{"mode":"shared","limit":%d,"wait_ms":20000}`, semaphoreLimit), make([]byte, 0, 256)
	return func() (err error) {
		if request, err = c.call(request, "PUT", key, body, 200); err != nil {
			return err
		}
		slot, err := strconv.Atoi(string(c.number(slotField)))
		if err != nil {
			return err
		}
		if slot >= semaphoreLimit || !places[slot].CompareAndSwap(false, true) {
			return fmt.Errorf("%s: slot %d was granted twice, or is beyond the limit", key, slot)
		}
		places[slot].Store(false)
		request, err = c.release(key, request)
		return err
	}, nil
}

// take gets a lock that is kept. An earlier load may not quite have lost it yet.
func (c *conn) take(key string) ([]byte, error) {
	return c.call(nil, "PUT", key, []byte(`{"wait_ms":5000,"owner":"me","reentrant":true}`), 200)
}

// readsOwn asks for a lock of its own.
func readsOwn(c *conn, i int) (func() error, error) {
	key := fmt.Sprintf("bench:%d", i)
	request, err := c.take(key)
	return func() (err error) {
		if request, err = c.call(request, "GET", key, nil, 200); err != nil {
			return err
		}
		return c.says(`"mine":true`)
	}, err
}

// amends checks that it still holds a lock of its own.
func amends(c *conn, i int) (func() error, error) {
	key := fmt.Sprintf("bench:%d", i)
	request, err := c.take(key)
	body := fmt.Appendf(nil, `{"token":%s}`, c.token())
	return func() (err error) {
		request, err = c.call(request, "PATCH", key, body, 200)
		return err
	}, err
}

// reenters enters a lock of its own again, and leaves it once more.
func reenters(c *conn, i int) (func() error, error) {
	key, body := fmt.Sprintf("bench:%d", i), []byte(`{"owner":"me","reentrant":true}`)
	request, err := c.take(key)
	return func() (err error) {
		if request, err = c.call(request, "PUT", key, body, 200); err != nil {
			return err
		}
		if err := c.says(`"reentry":2`); err != nil {
			return err
		}
		if request, err = c.release(key, request); err != nil {
			return err
		}
		return c.says(`"released":false`)
	}, err
}

// deniedKey is held behind another sidecar.
func deniedKey(i int) string { return fmt.Sprintf("bench:elsewhere:%d", i) }

// refusals asks for a lock that an app in another pod holds.
func refusals(c *conn, i int) (func() error, error) {
	const tries = 100
	key, request := deniedKey(i), make([]byte, 0, 256)
	denied := func() (err error) {
		if request, err = c.call(request, "PUT", key, nil, 423); err != nil {
			return err
		}
		return c.says(`"cached":true`)
	}
	// The store is asked first. Its answer is not kept when something was just heard of
	// a key that the cache takes for the same, such as the end of an earlier load.
	err := denied()
	for n := 0; err != nil && n < tries; n++ {
		err = denied()
	}
	return denied, err
}

// says is an error unless the last answer has a text in it.
func (c *conn) says(text string) error {
	if !bytes.Contains(c.body, []byte(text)) {
		return fmt.Errorf("no %s in %s", text, c.body)
	}
	return nil
}
