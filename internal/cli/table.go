package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"
	"time"
)

const none = "-"

// orNone is a text from elsewhere, for people.
func orNone(s *string) string {
	if s == nil {
		return none
	}
	return printable(*s)
}

func writeTable(w io.Writer, locks []json.RawMessage) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "KEY\tMODE\tPOD\tSESSION\tOWNER\tBIND\tHELD\tEXPIRES\tWAITING\tSTOPPING")
	for _, encoded := range locks {
		var lock lockView
		if err := decode(encoded, &lock); err != nil {
			return err
		}
		h := lock.Holder
		if h == nil {
			continue
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s\n", printable(lock.Key), &lock.lockMode, printable(h.Pod), orNone(h.Session), orNone(h.Owner),
			h.bind(), human(h.HeldMS), h.expiry(), lock.QueueLength, lock.Stopping)
	}
	return table.Flush()
}

func (l *lockView) write(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(name, value string) { fmt.Fprintf(table, "%s\t%s\n", name, value) }
	row("key", printable(l.Key))
	if l.Type != "" {
		row("type", printable(l.Type))
	}
	row("state", printable(l.State))
	row("mode", l.lockMode.String())
	if h := l.Holder; h != nil {
		row("pod", printable(h.Pod))
		row("session", orNone(h.Session))
		row("owner", orNone(h.Owner))
		row("bind", h.bind())
		row("acquired", h.AcquiredAt.Format("2006-01-02 15:04:05.000 MST"))
		row("held for", human(h.HeldMS))
		row("expires", h.expiry())
		if data := string(h.Data); data != "" && data != "null" {
			row("data", printable(data))
		}
	}
	row("waiting", fmt.Sprint(l.QueueLength))
	row("stopping", l.Stopping.String())
	if len(l.Holders) > 0 {
		fmt.Fprintln(table, "\nTOKEN\tSLOT\tPOD\tSESSION\tOWNER\tBIND\tHELD\tEXPIRES\tSTOPPING")
	}
	for i := range l.Holders {
		h := &l.Holders[i]
		slot := none
		if h.Slot != nil {
			slot = strconv.Itoa(*h.Slot)
		}
		fmt.Fprintf(table, "%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", h.Token, slot, printable(h.Pod), orNone(h.Session), orNone(h.Owner),
			h.bind(), human(h.HeldMS), h.expiry(), h.Stopping)
	}
	if n := l.HoldersCount - len(l.Holders); n > 0 && l.Mode == modeShared {
		fmt.Fprintf(table, "(and %d more)\n", n)
	}
	return table.Flush()
}

// String says whether the holder is asked to stop, and why; it is printable.
func (s *stopRequest) String() string {
	if s == nil {
		return none
	}
	reason := "no reason given"
	if s.Reason != nil {
		reason = printable(*s.Reason)
	}
	if s.RequestedAt.IsZero() {
		return reason
	}
	return fmt.Sprintf("%s (asked at %s)", reason, s.RequestedAt.Format(time.TimeOnly+" MST"))
}
