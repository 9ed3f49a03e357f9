package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"

	"github.com/locksidecar/locksidecar/internal/client"
)

// orNone is a foreign text for people.
func orNone(s *string) string {
	if s == nil {
		return client.None
	}
	return client.Printable(*s)
}

func writeTable(w io.Writer, locks []json.RawMessage) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "KEY\tMODE\tPOD\tSESSION\tOWNER\tBIND\tHELD\tEXPIRES\tWAITING\tSTOPPING")
	for _, encoded := range locks {
		var lock client.Lock
		if err := decode(encoded, &lock); err != nil {
			return err
		}
		h := lock.Holder
		if h == nil {
			continue
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s\n", client.Printable(lock.Key), &lock.LockMode, client.Printable(h.Pod), orNone(h.Session), orNone(h.Owner),
			h.Bind(), client.Human(h.HeldMS), h.Expiry(), lock.QueueLength, lock.Stopping)
	}
	return table.Flush()
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
		row("bind", h.Bind())
		row("acquired", h.AcquiredAt.Format("2006-01-02 15:04:05.000 MST"))
		row("held for", client.Human(h.HeldMS))
		row("expires", h.Expiry())
		if data := string(h.Data); data != "" && data != "null" {
			row("data", client.Printable(data))
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
