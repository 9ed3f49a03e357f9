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
)

// conn is a lean HTTP client, so that what is measured is the server.
type conn struct {
	net.Conn
	r      *bufio.Reader
	status int
	body   []byte
	// more are header lines of each request.
	more []byte
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

var tokenField, slotField = []byte(`"token":`), []byte(`"slot":`)

// token is the fencing token in the last answer.
func (c *conn) token() []byte { return c.number(tokenField) }

// number is that of a member in the last answer.
func (c *conn) number(field []byte) []byte {
	_, after, ok := bytes.Cut(c.body, field)
	if !ok {
		return nil
	}
	end := bytes.IndexAny(after, ",}")
	return after[:max(end, 0)]
}

// tokenNumber is it as a number.
func (c *conn) tokenNumber() (int64, error) { return strconv.ParseInt(string(c.token()), 10, 64) }

// call sends a request, which may have a body, and wants an answer with a status.
func (c *conn) call(request []byte, method, path string, body []byte, want int) ([]byte, error) {
	request = append(request[:0], method...)
	request = append(request, " /v1/locks/"...)
	request = append(request, path...)
	request = append(request, " HTTP/1.1\r\nHost: b\r\n"...)
	request = append(request, c.more...)
	if len(body) > 0 {
		request = append(request, "Content-Length: "...)
		request = strconv.AppendInt(request, int64(len(body)), 10)
		request = append(request, "\r\n"...)
	}
	request = append(request, "\r\n"...)
	request = append(request, body...)
	if err := c.roundTrip(request); err != nil {
		return request, fmt.Errorf("%s %s: %w", method, path, err)
	}
	if c.status != want {
		return request, fmt.Errorf("%s %s: %d %s", method, path, c.status, c.body)
	}
	return request, nil
}

// acquire tries once to get a lock. The request is a buffer that is used again.
func (c *conn) acquire(key string, request []byte) ([]byte, error) {
	return c.call(request, "PUT", key, nil, 200)
}

// release releases the lock whose grant was the last answer.
func (c *conn) release(key string, request []byte) ([]byte, error) {
	request = append(request[:0], "DELETE /v1/locks/"...)
	request = append(request, key...)
	request = append(request, "?token="...)
	request = append(request, c.token()...)
	request = append(request, " HTTP/1.1\r\nHost: b\r\n"...)
	request = append(request, c.more...)
	request = append(request, "\r\n"...)
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

// dialMany opens connections, to several servers in turn. Those that it returns are
// to be closed, also after an error.
func dialMany(sockets []string, n int) ([]*conn, error) {
	// The server has as many open as this process, and both a few files more.
	const others = 100
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err == nil && limit.Max < uint64(n+others) {
		return nil, fmt.Errorf("%d connections need %d open files, and only %d are allowed here: see `ulimit -Hn`", n, n+others, limit.Max)
	}
	conns := make([]*conn, 0, n)
	for i := range n {
		c, err := dial(sockets[i%len(sockets)])
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
