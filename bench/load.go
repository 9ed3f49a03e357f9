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

// pair acquires and releases a lock.
func (c *conn) pair(key string, request []byte) ([]byte, error) {
	request = append(request[:0], "PUT /v1/locks/"...)
	request = append(request, key...)
	request = append(request, " HTTP/1.1\r\nHost: b\r\n\r\n"...)
	if err := c.roundTrip(request); err != nil {
		return request, err
	}
	if c.status != 200 {
		return request, fmt.Errorf("acquire: %d %s", c.status, c.body)
	}
	request = append(request[:0], "DELETE /v1/locks/"...)
	request = append(request, key...)
	request = append(request, "?token="...)
	request = append(request, c.token()...)
	request = append(request, " HTTP/1.1\r\nHost: b\r\n\r\n"...)
	if err := c.roundTrip(request); err != nil {
		return request, err
	}
	if c.status != 200 {
		return request, fmt.Errorf("release: %d %s", c.status, c.body)
	}
	return request, nil
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
	var (
		done    atomic.Int64
		failure atomic.Pointer[error]
		wg      sync.WaitGroup
	)
	conns := make([]*conn, 0, connections)
	defer func() {
		for _, c := range conns {
			c.close()
		}
	}()
	for range connections {
		c, err := dial(socket)
		if err != nil {
			return 0, err
		}
		conns = append(conns, c)
	}
	began := time.Now()
	end := began.Add(b.length)
	for i, c := range conns {
		operation := prepare(c, i)
		wg.Go(func() {
			n := int64(0)
			for time.Now().Before(end) {
				if err := operation(); err != nil {
					failure.Store(&err)
					return
				}
				n++
			}
			done.Add(n)
		})
	}
	wg.Wait()
	if err := failure.Load(); err != nil {
		return 0, *err
	}
	return float64(done.Load()) / time.Since(began).Seconds(), b.ctx.Err()
}

// median of some figures.
func median(values []float64) float64 {
	sorted := slices.Clone(values)
	slices.Sort(sorted)
	return sorted[len(sorted)/2]
}
