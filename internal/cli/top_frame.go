package cli

import (
	"fmt"
	"strings"
	"time"
)

const topKeys = "q quit  s sort  r reverse  / filter  a all or this pod  space refresh  ? help"

var topHelp = []string{
	"KEY      the lock", "HOLDER   pod/session, and its owner", "AGE      for how long it is held",
	"WAITERS  how many stand in line for it", "EXPIRES  when it ends if its holder does not renew it", "",
	"s        next order: age, waiters, expiry, key, holder", "r        turn the order round",
	"/        type a part of a key or holder; Enter keeps it, Esc takes the one before, Ctrl-U empties it",
	"a        the locks of all pods, or those granted by this pod's sidecar",
	"space    ask again now", "arrows, PgUp, PgDn, Home, End   scroll", "q        quit", "", "Any key goes back.",
}

// frame returns lines that fit the terminal, without control characters. header is the table's first
// line, or -1.
func (m *topModel) frame() (lines []string, header int) {
	if m.help {
		return m.fit(append([]string{"locksidecar top", ""}, topHelp...)), -1
	}
	lines = m.head()
	header = len(lines)
	title, rows := m.table(m.columns, m.offset, m.offset+m.page())
	lines = append(append(lines, title), rows...)
	for len(lines) < m.lines-1 {
		lines = append(lines, "")
	}
	lines = m.fit(append(lines, m.foot()))
	if header >= len(lines) {
		header = -1
	}
	return lines, header
}

func (m *topModel) fit(lines []string) []string {
	lines = lines[:min(len(lines), max(m.lines, 0))]
	for i := range lines {
		lines[i] = cut(lines[i], m.columns)
	}
	return lines
}

func (m *topModel) foot() string {
	if m.typing {
		return "filter: " + printable(m.filter) + "_  (Enter, Esc)"
	}
	to := min(m.offset+m.page(), len(m.shown))
	if len(m.shown) > m.page() {
		return fmt.Sprintf("%d-%d of %d  %s", m.offset+1, to, len(m.shown), topKeys)
	}
	return topKeys
}

// The widths of the columns that hold numbers, and the space between columns.
const (
	ageWidth     = 7
	waitersWidth = 7
	expiresWidth = 7
	columnGap    = 2
)

func (m *topModel) table(columns, from, to int) (header string, rows []string) {
	room := max(columns-ageWidth-waitersWidth-expiresWidth-4*columnGap, 0)
	keys, holders := max(m.keyWidth, len("KEY")), max(m.holderWidth, len("HOLDER"))
	if keys+holders > room { // a long key may use two thirds, or all that the holders leave
		holders = min(holders, max(room/3, room-keys))
		keys = room - holders
	}
	gap := strings.Repeat(" ", columnGap)
	row := func(key, holder, age, waiters, expires string) string {
		return pad(key, keys) + gap + pad(holder, holders) + gap + fmt.Sprintf("%*s%s%*s%s%*s",
			ageWidth, age, gap, waitersWidth, waiters, gap, expiresWidth, expires)
	}
	to = min(to, len(m.shown))
	for i := min(from, to); i < to; i++ {
		t := &m.shown[i]
		rows = append(rows, row(t.keyText, t.holder, short(t.age), fmt.Sprint(t.waiters), short(t.expires)))
	}
	return row("KEY", "HOLDER", "AGE", "WAITERS", "EXPIRES"), rows
}

// plain is the whole view if the output is no terminal: all lines, in full width.
func (m *topModel) plain() string {
	title, rows := m.table(m.keyWidth+m.holderWidth+1000, 0, len(m.shown))
	return strings.Join(append(append(m.head(), title), rows...), "\n") + "\n"
}

// short writes a duration in at most seven columns: two units are enough.
func short(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d < 0:
		return "-" + short(min(-d, 9*time.Hour))
	case d < time.Second:
		return fmt.Sprintf("%dms", d.Milliseconds())
	case d < time.Minute:
		return fmt.Sprintf("%.1fs", d.Truncate(100*time.Millisecond).Seconds())
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", d/time.Minute, d%time.Minute/time.Second)
	case d < day:
		return fmt.Sprintf("%dh%02dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%dd%02dh", d/day, d%day/time.Hour)
}
