package e2e

import (
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
)

// TestFencing runs the examples of docs/guarantees.md. Commands outside the terminals are run in
// both.
func TestFencing(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/guarantees.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := consoles(string(page))
	if len(blocks) < 10 {
		t.Fatalf("only %d blocks were found: the test reads the page wrongly", len(blocks))
	}
	o, url := onPostgres(t)
	bucket := httptest.NewServer(&object{})
	t.Cleanup(bucket.Close)
	env := append(psqlEnv(t, pgtest.Admin(url)), "OBJECT="+bucket.URL) // an app creates its own tables
	g := &reader{t: t, s: start(t, o), terminals: map[string]*terminal{}, env: env}
	for _, b := range blocks {
		in := []string{b.terminal}
		if b.terminal == "" {
			in = []string{"A", "B"}
		}
		for _, b.terminal = range in {
			g.follow(b)
		}
	}
}

// psqlEnv returns the environment in which psql connects to a database without arguments.
func psqlEnv(t *testing.T, url string) []string {
	t.Helper()
	c, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	return []string{"PGHOST=" + c.Host, fmt.Sprint("PGPORT=", c.Port), "PGUSER=" + c.User, "PGDATABASE=" + c.Database}
}

// object is one object of a store with conditional writes, like S3. Its ETag depends on the
// content.
type object struct {
	mu      sync.Mutex
	content []byte // nil if the object does not exist
}

func (o *object) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	o.mu.Lock()
	defer o.mu.Unlock()
	tag := fmt.Sprintf("%q", fmt.Sprintf("%x", sha256.Sum256(o.content)))
	switch r.Method {
	case http.MethodGet:
		w.Header().Set("ETag", tag)
		_, _ = w.Write(o.content)
	case http.MethodPut:
		if r.Header.Get("If-None-Match") == "*" && o.content != nil ||
			r.Header.Get("If-Match") != "" && r.Header.Get("If-Match") != tag {
			w.WriteHeader(http.StatusPreconditionFailed)
			return
		}
		o.content, _ = io.ReadAll(r.Body)
	}
}
