package main

import (
	"fmt"
	"strings"
)

// statement is one of store/postgres/queries.
type statement struct {
	name string
	// about says what it is asked for.
	about string
	// one: it takes one key, or lease.
	one bool
	// args are its arguments in SQL, for so many lock rows and items.
	args func(rows, asked int) []string
	// before is what comes before it in its transaction, in SQL; empty: nothing.
	before func(rows int) string
	// most is how many rows it looks at if that does not depend on what it is asked; zero: it does.
	most int
	// scans names small tables that it is to scan.
	scans []string
}

func (s statement) sizes() []int {
	switch {
	case s.most > 0:
		return []int{s.most}
	case s.one:
		return []int{1}
	}
	return []int{1, 100, 1000}
}

// statements are those that calls of apps, waits and renewals lead to, and those of the sweep.
var statements = append([]statement{
	{name: "acquire_one", about: "a new key", one: true, args: func(rows, _ int) []string { return acquireOne(keyOf(rows, unknown, 500)) }},
	{name: "acquire_one", about: "a free key", one: true, args: func(rows, _ int) []string { return acquireOne(keyOf(rows, free, 500)) }},
	{name: "acquire_one", about: "a held key", one: true, args: func(rows, _ int) []string { return acquireOne(keyOf(rows, theirs, 500)) }},
	{name: "acquire_row", about: "a free key", one: true, args: func(rows, _ int) []string { return acquireOne(keyOf(rows, free, 500)) }},
	{name: "acquire_row", about: "a free key, again", one: true, args: func(rows, _ int) []string { return again(acquireOne(keyOf(rows, free, 500)), "500") }},
	{name: "acquire_rows", about: "free keys", args: func(rows, n int) []string { return acquireSession(keys(rows, free, n), n) }},
	{name: "acquire_rows", about: "free keys, again", args: func(rows, n int) []string { return again(acquireSession(keys(rows, free, n), n), tokens(n)) }},
	{name: "acquire_session", about: "new keys", args: func(rows, n int) []string { return acquireSession(keys(rows, unknown, n), n) }},
	{name: "acquire_session", about: "free keys", args: func(rows, n int) []string { return acquireSession(keys(rows, free, n), n) }},
	{name: "acquire_session", about: "free keys, again", args: func(rows, n int) []string { return again(acquireSession(keys(rows, free, n), n), tokens(n)) }},
	{name: "acquire_session", about: "held keys", args: func(rows, n int) []string { return acquireSession(keys(rows, theirs, n), n) }},
	{name: "acquire_many", about: "new keys, bind:ttl", args: func(rows, n int) []string { return acquireTTL(keys(rows, unknown, n), n) }},
	{name: "ask", about: "held keys, to wait", args: func(rows, n int) []string {
		return []string{
			namespace, late, "true", "'i'", "'p'", keys(rows, theirs, n), grants(5_000_000, n), same(uuid(waitsLease), n),
			same("0", n), same("0", n), same("f", n), same("c3:1", n), same("", n), same("", n), same("", n), same("NULL", n), "NULL",
		}
	}},
	{name: "release_one", about: "nobody waits", one: true, args: func(rows, _ int) []string {
		return []string{namespace, quote(keyOf(rows, mine, 500)), "500", quote(uuid(mineLease)), "false"}
	}},
	{name: "release_many", about: "nobody waits", args: func(rows, n int) []string {
		return []string{namespace, keys(rows, mine, n), tokens(n), same(uuid(mineLease), n), "false"}
	}},
	{name: "release", about: "somebody waits for each", args: func(rows, n int) []string {
		return []string{
			namespace, "'i'", keys(rows, contended, n), tokens(n), same(uuid(mineLease), n), same("f", n), same("f", n),
			same("NULL", n), same("f", n), same("", n), same("", n),
		}
	}},
	{name: "hand_off", about: "of dead holders, somebody waits for each", args: func(rows, n int) []string {
		return []string{same("default", n), keys(rows, dead, n), grants(deadLeases, n), tokens(n), same("", n)}
	}},
	{name: "reap_many", about: "expired leases", args: func(_, n int) []string { return []string{grants(deadLeases, n), "false"} }},
	{name: "lease_renew_one", about: "a living lease", one: true, args: func(_, _ int) []string { return []string{grants(499, 1), "'quick'"} }},
	{name: "lease_renew", about: "living leases", args: func(_, n int) []string { return []string{grants(0, n), "'quick'"} }},
	{name: "read", about: "held keys", args: func(rows, n int) []string {
		return []string{namespace, keys(rows, theirs, n), same(uuid(mineLease), n), "NULL", "8"}
	}},
	{name: "check", about: "waiters", args: func(rows, n int) []string {
		return []string{namespace, keys(rows, contended, n), grants(1_000_000*contended, n)}
	}},
	{name: "cancel_one", about: "a waiter", one: true, args: func(_, _ int) []string {
		return []string{namespace, quote(uuid(1_000_000*contended + 500)), late, "'i9000003'"}
	}},
	{name: "cancel_many", about: "waiters", args: func(_, n int) []string {
		return []string{namespace, grants(1_000_000*contended, n), late, "'i9000003'"}
	}},
	{name: "amend", about: "data", args: func(rows, n int) []string {
		return []string{
			namespace, late, "'i9000001'", keys(rows, mine, n), tokens(n), same(uuid(mineLease), n), same("0", n), same("t", n), same("7", n),
		}
	}},
	{name: "withdraw", about: "held keys", args: func(rows, n int) []string {
		return []string{namespace, late, "'i9000001'", keys(rows, mine, n), grants(0, n)}
	}},
}, sweeps...)

const (
	namespace = "'default'"
	late      = "'infinity'"
)

func quote(text string) string { return "'" + text + "'" }

// array is a literal of a one-dimensional array.
func array(n int, item func(n int) string) string {
	items := make([]string, n)
	for i := range items {
		if items[i] = item(i * most / n); items[i] != "NULL" {
			items[i] = `"` + items[i] + `"`
		}
	}
	return quote("{" + strings.Join(items, ",") + "}")
}

// Keys, tokens and grants of the same places belong together. They lie all over the table.
func keys(rows, kind, n int) string {
	return array(n, func(i int) string { return keyOf(rows, kind, i+1) })
}
func tokens(n int) string { return array(n, func(i int) string { return fmt.Sprint(i + 1) }) }
func grants(from, n int) string {
	return array(n, func(i int) string { return uuid(from + i + 1) })
}
func same(item string, n int) string { return array(n, func(int) string { return item }) }

func acquireOne(key string) []string {
	return []string{
		namespace, quote(key), quote(uuid(mineLease)), quote(uuid(5_000_000)), "'c1:1'", "''", "NULL", "''", late, "0",
	}
}

func acquireSession(keys string, n int) []string {
	return []string{namespace, quote(uuid(mineLease)), keys, grants(5_000_000, n), same("c3:1", n), "NULL", "NULL", "NULL", late, "NULL"}
}

// again names the last tokens, so the grants are keepable.
func again(args []string, last string) []string {
	args[len(args)-1] = last
	return args
}

func acquireTTL(keys string, n int) []string {
	leases := grants(6_000_000, n)
	return []string{
		namespace, keys, leases, same("t", n), grants(5_000_000, n), same("c1:1", n), same("", n), same("NULL", n), same("", n),
		leases, same("1 hour", n), "'i'", "'p'", late, "NULL",
	}
}
