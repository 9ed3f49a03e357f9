package cli

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode/utf8"

	"github.com/locksidecar/locksidecar/internal/client"
)

// orNone is a foreign text for people.
func orNone(s *string) string {
	if s == nil {
		return client.None
	}
	return client.Printable(*s)
}

// alignedTable writes rows in columns. Later rows are aligned with the earlier ones, as far as they fit.
type alignedTable struct{ widths []int }

// columnGap is the space between two columns.
const columnGap = 2

func (t *alignedTable) write(w io.Writer, rows [][]string) error {
	for _, row := range rows {
		for i, cell := range row {
			if i == len(t.widths) {
				t.widths = append(t.widths, 0)
			}
			t.widths[i] = max(t.widths[i], utf8.RuneCountInString(cell))
		}
	}
	var out strings.Builder
	for _, row := range rows {
		for i, cell := range row {
			out.WriteString(cell)
			if i < len(row)-1 {
				out.WriteString(strings.Repeat(" ", t.widths[i]+columnGap-utf8.RuneCountInString(cell)))
			}
		}
		out.WriteByte('\n')
	}
	_, err := io.WriteString(w, out.String())
	return err
}

func lockColumns(wide bool) []string {
	columns := []string{"KEY", "MODE", "POD", "SESSION", "OWNER", "BIND", "HELD", "EXPIRES", "WAITING", "STOPPING"}
	if wide {
		columns = append(columns, "ACQUIRED", "INSTANCE", "DATA")
	}
	return columns
}

// lockRow is the row of a lock. A free one has no holder.
func lockRow(l *client.Lock, wide bool) []string {
	h := l.Holder
	if h == nil {
		row := []string{client.Printable(l.Key), client.Printable(l.State)}
		return append(row, slices.Repeat([]string{client.None}, len(lockColumns(wide))-len(row))...)
	}
	row := []string{
		client.Printable(l.Key), l.LockMode.String(), client.Printable(h.Pod), sessionOf(l), orNone(h.Owner),
		h.Bind(), client.Human(h.HeldMS), h.Expiry(), strconv.Itoa(l.QueueLength), l.Stopping.String(),
	}
	if wide {
		row = append(row, acquired(h), client.Printable(h.Instance), dataOf(h))
	}
	return row
}

// sessionOf is the holder's session, which has perhaps released a kept lock.
func sessionOf(l *client.Lock) string {
	session := orNone(l.Holder.Session)
	if l.Kept {
		session += ", kept"
	}
	return session
}

func acquired(h *client.Holder) string { return h.AcquiredAt.Format("2006-01-02 15:04:05.000 MST") }

func dataOf(h *client.Holder) string {
	if data := string(h.Data); data != "" && data != "null" {
		return client.Printable(data)
	}
	return client.None
}

func writeLock(l *client.Lock, w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(name, value string) { fmt.Fprintf(table, "%s\t%s\n", name, value) }
	row("key", client.Printable(l.Key))
	if l.Type != "" {
		row("type", client.Printable(l.Type))
	}
	row("state", client.Printable(l.State))
	row("mode", l.LockMode.String())
	if h := l.Holder; h != nil {
		row("pod", client.Printable(h.Pod))
		row("session", orNone(h.Session))
		row("owner", orNone(h.Owner))
		if l.Kept {
			row("kept", "yes: perhaps no session has it now")
		}
		row("bind", h.Bind())
		row("acquired", acquired(h))
		row("held for", client.Human(h.HeldMS))
		row("expires", h.Expiry())
		if data := dataOf(h); data != client.None {
			row("data", data)
		}
	}
	row("waiting", fmt.Sprint(l.QueueLength))
	row("stopping", l.Stopping.String())
	if len(l.Holders) > 0 {
		fmt.Fprintln(table, "\nTOKEN\tSLOT\tPOD\tSESSION\tOWNER\tBIND\tHELD\tEXPIRES\tSTOPPING")
	}
	for i := range l.Holders {
		h := &l.Holders[i]
		slot := client.None
		if h.Slot != nil {
			slot = strconv.Itoa(*h.Slot)
		}
		fmt.Fprintf(table, "%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", h.Token, slot, client.Printable(h.Pod), orNone(h.Session), orNone(h.Owner),
			h.Bind(), client.Human(h.HeldMS), h.Expiry(), h.Stopping)
	}
	if n := l.HoldersCount - len(l.Holders); n > 0 && l.Mode == client.ModeShared {
		fmt.Fprintf(table, "(and %d more)\n", n)
	}
	return table.Flush()
}
