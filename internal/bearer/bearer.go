// Package bearer checks the tokens of apps that call over TCP.
package bearer

import (
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/internal/secretfile"
)

const (
	// A token has to be random, because nothing else limits how often it may be guessed.
	minToken, maxToken = 32, 512
	// maxTokens: the one in use, and the next or the last one.
	maxTokens = 2
	// every is the least time between two reads of the file.
	every = time.Second
)

// Tokens are the tokens of a file, one in each line. The file may be replaced while they are used, and only its contents count.
type Tokens struct {
	file  string
	log   *slog.Logger
	every time.Duration

	mu     sync.Mutex
	looked time.Time
	// whole is the digest of the file, and digests those of the tokens, so that no token stays in memory and all have one length.
	whole   [sha256.Size]byte
	digests [][sha256.Size]byte
	// problem is why the file cannot be used now, logged once; empty if it can.
	problem string
}

// Load reads the file. A later mistake is logged, and the tokens before it stay in use. No error contains a token.
func Load(file string, log *slog.Logger) (*Tokens, error) {
	t := &Tokens{file: file, log: log, every: every, looked: time.Now()}
	if err := t.read(); err != nil {
		return nil, err
	}
	return t, nil
}

// Match reports whether the value of a header Authorization has one of the tokens. The time that it takes does not depend on the tokens.
func (t *Tokens) Match(header []byte) bool {
	scheme, token, _ := bytes.Cut(header, []byte{' '})
	given := sha256.Sum256(token)
	found := 0
	for _, digest := range t.current() {
		found |= subtle.ConstantTimeCompare(digest[:], given[:])
	}
	return found == 1 && bytes.EqualFold(scheme, []byte("Bearer"))
}

func (t *Tokens) current() [][sha256.Size]byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	if time.Since(t.looked) < t.every {
		return t.digests
	}
	t.looked = time.Now()
	problem := ""
	if err := t.read(); err != nil {
		problem = err.Error()
	}
	if problem != "" && problem != t.problem {
		t.log.Warn("the file of tokens cannot be used, so the previous tokens stay in use", "error", problem)
	}
	t.problem = problem
	return t.digests
}

// read loads the file if its contents have changed.
func (t *Tokens) read() error {
	content, err := secretfile.Read(t.file)
	if err != nil {
		return err
	}
	whole := sha256.Sum256(content)
	if t.digests != nil && whole == t.whole {
		return nil
	}
	digests, err := parse(content)
	if err != nil {
		return fmt.Errorf("%s: %w", t.file, err)
	}
	t.whole, t.digests = whole, digests
	t.log.Info("tokens loaded", "file", t.file, "tokens", len(digests))
	return nil
}

func parse(content []byte) (digests [][sha256.Size]byte, err error) {
	for line := range bytes.Lines(content) {
		token := bytes.TrimSpace(line)
		if len(token) == 0 {
			continue
		}
		if len(token) < minToken || len(token) > maxToken || bytes.ContainsFunc(token, isOdd) {
			return nil, fmt.Errorf("token %d has %d bytes; allowed: %d to %d letters, digits and -._~+/=, as of `openssl rand -hex 32`",
				len(digests)+1, len(token), minToken, maxToken)
		}
		digests = append(digests, sha256.Sum256(token))
	}
	if n := len(digests); n == 0 || n > maxTokens {
		return nil, fmt.Errorf("there are %d tokens; allowed: one in a line, and a second one while it is replaced", n)
	}
	return digests, nil
}

// isOdd: such a character is not allowed in a token (RFC 6750).
func isOdd(r rune) bool {
	switch {
	case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
		return false
	}
	return !strings.ContainsRune("-._~+/=", r)
}
