package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strconv"
	"strings"
)

// onSocket is what any client has to do at the least: the same requests, with constant headers, on kept connections of the sidecar's socket. It reads nothing of
// an answer but its length, its status and its token. So it shows what the hop through the sidecar costs without a client.
func onSocket(path string) (acquire, error) {
	stream, session, err := openSession(path)
	if err != nil {
		return nil, err
	}
	kept := make(chan *bufio.ReadWriter, 1024)
	call := func(method, target, body string) (int, []byte, error) {
		var conn *bufio.ReadWriter
		select {
		case conn = <-kept:
		default:
			dialed, err := net.Dial("unix", path)
			if err != nil {
				return 0, nil, err
			}
			conn = bufio.NewReadWriter(bufio.NewReader(dialed), bufio.NewWriter(dialed))
		}
		status, text, err := exchange(conn, "%s %s HTTP/1.1\r\nHost: localhost\r\nLock-Session: %s\r\nContent-Length: %d\r\n\r\n%s", method, target, session, len(body), body)
		if err == nil {
			kept <- conn
		}
		return status, text, err
	}
	return func(key string) (func() error, error) {
		status, text, err := call("PUT", "/v1/locks/"+key, `{"wait_ms":0}`)
		switch {
		case err != nil || status == http.StatusLocked:
			return nil, err
		case status != http.StatusOK:
			return nil, fmt.Errorf("status %d: %s", status, text)
		}
		_, token, _ := bytes.Cut(text, []byte(`"token":`))
		token = token[:bytes.IndexAny(token, ",}")]
		return func() error {
			status, text, err := call("POST", "/v1/locks/"+key+"/release", `{"token":`+string(token)+`}`)
			if err == nil && status != http.StatusOK {
				err = fmt.Errorf("status %d: %s", status, text)
			}
			runtime.KeepAlive(stream) // its end is that of the session
			return err
		}, nil
	}, nil
}

// exchange sends a request, and reads its answer.
func exchange(conn *bufio.ReadWriter, request string, of ...any) (status int, body []byte, err error) {
	_, _ = fmt.Fprintf(conn, request, of...)
	if err := conn.Flush(); err != nil {
		return 0, nil, err
	}
	for length := 0; ; {
		line, err := conn.ReadSlice('\n')
		switch {
		case err != nil:
			return 0, nil, err
		case len(line) == len("\r\n"):
			body = make([]byte, length)
			_, err = io.ReadFull(conn, body)
			return status, body, err
		case status == 0:
			status, _ = strconv.Atoi(string(line[len("HTTP/1.1 "):len("HTTP/1.1 200")]))
		case bytes.HasPrefix(line, []byte("Content-Length: ")):
			length, _ = strconv.Atoi(string(bytes.TrimSpace(line[len("Content-Length: "):])))
		}
	}
}

// openSession opens a session, which lives as long as its stream, and returns its id.
func openSession(path string) (net.Conn, string, error) {
	stream, err := net.Dial("unix", path)
	if err != nil {
		return nil, "", err
	}
	_, _ = io.WriteString(stream, "POST /v1/sessions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}")
	for lines := bufio.NewScanner(stream); lines.Scan(); {
		if _, id, found := strings.Cut(lines.Text(), `"session":"`); found {
			id, _, _ = strings.Cut(id, `"`)
			return stream, id, nil
		}
	}
	return nil, "", errors.New("no session was opened")
}
