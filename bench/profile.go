package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// profiled is a load under which the sidecar is profiled.
type profiled struct {
	goal, what  string
	column      string // of the first table
	operation   string
	connections int
	sidecars    int
	memory      bool // instead of PostgreSQL
	keep        bool // keys that were released
	traced      bool // every call
}

var profiles = []profiled{
	{goal: "P1", column: "P1, 64", what: "acquire+release on `memory://`, 64 connections", operation: "pair", connections: 64, sidecars: 1, memory: true},
	{goal: "overhead", column: "traced, 64", what: "acquire+release on `memory://`, 64 connections, every call traced", operation: "pair", connections: 64, sidecars: 1, memory: true, traced: true},
	{goal: "P2", column: "P2, 64", what: "acquire+release on PostgreSQL, 64 connections", operation: "pair", connections: 64, sidecars: 1},
	{goal: "P2", column: "P2, 1024", what: "acquire+release on PostgreSQL, 1024 connections", operation: "pair", connections: 1024, sidecars: 1},
	{goal: "P3", column: "P3, 1", what: "acquire+release on PostgreSQL, one connection", operation: "pair", connections: 1, sidecars: 1},
	{goal: "P6", column: "P6, hand-offs", what: "a lock to and fro between two clients behind two sidecars: hand-offs, where the other asks before the release has ended", operation: "hot", connections: 2, sidecars: 2},
	{goal: "P12", column: "P12b, 64", what: "64 connections, a kept key each", operation: "pair", connections: 64, sidecars: 1, keep: true},
	{goal: "P12", column: "P12e, near", what: "1,000 keys, 4 sidecars, nine of ten acquires in the pod that had the key", operation: "near", connections: 64, sidecars: 4, keep: true},
}

const (
	// profileLength is how many measurements long a profile is: at 100 samples a second,
	// one would say little.
	profileLength = 6
	// profileLines is how many lines of sites, waits and statements are shown.
	profileLines = 12
)

// profile measures what a call costs, part by part, and writes bench/PROFILE.md.
func (b *bench) profile() error {
	b.binary = filepath.Join(b.folder, "locksidecar-profiled")
	if err := b.buildIn(".", b.binary, "bench/profiled"); err != nil {
		return err
	}
	long := *b
	long.length *= profileLength
	var (
		text   strings.Builder
		budget budget
	)
	for i, p := range profiles {
		if !b.chosen(p.goal) {
			continue
		}
		if err := p.measure(&long, fmt.Sprintf("profile%d", i), &budget, &text); err != nil {
			return fmt.Errorf("%s: %w", p.goal, err)
		}
	}
	said := budget.table() + text.String()
	fmt.Println(said)
	if !b.write {
		return nil
	}
	head := fmt.Sprintf("# Where the time goes\n\nMeasured %s by `go run ./bench -profile -write`; what it means: [LIMITS.md](LIMITS.md).\n\n"+
		"Machine: %s\n\nParts are shares of the sidecar's CPU profile, times the processor time an operation that the kernel counted (both sidecars' for P6). "+
		"Waits are added up over all goroutines: with many connections most of them wait at any time. "+
		"A statement's time is PostgreSQL's own, without its commit.\n",
		time.Now().UTC().Format("2006-01-02"), b.machine)
	return os.WriteFile("bench/PROFILE.md", []byte(head+said), 0o644)
}

// measure runs the load and tells what was seen.
func (p *profiled) measure(b *bench, name string, all *budget, text *strings.Builder) error {
	url, c := "memory://", (*counter)(nil)
	if !p.memory {
		cluster, made, err := b.database()
		if err != nil {
			return err
		}
		defer cluster.Stop()
		url = made
		if c, err = b.counter(url); err != nil {
			return err
		}
		defer c.close()
	}
	folders := make([]string, p.sidecars)
	sidecars := make([]*process, 0, p.sidecars)
	stop := func() {
		for _, s := range sidecars {
			s.stop()
		}
		sidecars = nil
	}
	defer stop()
	keep := "KEEP=0"
	if p.keep {
		keep = keepFor
	}
	collector, err := collect()
	if err != nil {
		return err
	}
	defer collector.close()
	for i := range folders {
		folders[i] = filepath.Join(b.folder, fmt.Sprintf("%s-%d", name, i))
		if err := os.Mkdir(folders[i], 0o700); err != nil {
			return err
		}
		env := []string{"PROFILE_FOLDER=" + folders[i]}
		if p.traced {
			env = append(env, collector.env(name)...)
		}
		s, err := b.sidecarOf(b.binary, fmt.Sprintf("%s-%d", name, i), env, "STORE_URL="+url, keep)
		if err != nil {
			return err
		}
		sidecars = append(sidecars, s)
	}
	r, statements, err := p.run(b, c, sidecars)
	if err != nil {
		return err
	}
	stop() // which writes the profiles
	b.log.Printf("profile %s, %s: %.0f/s, %s", p.goal, p.what, r.rate(), runs{r.run}.cost())
	fmt.Fprintf(text, "\n## %s: %s\n\n%.0f a second, %s; median %.0f µs.", p.goal, p.what, r.rate(), runs{r.run}.cost(), float64(r.Median.Nanoseconds())/1000)
	if c != nil {
		fmt.Fprintf(text, " PostgreSQL's processor time: %.1f µs each; WAL: %.0f bytes each.", r.each(r.database), r.perOperation(r.wal))
	}
	text.WriteString("\n")
	if err := p.tell(b, folders, r, all, text); err != nil {
		return err
	}
	tellStatements(statements, r, text)
	return nil
}

// run loads, and counts where there is a database.
func (p *profiled) run(b *bench, c *counter, sidecars []*process) (r loaded, statements []statement, err error) {
	if c != nil {
		if r, err = b.loaded(c, p.operation, p.connections, sidecars...); err != nil {
			return r, nil, err
		}
		statements, err = c.statements()
		return r, statements, err
	}
	r.run, err = b.once(p.operation, p.connections, sidecars...)
	return r, nil, err
}

// tell folds the profiles.
func (p *profiled) tell(b *bench, folders []string, r loaded, all *budget, text *strings.Builder) error {
	read := func(name, index, unit string) (all []sample, err error) {
		for _, folder := range folders {
			more, e := readProfile(b.ctx, filepath.Join(folder, name), index, unit)
			all, err = append(all, more...), errors.Join(err, e)
		}
		return all, err
	}
	cpu, err := read("cpu", "cpu", "us")
	if err != nil {
		return err
	}
	parts, total := fold(cpu, partOf)
	for i := range parts {
		parts[i].value *= r.each(r.server) / total
	}
	all.note(p.column, parts, share{"**the sidecar**", r.each(r.server)}, share{"PostgreSQL", r.each(r.database)}, share{"the load itself", r.each(r.CPU)})
	for _, kind := range []struct {
		file, index, unit, title, column string
		counts                           func(stack []string) bool
	}{
		{"allocs", "alloc_space", "B", "Bytes allocated, without those of the start", "bytes each, about", func(stack []string) bool {
			return !has(stack, "runtime.main ") && !has(stack, "github.com/pressly/goose/")
		}},
		{"mutex", "delay", "us", "Waits for a mutex", "µs each, about", func([]string) bool { return true }},
		// Else those would come first that wait all the time for something that never comes.
		{"block", "delay", "us", "Other waits of who serves a call", "µs each, about", func(stack []string) bool { return has(stack, ours+"proxy.") || has(stack, ours+"batcher.") }},
	} {
		samples, err := read(kind.file, kind.index, kind.unit)
		if err != nil {
			return err
		}
		samples = slices.DeleteFunc(samples, func(s sample) bool { return !kind.counts(s.stack) })
		sites, total := fold(samples, siteOf)
		scale := p.scale(cpu, r.run)
		fmt.Fprintf(text, "\n%s: %.1f %s.\n\n| where | %s | share |\n|---|--:|--:|\n", kind.title, total*scale, kind.column, kind.column)
		for _, s := range sites[:min(len(sites), profileLines)] {
			fmt.Fprintf(text, "| `%s` | %.1f | %.0f%% |\n", s.name, s.value*scale, s.value/total*100)
		}
	}
	return nil
}

// has tells whether a frame begins so.
func has(stack []string, begin string) bool {
	return slices.ContainsFunc(stack, func(frame string) bool { return strings.HasPrefix(frame, begin) })
}

// scale divides by the operations of the whole run, of which only the last part was
// counted: as many as fit into the profile's processor time.
func (p *profiled) scale(cpu []sample, r run) float64 {
	_, total := fold(cpu, partOf)
	return r.each(r.server) / max(total, 1)
}

// tellStatements says what PostgreSQL executed.
func tellStatements(statements []statement, r loaded, text *strings.Builder) {
	if len(statements) == 0 {
		return
	}
	text.WriteString("\n| statement | calls each | rows a call | mean time (µs) | WAL bytes a call |\n|---|--:|--:|--:|--:|\n")
	for _, s := range statements[:min(len(statements), profileLines)] {
		fmt.Fprintf(text, "| %s | %.4f | %.1f | %.1f | %.0f |\n", strings.ReplaceAll(s.kind, "|", "\\|"), float64(s.calls)/float64(max(r.Operations, 1)), s.rows, s.mean, s.wal)
	}
}

// statement is what PostgreSQL tells of one kind of statement.
type statement struct {
	kind      string
	calls     int64
	rows      float64 // a call
	mean, wal float64 // microseconds and bytes a call
}

// statements are those that took most of the time.
func (c *counter) statements() (all []statement, err error) {
	rows, err := c.db.Query(c.ctx, mine+`
		SELECT coalesce(substring(query FROM 'locksidecar:([a-z_0-9]+)'), left(query, 40)) AS kind, sum(calls)::bigint,
			(sum(rows) / sum(calls))::float8, 1000 * sum(total_exec_time) / sum(calls), (sum(wal_bytes) / sum(calls))::float8
		FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid
		WHERE d.datname = current_database() AND NOT starts_with(query, $1) GROUP BY kind ORDER BY sum(total_exec_time) DESC`, mine)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var s statement
		if err := rows.Scan(&s.kind, &s.calls, &s.rows, &s.mean, &s.wal); err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	return slices.Clip(all), rows.Err()
}
