package main

import (
	"bufio"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"time"
)

// compareAndDelete is the script that Redis's documentation gives for a release.
const compareAndDelete = `if redis.call("get",KEYS[1]) == ARGV[1] then return redis.call("del",KEYS[1]) else return 0 end`

// redis locks as Redis's documentation shows, on a connection for each who locks:
// SET with NX and a time to live, then the script, which the server has cached. The
// requests are made once, so that what is measured is the server.
func redis(address string, workers int, hot bool) (operations []func() error, end func(), err error) {
	var conns []*redisConn
	end = func() {
		for _, c := range conns {
			_ = c.Close()
		}
	}
	for i := range workers {
		c, err := net.Dial("tcp", address)
		if err != nil {
			return nil, end, err
		}
		conn := &redisConn{Conn: c, r: bufio.NewReader(c)}
		conns = append(conns, conn)
		sha, err := conn.script(compareAndDelete)
		if err != nil {
			return nil, end, err
		}
		key, mine := keyOf(i, hot), rand.Text()
		set := command("SET", key, mine, "NX", "PX", "15000")
		release := command("EVALSHA", sha, "1", key, mine)
		operations = append(operations, func() error {
			if err := conn.lock(set, hot); err != nil {
				return err
			}
			return conn.call(release, ":1")
		})
	}
	return operations, end, nil
}

type redisConn struct {
	net.Conn
	r *bufio.Reader
}

// pause is the longest before a refused client asks again. Redis's documentation wants it to be
// random; client libraries pause for 50 to 250 ms.
const pause = 10 * time.Millisecond

// lock asks until it has the lock, if others want it too.
func (c *redisConn) lock(set []byte, hot bool) error {
	for {
		line, err := c.ask(set)
		switch {
		case err != nil:
			return err
		case string(line) == "+OK":
			return nil
		case !hot || string(line) != "$-1":
			return fmt.Errorf("redis: %q, want +OK", line)
		}
		time.Sleep(mathrand.N(pause))
	}
}

// call wants an answer of one line.
func (c *redisConn) call(request []byte, want string) error {
	line, err := c.ask(request)
	if err == nil && string(line) != want {
		err = fmt.Errorf("redis: %q, want %q", line, want)
	}
	return err
}

// ask returns the first line of the answer, without its end.
func (c *redisConn) ask(request []byte) ([]byte, error) {
	if _, err := c.Write(request); err != nil {
		return nil, err
	}
	line, err := c.r.ReadSlice('\n')
	if err != nil {
		return nil, err
	}
	if len(line) < 2 {
		return nil, errors.New("redis: short line")
	}
	return line[:len(line)-2], nil
}

// script loads a script and returns what it is called by.
func (c *redisConn) script(text string) (string, error) {
	line, err := c.ask(command("SCRIPT", "LOAD", text))
	if err != nil {
		return "", err
	}
	if string(line) != "$40" {
		return "", fmt.Errorf("redis: SCRIPT LOAD: %q", line)
	}
	sha := make([]byte, 0, 40)
	for len(sha) < 42 { // with the end of the line
		b, err := c.r.ReadByte()
		if err != nil {
			return "", err
		}
		sha = append(sha, b)
	}
	return string(sha[:40]), nil
}

// command is a request in Redis's protocol.
func command(words ...string) []byte {
	text := fmt.Appendf(nil, "*%d\r\n", len(words))
	for _, w := range words {
		text = fmt.Appendf(text, "$%d\r\n%s\r\n", len(w), w)
	}
	return text
}
