package main

import (
	"bytes"
	"context"
	"fmt"
	"hash/maphash"
	"log"
	"net"
	"slices"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/valyala/fasthttp"
)

// The floors of P1, P2 and P3: the least that a sidecar in Go could do. It speaks HTTP on a Unix
// socket, and keeps keys in a map, or executes direct's two statements with pgx; it knows no
// sessions, no leases, no waiters, and answers what the load wants to hear. Every sidecar of this
// kind needs as much, and none is faster.
const (
	floorAcquire = `INSERT INTO direct_locks (key, owner, expires_at) SELECT k, 'me', now() + interval '15 s' FROM unnest($1::text[]) k
		ON CONFLICT (key) DO UPDATE SET owner = excluded.owner, expires_at = excluded.expires_at WHERE direct_locks.expires_at < now()`
	floorRelease = `DELETE FROM direct_locks WHERE key = ANY($1::text[]) AND owner = 'me'`
	// One key has the statements of pgbench: unnest costs more.
	floorAcquireOne = `INSERT INTO direct_locks (key, owner, expires_at) VALUES ($1, 'me', now() + interval '15 s')
		ON CONFLICT (key) DO UPDATE SET owner = excluded.owner, expires_at = excluded.expires_at WHERE direct_locks.expires_at < now()`
	floorReleaseOne = `DELETE FROM direct_locks WHERE key = $1 AND owner = 'me'`
)

// How the floors are called in the tables.
const (
	floorMemory   = "floor: HTTP in Go, and keys in a map"
	floorAlone    = "floor: HTTP and direct's statements in Go, a database connection for each app's"
	floorTogether = "floor: HTTP and direct's statements in Go, calls share statements"
	floorGranting = "floor: HTTP and the sidecar's statements in Go, calls share statements"
)

// floorKinds has them by the word that starts them.
var floorKinds = map[string]string{
	"memory": floorMemory, "alone": floorAlone, "together": floorTogether, "granting": floorGranting,
}

// floorBatch is as much as a batch of the sidecar has by default.
const floorBatch = 500

// executor executes what is asked for one key, and returns when it is committed.
type executor func(key string) error

// newFloor prepares the server of a kind.
func newFloor(kind, socket, url string) (*fasthttp.Server, net.Listener, error) {
	server := &fasthttp.Server{NoDefaultServerHeader: true}
	var shared [2]executor
	var err error
	switch floorKinds[kind] {
	case floorMemory:
		shared = inMemory()
	case floorTogether:
		shared, err = together(url)
	case floorGranting:
		shared, err = granting(url)
	case floorAlone:
		own := &owners{url: url}
		server.Handler, server.ConnState = floorHandler(own.executors), own.changed
	default:
		err = fmt.Errorf("there is no floor %q", kind)
	}
	if err != nil {
		return nil, nil, err
	}
	if server.Handler == nil {
		server.Handler = floorHandler(func(net.Conn) (acquire, release executor, err error) { return shared[0], shared[1], nil })
	}
	listener, err := net.Listen("unix", socket)
	return server, listener, err
}

func floorHandler(executors func(net.Conn) (acquire, release executor, err error)) fasthttp.RequestHandler {
	prefix := []byte("/v1/locks/")
	return func(ctx *fasthttp.RequestCtx) {
		ctx.SetContentType("application/json")
		ctx.SetBody(echoBody)
		key, isLock := bytes.CutPrefix(ctx.Path(), prefix)
		if !isLock {
			return // whether it is ready
		}
		acquire, release, err := executors(ctx.Conn())
		if err == nil {
			if ctx.IsDelete() {
				err = release(string(key))
			} else {
				err = acquire(string(key))
			}
		}
		if err != nil {
			ctx.Error(err.Error(), 500)
		}
	}
}

// owners are connections to the database, one for each connection of an app.
type owners struct {
	url  string
	open sync.Map // of net.Conn to *pgx.Conn
}

func (o *owners) executors(c net.Conn) (acquire, release executor, err error) {
	known, ok := o.open.Load(c)
	if !ok {
		db, err := pgx.Connect(context.Background(), o.url)
		if err != nil {
			return nil, nil, err
		}
		o.open.Store(c, db)
		known = db
	}
	db := known.(*pgx.Conn)
	one := func(sql string) executor {
		return func(key string) error { return execute(db, sql, key, 1) }
	}
	return one(floorAcquireOne), one(floorReleaseOne), nil
}

// changed closes what was opened for a connection that has ended.
func (o *owners) changed(c net.Conn, state fasthttp.ConnState) {
	if state != fasthttp.StateClosed {
		return
	}
	if db, ok := o.open.LoadAndDelete(c); ok {
		_ = db.(*pgx.Conn).Close(context.Background())
	}
}

// execute wants as many rows changed as there are keys.
func execute(db *pgx.Conn, sql string, keys any, n int) error {
	tag, err := db.Exec(context.Background(), sql, keys)
	if err == nil && tag.RowsAffected() != int64(n) {
		err = fmt.Errorf("%d rows of %d changed: %s", tag.RowsAffected(), n, sql)
	}
	return err
}

// inMemory knows of a key only that it is held.
func inMemory() [2]executor {
	type shard struct {
		sync.Mutex
		held map[string]struct{}
	}
	var shards [256]shard
	for i := range shards {
		shards[i].held = make(map[string]struct{})
	}
	seed := maphash.MakeSeed()
	change := func(key string, to bool) error {
		s := &shards[maphash.String(seed, key)%uint64(len(shards))]
		s.Lock()
		defer s.Unlock()
		if _, held := s.held[key]; held == to {
			return fmt.Errorf("held before: %t", held)
		}
		if to {
			s.held[key] = struct{}{}
		} else {
			delete(s.held, key)
		}
		return nil
	}
	return [2]executor{func(key string) error { return change(key, true) }, func(key string) error { return change(key, false) }}
}

// together lets calls that come while a statement is under way share the next one: acquires
// on one connection, releases on another.
func together(url string) (shared [2]executor, err error) {
	for i, sql := range [][2]string{{floorAcquireOne, floorAcquire}, {floorReleaseOne, floorRelease}} {
		db, err := pgx.Connect(context.Background(), url)
		if err != nil {
			return shared, err
		}
		shared[i] = lane(func(keys []string) error {
			if len(keys) == 1 {
				return execute(db, sql[0], keys[0], 1)
			}
			slices.Sort(keys)
			return execute(db, sql[1], keys, len(keys))
		})
	}
	return shared, nil
}

type floorCall struct {
	key  string
	done chan error
}

// lane lets calls that come while something is carried out go together with the next.
func lane(carryOut func(keys []string) error) executor {
	waiting := make(chan floorCall, 4*floorBatch)
	go func() {
		var calls []floorCall
		var keys []string
		for first := range waiting {
			calls, keys = append(calls[:0], first), append(keys[:0], first.key)
			for n := len(waiting); n > 0 && len(calls) < floorBatch; n-- {
				c := <-waiting
				calls, keys = append(calls, c), append(keys, c.key)
			}
			err := carryOut(keys)
			for _, c := range calls {
				c.done <- err
			}
		}
	}()
	return func(key string) error {
		c := floorCall{key: key, done: make(chan error, 1)}
		waiting <- c
		return <-c.done
	}
}

// floorProcess is the program: SOCKET KIND URL.
func floorProcess(args []string) {
	if len(args) != 3 {
		log.Fatal("bench floor: SOCKET KIND URL")
	}
	server, listener, err := newFloor(args[1], args[0], args[2])
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(server.Serve(listener))
}
