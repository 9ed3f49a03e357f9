package redistest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"
)

const (
	askLimit = 10 * time.Second
)

// ask sends a command and returns the answer.
func (s *Server) ask(args ...any) (any, error) {
	ctx, cancel := context.WithTimeout(context.Background(), askLimit)
	defer cancel()
	c := s.Client()
	defer func() { _ = c.Close() }()
	answer, err := c.Do(ctx, args...).Result()
	if err != nil {
		return nil, fmt.Errorf("%v: %w", args, err)
	}
	return answer, nil
}

// SlotMove moves a slot from one master to another, step by step, with the commands that redis-cli --cluster reshard sends.
type SlotMove struct {
	From, To *Server
	Slot     int
}

// Begin begins it.
func (m SlotMove) Begin() error {
	return errors.Join(m.set(m.To, "IMPORTING", m.From), m.set(m.From, "MIGRATING", m.To))
}

// Known reports whether From knows that the slot moves. Valkey tells the replicas of a master, Redis does not.
func (m SlotMove) Known() (bool, error) {
	answer, err := m.From.ask("CLUSTER", "NODES")
	text, _ := answer.(string)
	return strings.Contains(text, fmt.Sprintf("[%d->-", m.Slot)), err
}

// Keys returns the slot's keys that have not moved, at most so many.
func (m SlotMove) Keys(most int) (names []string, err error) {
	answer, err := m.From.ask("CLUSTER", "GETKEYSINSLOT", m.Slot, most)
	list, _ := answer.([]any)
	for _, name := range list {
		names = append(names, name.(string)) //nolint:forcetypeassert // a test
	}
	return names, err
}

// Move moves some of the slot's keys. A key that has just ended is no error.
func (m SlotMove) Move(names ...string) error {
	host, port, _ := strings.Cut(m.To.Address, ":")
	args := []any{"MIGRATE", host, port, "", 0, askLimit.Milliseconds(), "KEYS"}
	for _, name := range names {
		args = append(args, name)
	}
	_, err := m.From.ask(args...)
	return err
}

// End moves the rest of the keys, and then the slot. Other servers hear of it by themselves.
func (m SlotMove) End() error {
	for {
		names, err := m.Keys(100)
		if err == nil && len(names) == 0 {
			return errors.Join(m.set(m.To, "NODE", m.To), m.set(m.From, "NODE", m.To))
		}
		if err == nil {
			err = m.Move(names...)
		}
		if err != nil {
			return err
		}
	}
}

func (m SlotMove) set(at *Server, state string, other *Server) error {
	id, err := other.ask("CLUSTER", "MYID")
	if err == nil {
		_, err = at.ask("CLUSTER", "SETSLOT", m.Slot, state, id)
	}
	return err
}

// Owns reports whether a server is the master that has a slot.
func (s *Server) Owns(slot int) (bool, error) {
	answer, err := s.ask("CLUSTER", "NODES")
	text, _ := answer.(string)
	for line := range strings.Lines(text) {
		const before = 8 // fields
		fields := strings.Fields(line)
		if len(fields) <= before || !strings.Contains(fields[2], "myself") {
			continue
		}
		for _, span := range fields[before:] {
			from, to, _ := strings.Cut(span, "-")
			first, err1 := strconv.Atoi(from)
			last, err2 := strconv.Atoi(cmp.Or(to, from))
			if err1 == nil && err2 == nil && first <= slot && slot <= last {
				return true, nil
			}
		}
	}
	return false, err
}

// Owner is the master that has a slot.
func (c *Cluster) Owner(tb testing.TB, slot int) *Server {
	tb.Helper()
	for _, n := range c.Masters(tb) {
		owns, err := n.Owns(slot)
		if err != nil {
			tb.Fatal(err)
		}
		if owns {
			return n
		}
	}
	tb.Fatalf("no master has slot %d", slot)
	return nil
}
