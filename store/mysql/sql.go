package mysql

import (
	_ "embed"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/locksidecar/locksidecar/store"
)

//go:embed queries.sql
var queries string

// now is the start of a statement in microseconds since 1970.
const now = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"

// statements are those of queries.sql by their names, without comments, each divided at its question marks.
var statements = parse(queries)

func parse(text string) map[string][]string {
	all := map[string][]string{}
	for part := range strings.SplitSeq(text, "-- name: ") {
		name, sql, _ := strings.Cut(part, "\n")
		var lines []string
		for line := range strings.SplitSeq(sql, "\n") {
			if line != "" && !strings.HasPrefix(line, "--") {
				lines = append(lines, line)
			}
		}
		all[name] = strings.Split(strings.ReplaceAll(strings.Join(lines, " "), "{now}", now), "?")
	}
	return all
}

// statement is one without values.
func statement(name string) string { return statements[name][0] }

// packet is a text of statements that are sent together. Its values are hexadecimal literals and numbers only.
type packet struct {
	text []byte
	// server names the server in SQL.
	server string
	// before is how many results come before COMMIT.
	before int
	// locks: the result after the guard's is that of locked records.
	locks bool
	// to are the instances that the packet writes letters to.
	to []string
	// wakes: after COMMIT, the packet wakes the first of them. One more result comes before that.
	wakes bool
	// proves: it wakes even if that is not proven yet.
	proves bool
}

// add adds a statement. The values take the places of its question marks.
func (p *packet) add(name string, values ...any) {
	if len(p.text) > 0 {
		p.text = append(p.text, ";\n"...)
	}
	p.more(name, values...)
}

// more continues a statement.
func (p *packet) more(name string, values ...any) {
	parts := statements[name]
	if len(parts) != len(values)+1 {
		panic(fmt.Sprintf("store/mysql: statement %q with %d values", name, len(values))) // every test would fail
	}
	p.text = append(p.text, ' ')
	p.part(parts[0])
	for i, value := range values {
		p.value(value)
		p.part(parts[i+1])
	}
}

// part writes a part of a statement, with the server that it names.
func (p *packet) part(text string) {
	before, after, found := strings.Cut(text, "{server}")
	for p.text = append(p.text, before...); found; p.text = append(p.text, before...) {
		p.text = append(p.text, p.server...)
		before, after, found = strings.Cut(after, "{server}")
	}
}

// ask adds a statement with a result that comes before COMMIT.
func (p *packet) ask(name string, values ...any) {
	p.add(name, values...)
	p.before++
}

// letterTo notes that the packet writes a letter.
func (p *packet) letterTo(instance string) {
	if !slices.Contains(p.to, instance) {
		p.to = append(p.to, instance)
	}
}

func (p *packet) value(value any) {
	switch v := value.(type) {
	case int:
		p.number(v)
	case int64:
		p.text = strconv.AppendInt(p.text, v, 10)
	case string:
		p.name(v)
	case []byte:
		p.hex(v)
	case store.LeaseID:
		p.hex(v[:])
	case literals:
		p.text = append(p.text, v...)
	case []string:
		list(p, v, p.name)
	case []store.LeaseID:
		list(p, v, func(id store.LeaseID) { p.hex(id[:]) })
	case []int64:
		list(p, v, func(n int64) { p.text = strconv.AppendInt(p.text, n, 10) })
	case []int:
		list(p, v, p.number)
	case [][]byte:
		list(p, v, p.hex)
	case []versioned:
		list(p, v, func(r versioned) {
			p.text = append(p.text, '(')
			p.name(r.name)
			p.text = append(strconv.AppendInt(append(p.text, ','), r.version, 10), ')')
		})
	default:
		panic(fmt.Sprintf("store/mysql: a value of type %T", value))
	}
}

// literals are a list of values as SQL has it, for lists that a packet has several times.
type literals []byte

func hexed(names []string) literals {
	p := &packet{}
	p.value(names)
	return p.text
}

// versioned is a record as a swap expects it.
type versioned struct {
	name    string
	version int64
}

// list adds values, each by a function: a value in an interface would be an allocation.
func list[T any](p *packet, values []T, add func(T)) {
	for i, value := range values {
		if i > 0 {
			p.text = append(p.text, ',')
		}
		add(value)
	}
}

func (p *packet) number(n int) { p.text = strconv.AppendInt(p.text, int64(n), 10) }

func (p *packet) name(name string) { p.hex([]byte(name)) }

func (p *packet) hex(value []byte) {
	p.text = append(hex.AppendEncode(append(p.text, "X'"...), value), '\'')
}
