package image

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// appEnv makes this test's binary the app: it does what it reads, line by line, and says
// what came of it.
const appEnv = "LOCKSIDECAR_TEST_APP"

// answer is what the app says, a line each.
type answer struct {
	Status int    `json:"status,omitempty"` // of an HTTP call
	Body   string `json:"body,omitempty"`
	Error  string `json:"error,omitempty"`
}

func runApp() {
	socket := os.Getenv("LOCKSIDECAR_SOCKET")
	// One connection, and so one session. Lost, the next call makes another.
	client := &http.Client{Transport: &http.Transport{
		MaxConnsPerHost: 1,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
	}}
	say(answer{Body: "started"})
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		say(do(client, strings.SplitN(lines.Text(), " ", 3)))
	}
	os.Exit(0)
}

func say(a answer) {
	text, _ := json.Marshal(a)
	fmt.Println(string(text))
}

func do(client *http.Client, words []string) answer {
	var err error
	switch words[0] {
	case "create":
		err = os.WriteFile(words[1], nil, 0o600)
	case "remove":
		err = os.Remove(words[1])
	case "chmod":
		err = os.Chmod(words[1], 0o777)
	case "rename":
		err = os.Rename(words[1], words[2])
	case "read":
		_, err = os.ReadFile(words[1])
	default:
		return request(client, words)
	}
	return failed(err)
}

func failed(err error) answer {
	if err != nil {
		return answer{Error: err.Error()}
	}
	return answer{}
}

func request(client *http.Client, words []string) answer {
	r, err := http.NewRequest(words[0], "http://localhost"+words[1], strings.NewReader(strings.Join(words[2:], " ")))
	if err != nil {
		return failed(err)
	}
	response, err := client.Do(r)
	if err != nil {
		return failed(err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return failed(err)
	}
	return answer{Status: response.StatusCode, Body: string(body)}
}

// app is the app's side in the test.
type app struct {
	*process
	said int // lines that were heard
}

// do lets the app do something, such as PUT with a path and a body, and returns its answer.
func (a *app) do(words ...string) answer {
	a.t.Helper()
	a.send(words...)
	return a.hear()
}

func (a *app) send(words ...string) {
	a.t.Helper()
	if _, err := io.WriteString(a.stdin, strings.Join(words, " ")+"\n"); err != nil {
		a.t.Fatal(err)
	}
}

// hear returns the app's next line.
func (a *app) hear() answer {
	a.t.Helper()
	limit := time.After(patience)
	for {
		a.mu.Lock()
		lines, changed := a.lines, a.changed
		a.mu.Unlock()
		if len(lines) > a.said {
			a.said++
			var heard answer
			if err := json.Unmarshal([]byte(lines[a.said-1]), &heard); err != nil {
				a.t.Fatalf("the app says %q", lines[a.said-1])
			}
			return heard
		}
		select {
		case <-changed:
		case <-limit:
			a.t.Fatalf("the app says nothing for %s", patience)
		}
	}
}

// want checks status and a part of the body or of the error.
func (ans answer) want(t *testing.T, status int, part string) answer {
	t.Helper()
	if ans.Status != status || !strings.Contains(ans.Body+ans.Error, part) {
		t.Fatalf("%+v, want status %d and %q", ans, status, part)
	}
	return ans
}

// acquire gets a lock and returns its token.
func (a *app) acquire(key string) string {
	a.t.Helper()
	return a.do("PUT", "/v1/locks/"+key, `{"ttl_ms":3600000}`).token(a.t)
}

// release gives a lock back.
func (a *app) release(key, token string) {
	a.t.Helper()
	a.do("DELETE", "/v1/locks/"+key+"?token="+token).want(a.t, 200, "released")
}

// try asks for a lock that it may not get.
func (a *app) try(key string) answer {
	a.t.Helper()
	return a.do("PUT", "/v1/locks/"+key)
}

func (ans answer) token(t *testing.T) string {
	t.Helper()
	var grant struct {
		Granted bool  `json:"granted"`
		Token   int64 `json:"token"`
	}
	if err := json.Unmarshal([]byte(ans.Body), &grant); err != nil || !grant.Granted {
		t.Fatalf("not granted: %+v", ans)
	}
	return strconv.FormatInt(grant.Token, 10)
}
