package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/locksidecar/locksidecar/bench/internal/sqltext"
)

// granting is together with the statements of the sidecar's own store, under one lease:
// tokens, the history, and what a lock row tells of its holder.
func granting(url string) (shared [2]executor, err error) {
	var sql [6]string
	for i, name := range []string{"acquire_one", "acquire_session", "acquire_row", "acquire_rows", "release_one", "release_many"} {
		if sql[i], err = sqltext.Of(name); err != nil {
			return shared, err
		}
	}
	var db [2]*pgx.Conn
	for i := range db {
		if db[i], err = pgx.Connect(context.Background(), url); err != nil {
			return shared, err
		}
	}
	lease := [16]byte(uuid.New())
	_, err = db[0].Exec(context.Background(), `INSERT INTO locksidecar.leases (id, instance, pod, renewed, ttl, expires_at)
		VALUES ($1, 'floor', 'floor', true, '1 day', now() + interval '1 day')`, lease)
	if err != nil {
		return shared, err
	}
	g := &grants{lease: lease, tokens: make(map[string]int64)}
	known := make(map[string]bool) // keys that have rows
	shared[0] = lane(func(keys []string) error {
		one, many := sql[2], sql[3]
		if slices.ContainsFunc(keys, func(key string) bool { return !known[key] }) {
			one, many = sql[0], sql[1]
		}
		for _, key := range keys {
			known[key] = true
		}
		return g.acquire(db[0], one, many, keys)
	})
	shared[1] = lane(func(keys []string) error { return g.release(db[1], sql[4], sql[5], keys) })
	return shared, nil
}

// grants are what is held under a lease.
type grants struct {
	lease [16]byte

	mu     sync.Mutex
	tokens map[string]int64
}

func (g *grants) acquire(db *pgx.Conn, one, many string, keys []string) error {
	const namespace, session = "floor", "0a1b2c3d"
	n, notAfter := len(keys), time.Now().Add(time.Minute)
	tokens := make(map[string]int64, n)
	var key string
	var token int64
	if n == 1 {
		var none *string // no data
		rows, _ := db.Query(context.Background(), one, namespace, keys[0], g.lease, [16]byte(uuid.New()), session, "", none, "", notAfter, int64(0))
		if err := each(rows, []any{&token, nil, nil, nil, nil}, 1, func() { tokens[keys[0]] = token }); err != nil {
			return err
		}
	} else {
		ids := make([][16]byte, n)
		for i := range ids {
			ids[i] = uuid.New()
		}
		var none []string // no owners, data and trace contexts
		rows, _ := db.Query(context.Background(), many, namespace, g.lease, keys, ids, slices.Repeat([]string{session}, n),
			none, none, none, notAfter, []int64(nil))
		if err := each(rows, []any{&key, &token, nil, nil, nil, nil}, n, func() { tokens[key] = token }); err != nil {
			return err
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	maps.Copy(g.tokens, tokens)
	return nil
}

func (g *grants) release(db *pgx.Conn, one, many string, keys []string) error {
	n := len(keys)
	tokens := make([]int64, n)
	g.mu.Lock()
	for i, key := range keys {
		tokens[i] = g.tokens[key]
		delete(g.tokens, key)
	}
	g.mu.Unlock()
	sql, args := many, []any{"floor", keys, tokens, slices.Repeat([][16]byte{g.lease}, n), false}
	if n == 1 {
		sql, args = one, []any{"floor", keys[0], tokens[0], g.lease, false}
	}
	rows, _ := db.Query(context.Background(), sql, args...)
	return each(rows, []any{nil, nil}, n, func() {})
}

// each reads rows, and wants so many.
func each(rows pgx.Rows, into []any, want int, then func()) error {
	n := 0
	_, err := pgx.ForEachRow(rows, into, func() error {
		n++
		then()
		return nil
	})
	if err == nil && n != want {
		err = fmt.Errorf("%d rows, want %d", n, want)
	}
	return err
}
