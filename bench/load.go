package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// conn is a lean HTTP client, so that what is measured is the server.
type conn struct {
	net.Conn
	r      *bufio.Reader
	status int
	body   []byte
}

func dial(socket string) (*conn, error) {
	c, err := net.Dial("unix", socket)
	if err != nil {
		return nil, err
	}
	return &conn{Conn: c, r: bufio.NewReaderSize(c, 4096)}, nil
}

func (c *conn) close() { _ = c.Close() }

var contentLength = []byte("Content-Length: ")

// roundTrip sends a request and reads the answer.
func (c *conn) roundTrip(request []byte) error {
	if _, err := c.Write(request); err != nil {
		return err
	}
	return c.answer()
}

// answer reads the answer to a request that was sent.
func (c *conn) answer() error {
	line, err := c.r.ReadSlice('\n')
	if err != nil {
		return err
	}
	if len(line) < 12 {
		return errors.New("short status line")
	}
	if c.status, err = strconv.Atoi(string(line[9:12])); err != nil {
		return err
	}
	length := 0
	for {
		if line, err = c.r.ReadSlice('\n'); err != nil {
			return err
		}
		if len(line) <= 2 {
			break
		}
		if value, ok := bytes.CutPrefix(line, contentLength); ok {
			if length, err = strconv.Atoi(string(bytes.TrimSpace(value))); err != nil {
				return err
			}
		}
	}
	c.body = slices.Grow(c.body[:0], length)[:length]
	_, err = io.ReadFull(c.r, c.body)
	return err
}

var tokenField = []byte(`"token":`)

// token is the fencing token in the last answer.
func (c *conn) token() []byte {
	_, after, ok := bytes.Cut(c.body, tokenField)
	if !ok {
		return nil
	}
	end := bytes.IndexAny(after, ",}")
	return after[:max(end, 0)]
}

// acquire tries once to get a lock. The request is a buffer that is used again.
func (c *conn) acquire(key string, request []byte) ([]byte, error) {
	request = append(request[:0], "PUT /v1/locks/"...)
	request = append(request, key...)
	request = append(request, " HTTP/1.1\r\nHost: b\r\n\r\n"...)
	if err := c.roundTrip(request); err != nil {
		return request, fmt.Errorf("acquire: %w", err)
	}
	if c.status != 200 {
		return request, fmt.Errorf("acquire: %d %s", c.status, c.body)
	}
	return request, nil
}

// release releases the lock whose grant was the last answer.
func (c *conn) release(key string, request []byte) ([]byte, error) {
	request = append(request[:0], "DELETE /v1/locks/"...)
	request = append(request, key...)
	request = append(request, "?token="...)
	request = append(request, c.token()...)
	request = append(request, " HTTP/1.1\r\nHost: b\r\n\r\n"...)
	if err := c.roundTrip(request); err != nil {
		return request, fmt.Errorf("release: %w", err)
	}
	if c.status != 200 {
		return request, fmt.Errorf("release: %d %s", c.status, c.body)
	}
	return request, nil
}

// pair acquires and releases a lock.
func (c *conn) pair(key string, request []byte) ([]byte, error) {
	request, err := c.acquire(key, request)
	if err != nil {
		return request, err
	}
	return c.release(key, request)
}

// pairs runs acquire and release on many connections, each with a key of its
// own, and returns pairs per second.
func (b *bench) pairs(socket string, connections int) (float64, error) {
	return b.load(socket, connections, func(c *conn, i int) func() error {
		key := fmt.Sprintf("bench:%d", i)
		request := make([]byte, 0, 256)
		return func() (err error) {
			request, err = c.pair(key, request)
			return err
		}
	})
}

// load runs an operation again and again on many connections for the length of
// a measurement and returns operations per second.
func (b *bench) load(socket string, connections int, prepare func(c *conn, i int) func() error) (float64, error) {
	conns, err := dialMany(socket, connections)
	defer closeAll(conns)
	if err != nil {
		return 0, err
	}
	var done atomic.Int64
	began := time.Now()
	end := began.Add(b.length)
	err = onEach(conns, func(c *conn, i int) error {
		operation := prepare(c, i)
		n := int64(0)
		for time.Now().Before(end) {
			if err := operation(); err != nil {
				return err
			}
			n++
		}
		done.Add(n)
		return nil
	})
	if err != nil {
		return 0, err
	}
	return float64(done.Load()) / time.Since(began).Seconds(), b.ctx.Err()
}

// dialMany opens connections. Those that it returns are to be closed, also after
// an error.
func dialMany(socket string, n int) ([]*conn, error) {
	// The server has as many open as this process, and both a few files more.
	const others = 100
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err == nil && limit.Max < uint64(n+others) {
		return nil, fmt.Errorf("%d connections need %d open files, and only %d are allowed here: see `ulimit -Hn`", n, n+others, limit.Max)
	}
	conns := make([]*conn, 0, n)
	for range n {
		c, err := dial(socket)
		if err != nil {
			return conns, fmt.Errorf("connection %d of %d: %w", len(conns)+1, n, err)
		}
		conns = append(conns, c)
	}
	return conns, nil
}

func closeAll(conns []*conn) {
	for _, c := range conns {
		c.close()
	}
}

// onEach runs work on all connections at the same time and returns one of its
// errors.
func onEach(conns []*conn, work func(c *conn, i int) error) error {
	var (
		failure atomic.Pointer[error]
		wg      sync.WaitGroup
	)
	for i, c := range conns {
		wg.Go(func() {
			if err := work(c, i); err != nil {
				failure.Store(&err)
			}
		})
	}
	wg.Wait()
	if err := failure.Load(); err != nil {
		return *err
	}
	return nil
}

// median of some figures.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}

// p99 is the smallest figure that is not exceeded by 99 of 100.
func p99(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[(len(sorted)*99+99)/100-1]
}
