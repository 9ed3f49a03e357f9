package cli

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/locksidecar/locksidecar/internal/client"
)

// Events are found, whatever a later version writes between them, and however the
// connection cuts them.
func FuzzNextEvent(f *testing.F) {
	for _, between := range []string{"", ":\n\n", "id: 7\nretry: 10\n", "event: future\ndata: {}\n\n", ":\r\n\r\nevent:x\r\n\r\n", "data\n\n"} {
		f.Add([]byte(between), `{"key":"k","token":1}`)
	}
	f.Fuzz(func(t *testing.T, between []byte, data string) {
		if strings.ContainsAny(data, "\r\n") {
			return // one line, as the sidecar writes it
		}
		// The text between ends before the next event begins.
		text := append(slices.Clone(between), fmt.Sprintf("\n\n:\n\nevent: stop\ndata: %s\n\n", data)...)
		whole, cut := namedEvents(t, bytes.NewReader(text)), namedEvents(t, iotest.OneByteReader(bytes.NewReader(text)))
		if !slices.Equal(whole, cut) {
			t.Fatalf("%q, cut into bytes %q", whole, cut)
		}
		if len(whole) == 0 || whole[len(whole)-1] != "stop "+data {
			t.Fatalf("%q of %q", whole, text)
		}
	})
}

func namedEvents(t *testing.T, r io.Reader) (found []string) {
	t.Helper()
	lines := bufio.NewReader(r)
	for {
		name, data, err := client.NextEvent(lines)
		if err != nil {
			return found
		}
		if name == "" || strings.ContainsAny(name+string(data), "\n") {
			t.Fatalf("the event %q, %q", name, data)
		}
		found = append(found, name+" "+string(data))
	}
}
