package main

import "fmt"

// stepRows is the most rows that a step of the sweep reads if its time budget is zero: 32 pages.
// The rows of fill have some 100 bytes, and half of each page stays free.
const stepRows = 32 * 64

// sweeps are the statements of the sweep. They take no keys; they find what lies in the tables.
var sweeps = []statement{
	{name: "sweep_step", about: "locks that are held", most: stepRows, args: step("1 hour"), before: walks("locks", others)},
	{name: "sweep_step", about: "free keys, none for long", most: stepRows, args: step("1 hour"), before: walks("locks", free)},
	{name: "sweep_step", about: "free keys, to be forgotten", most: stepRows, args: step("0"), before: walks("locks", free)},
	{name: "sweep_step", about: "locks of dead leases", most: stepRows, args: step("1 hour"), before: func(rows int) string {
		return walks("locks", dead)(rows) + "; DELETE FROM locksidecar.leases WHERE instance = 'gone'"
	}},
	{name: "sweep_step", about: "expired leases", most: stepRows, args: step("1 hour"), before: func(int) string {
		return walk("leases", "SELECT ctid FROM locksidecar.leases WHERE id = "+quote(uuid(deadLeases+1)))
	}},
	{name: "sweep_step", about: "nothing is due", one: true, args: step("1 hour"), before: func(int) string {
		return "UPDATE locksidecar.sweep SET due_at = clock_timestamp() + interval '1 minute'"
	}},
	{
		name: "sweep_left", about: "waiters and watchers, all there are", most: 2 * most,
		args: func(int, int) []string { return []string{"1000"} }, scans: []string{"waiters", "watchers"},
	},
}

// step has arguments with a time budget of zero, so that it reads the fewest pages.
func step(freeFor string) func(_, _ int) []string {
	return func(int, int) []string { return []string{"'0'", quote(freeFor), "'8 min'", "'0'"} }
}

// walks moves the sweep to the page of a key of a kind.
func walks(table string, kind int) func(rows int) string {
	return func(rows int) string {
		count, n := most, most/2
		if kind == others {
			count, n = rows, rows/2
		}
		return walk(table, fmt.Sprintf("SELECT ctid FROM locksidecar.locks WHERE namespace = 'default' AND key = "+
			"(SELECT "+key+" FROM (SELECT %d::bigint) k (n))", rows, count, kind, n))
	}
}

// walk moves the sweep to the page of a row.
func walk(table, row string) string {
	return fmt.Sprintf("UPDATE locksidecar.sweep SET walks = '%s', due_at = '-infinity', page = ((%s)::text::point)[0]::bigint", table, row)
}
