package main

import (
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/bench/internal/sqltext"
)

func TestCheck(t *testing.T) {
	plan := func(scan string) node {
		return node{Type: "Nested Loop", Plans: []node{{Type: scan, Relation: "locks"}}}
	}
	for name, c := range map[string]struct {
		plan node
		seen touched
		bad  bool
	}{
		"lookups":          {plan("Index Scan"), touched{0, 10 * rowsAnAsk}, false},
		"too many rows":    {plan("Index Scan"), touched{0, 10*rowsAnAsk + 1}, true},
		"a scan, as seen":  {plan("Function Scan"), touched{1, 0}, true},
		"a scan, by plan":  {plan("Seq Scan"), touched{}, true},
		"the row of meta":  {node{Type: "Seq Scan", Relation: "meta"}, touched{}, false},
		"nothing was seen": {plan("Index Scan"), touched{}, false},
	} {
		err := cost{explained: explained{Plan: c.plan}, asked: 10, seen: map[string]touched{"locks": c.seen}}.check()
		if (err != nil) != c.bad {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The test puts the same values into the statements as the store does.
func TestStatementsAreComplete(t *testing.T) {
	for _, s := range statements {
		if sql, err := sqltext.Of(s.name); err != nil || strings.Contains(sql, ":schema_version") {
			t.Errorf("%s: %v\n%s", s.name, err, sql)
		}
	}
}

// A statement that has got a parameter more fails only when it is explained, which no test does.
func TestStatementsHaveAllArguments(t *testing.T) {
	check := func(name, about string, got int) {
		sql, err := sqltext.Of(name)
		if err != nil {
			t.Fatal(err)
		}
		last := 0
		for _, found := range regexp.MustCompile(`\$(\d+)`).FindAllStringSubmatch(sql, -1) {
			n, _ := strconv.Atoi(found[1])
			last = max(last, n)
		}
		if got != last {
			t.Errorf("%s, %s: %d arguments, and the statement has %d", name, about, got, last)
		}
	}
	check("connection_set_up", "of the session", len(session))
	for _, s := range statements {
		check(s.name, s.about, len(s.args(1000, 1)))
	}
}
