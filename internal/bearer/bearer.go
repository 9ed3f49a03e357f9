// Package bearer checks the tokens of apps that call over TCP.
package bearer

import (
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"log/slog"
	"strings"

	"github.com/locksidecar/locksidecar/internal/reload"
	"github.com/locksidecar/locksidecar/internal/secretfile"
)

const (
	// A token has to be random, because nothing else limits how often it may be guessed.
	minToken, maxToken = 32, 512
	// maxTokens: the one in use, and the next or the last one.
	maxTokens = 2
)

// Tokens are the tokens of a file, one in each line. The file may be replaced while they are used, and only its contents count.
type Tokens struct{ now *reload.Value[tokens] }

// tokens has digests, so that no token stays in memory and all have one length.
type tokens struct {
	whole [sha256.Size]byte // of the file
	each  [][sha256.Size]byte
}

// Load reads the file. A later mistake is logged, and the tokens before it stay in use. No error contains a token.
func Load(file string, log *slog.Logger) (*Tokens, error) {
	now, err := reload.Load(func(before tokens) (tokens, error) { return read(file, before, log) }, log,
		"the file of tokens cannot be used, so the previous tokens stay in use")
	return &Tokens{now}, err
}

// Match reports whether the value of a header Authorization has one of the tokens. The time that it takes does not depend on the tokens.
func (t *Tokens) Match(header []byte) bool {
	scheme, token, _ := bytes.Cut(header, []byte{' '})
	given := sha256.Sum256(token)
	found := 0
	for _, digest := range t.now.Current().each {
		found |= subtle.ConstantTimeCompare(digest[:], given[:])
	}
	return found == 1 && bytes.EqualFold(scheme, []byte("Bearer"))
}

func read(file string, before tokens, log *slog.Logger) (tokens, error) {
	content, err := secretfile.Read(file)
	if err != nil {
		return before, err
	}
	whole := sha256.Sum256(content)
	if before.each != nil && whole == before.whole {
		return before, nil
	}
	each, err := parse(content)
	if err != nil {
		return before, fmt.Errorf("%s: %w", file, err)
	}
	log.Info("tokens loaded", "file", file, "tokens", len(each))
	return tokens{whole, each}, nil
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
