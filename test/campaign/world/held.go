package world

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"time"
)

// Held is a client's lock, with which a fault finds out whether locks are lost.
type Held struct {
	client *http.Client
	url    string
	token  int64
	// At is when the lock was granted, by the sidecar's clock on etcd.
	At time.Time
}

// clientOf makes a client with one connection, which is its session.
func clientOf(socket string) *http.Client {
	return &http.Client{Timeout: time.Second, Transport: &http.Transport{
		MaxConnsPerHost: 1,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", socket)
		},
	}}
}

// Hold returns a lock that is not held yet, and that nobody else wants.
func (s *Sidecar) Hold(key string) *Held {
	return &Held{client: clientOf(s.socket), url: "http://sidecar/v1/locks/" + url.PathEscape(key)}
}

// Acquire reports whether the lock was granted.
func (h *Held) Acquire() bool {
	var answer struct {
		Token int64     `json:"token"`
		At    time.Time `json:"acquired_at"`
	}
	status, text := h.call(http.MethodPut, "{}")
	if status != http.StatusOK || json.Unmarshal(text, &answer) != nil {
		return false
	}
	h.token, h.At = answer.Token, answer.At
	return true
}

// Lost reports whether the sidecar says that the lock was lost.
func (h *Held) Lost() bool {
	status, text := h.call(http.MethodPatch, fmt.Sprintf(`{"token":%d}`, h.token))
	return status == http.StatusGone && bytes.Contains(text, []byte("lock_lost"))
}

// Drop ends the session.
func (h *Held) Drop() { h.client.CloseIdleConnections() }

func (h *Held) call(method, body string) (status int, text []byte) {
	request, err := http.NewRequest(method, h.url, bytes.NewReader([]byte(body)))
	if err != nil {
		return 0, nil
	}
	answer, err := h.client.Do(request)
	if err != nil {
		return 0, nil
	}
	defer func() { _ = answer.Body.Close() }()
	var b bytes.Buffer
	if _, err := b.ReadFrom(answer.Body); err != nil {
		return 0, nil
	}
	return answer.StatusCode, b.Bytes()
}
