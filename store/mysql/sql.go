package mysql

import (
	_ "embed"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"github.com/locksidecar/locksidecar/store"
)

//go:embed queries.sql
var queries string

// now is the start of a statement in microseconds since 1970.
const now = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"

// statements are those of queries.sql by their names, without comments.
var statements = parse(queries)

func parse(text string) map[string]string {
	all := map[string]string{}
	for part := range strings.SplitSeq(text, "-- name: ") {
		name, sql, _ := strings.Cut(part, "\n")
		var lines []string
		for line := range strings.SplitSeq(sql, "\n") {
			if line != "" && !strings.HasPrefix(line, "--") {
				lines = append(lines, line)
			}
		}
		all[name] = strings.ReplaceAll(strings.Join(lines, " "), "{now}", now)
	}
	return all
}

// packet is a text of statements that are sent together. Its values are hexadecimal literals and numbers only.
type packet struct {
	text strings.Builder
	// server names the server in SQL.
	server string
	// before is how many results come before COMMIT.
	before int
	// locks: the result after the guard's is that of locked records.
	locks bool
}

// add adds a statement. The values take the places of its question marks.
func (p *packet) add(name string, values ...any) {
	if p.text.Len() > 0 {
		p.text.WriteString(";\n")
	}
	p.more(name, values...)
}

// more continues a statement.
func (p *packet) more(name string, values ...any) {
	sql, found := statements[name]
	if !found || strings.Count(sql, "?") != len(values) {
		panic(fmt.Sprintf("store/mysql: statement %q with %d values", name, len(values))) // every test would fail
	}
	p.text.WriteByte(' ')
	for _, value := range values {
		before, rest, _ := strings.Cut(sql, "?")
		p.text.WriteString(strings.ReplaceAll(before, "{server}", p.server))
		p.value(value)
		sql = rest
	}
	p.text.WriteString(strings.ReplaceAll(sql, "{server}", p.server))
}

// ask adds a statement with a result that comes before COMMIT.
func (p *packet) ask(name string, values ...any) {
	p.add(name, values...)
	p.before++
}

func (p *packet) value(value any) {
	switch v := value.(type) {
	case int:
		p.text.WriteString(strconv.Itoa(v))
	case int64:
		p.text.WriteString(strconv.FormatInt(v, 10))
	case string:
		p.hex([]byte(v))
	case []byte:
		p.hex(v)
	case store.LeaseID:
		p.hex(v[:])
	case literals:
		p.text.WriteString(string(v))
	case []string:
		list(p, v)
	case []store.LeaseID:
		list(p, v)
	case []int64:
		list(p, v)
	case []int:
		list(p, v)
	case [][]byte:
		list(p, v)
	case []versioned:
		list(p, v)
	case versioned:
		p.text.WriteByte('(')
		p.value(v.name)
		p.text.WriteByte(',')
		p.value(v.version)
		p.text.WriteByte(')')
	default:
		panic(fmt.Sprintf("store/mysql: a value of type %T", value))
	}
}

// literals are a list of values as SQL has it, for lists that a packet has several times.
type literals string

func hexed(names []string) literals {
	p := &packet{}
	p.value(names)
	return literals(p.text.String())
}

// versioned is a record as a swap expects it.
type versioned struct {
	name    string
	version int64
}

func list[T any](p *packet, values []T) {
	for i := range values {
		if i > 0 {
			p.text.WriteByte(',')
		}
		p.value(values[i])
	}
}

func (p *packet) hex(value []byte) {
	p.text.Grow(len(value)*2 + 3)
	p.text.WriteString("X'")
	_, _ = hex.NewEncoder(&p.text).Write(value)
	p.text.WriteByte('\'')
}
