package conn

import (
	"errors"
	"sync/atomic"
)

const (
	// MaxScratch limits the memory that a connection keeps for its answers.
	MaxScratch = 4 << 10
	// MaxAnswers limits the bytes of all longer answers that wait for their readers.
	MaxAnswers = 32 << 20
)

// ErrTooManyBodies is the error of a long body for which Config.MaxBodies leaves no memory.
var ErrTooManyBodies = errors.New("too many long bodies are being read")

// allowance is memory that all connections share for one purpose. One alone may take more than all of it.
type allowance struct {
	limit int64
	used  atomic.Int64
}

func (a *allowance) take(n int64) bool {
	if used := a.used.Add(n); used <= a.limit || used == n {
		return true
	}
	a.used.Add(-n)
	return false
}

// ReserveAnswer takes memory for a long answer, if there is some. releaseAnswer gives it back.
func (c *Conn) ReserveAnswer(length int) bool {
	if !c.set.answers.take(int64(length)) {
		return false
	}
	c.answer = int64(length)
	return true
}

// releaseAnswer is called when the last answer is written, or never will be.
func (c *Conn) releaseAnswer() {
	c.set.answers.used.Add(-c.answer)
	c.answer = 0
}

// reserveBody is called before a part of a body is read into p, which fasthttp has allocated. A body that fits into the
// read buffer needs nothing more. fasthttp reads the rest of a longer one into a buffer of its own length; in chunks, the buffer grows
// up to MaxBody.
func (c *Conn) reserveBody(p []byte) bool {
	if c.body > 0 || c.received <= MaxHead && len(p) <= MaxHead {
		return true
	}
	if !c.set.bodies.take(int64(c.set.cfg.MaxBody)) {
		return false
	}
	c.body = int64(c.set.cfg.MaxBody)
	return true
}

// releaseBody is called when the body is complete, or never will be.
func (c *Conn) releaseBody() {
	c.set.bodies.used.Add(-c.body)
	c.body, c.received = 0, 0
}
