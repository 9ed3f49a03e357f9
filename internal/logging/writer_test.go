package logging

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// reader is standard error with somebody who reads it, or does not.
type reader struct {
	lines
	// reads is taken while nobody does.
	reads chan struct{}
	// err is why no more than a part of each write is taken.
	err  error
	part int
}

func newReader() *reader { return &reader{reads: make(chan struct{}, 1)} }

func (r *reader) Write(p []byte) (int, error) {
	r.reads <- struct{}{}
	defer func() { <-r.reads }()
	if r.err != nil {
		n, _ := r.lines.Write(p[:min(r.part, len(p))])
		return n, r.err
	}
	return r.lines.Write(p)
}

func (r *reader) hangs()  { r.reads <- struct{}{} }
func (r *reader) goesOn() { <-r.reads }

// aLine is as long as a twentieth of what may wait.
var aLine = strings.Repeat("x", maxWaiting/20)

// A writer never waits for the reader. Lost lines are counted, and the number is written in
// their place.
func TestAHungReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := newReader()
		h := New(out, withoutTimes)
		log := slog.New(h)
		log.Info("first")
		synctest.Wait()
		out.hangs()
		began := time.Now()
		log.Info("on its way")
		synctest.Wait()
		for range 40 {
			log.Info("many", "line", aLine)
		}
		log.Info("short, and after the gap began")
		if time.Since(began) != 0 || count(&out.lines, "msg=") != 1 {
			t.Fatalf("logging took %s: %s", time.Since(began), &out.lines)
		}
		out.goesOn()
		synctest.Wait()
		log.Info("last")
		synctest.Wait()
		var told []string
		for line := range strings.Lines(strings.ReplaceAll(out.String(), " line="+aLine, "")) {
			told = append(told, strings.TrimSpace(line))
		}
		many := count(&out.lines, "msg=many")
		gap := fmt.Sprintf("level=WARN msg=%q count=%d", linesLost, 41-many)
		last := told[len(told)-2:]
		if many < 15 || many > 19 || told[0] != "level=INFO msg=first" || told[1] != `level=INFO msg="on its way"` ||
			last[0] != gap || last[1] != "level=INFO msg=last" || len(told) != 4+many || h.Dropped() != int64(41-many) {
			t.Errorf("%d of 41 were kept, %d are counted as dropped, and told was:\n%s", many, h.Dropped(), strings.Join(told, "\n"))
		}
		h.Stop()
	})
}

// The end waits for the last lines, but not for a reader that hangs.
func TestStopWritesTheLastLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := newReader()
		h := New(out, withoutTimes)
		out.hangs()
		slog.New(h).Info("last")
		time.AfterFunc(lastLimit/2, out.goesOn)
		began := time.Now()
		h.Stop()
		if took := time.Since(began); took != lastLimit/2 || out.String() != "level=INFO msg=last\n" {
			t.Errorf("after %s: %q", took, &out.lines)
		}

		out = newReader()
		h = New(out, withoutTimes)
		out.hangs()
		slog.New(h).Info("never read")
		began = time.Now()
		h.Stop()
		if took := time.Since(began); took != lastLimit {
			t.Errorf("the end took %s", took)
		}
		out.goesOn() // so that no goroutine is left
	})
}

// A full disk, or a reader that has ended, costs lines; they are counted in the same way.
func TestLinesThatCannotBeWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := newReader()
		h := New(out, withoutTimes)
		out.err = errors.New("no space left")
		for range 3 {
			slog.New(h).Info("lost")
			synctest.Wait()
		}
		out.err = nil
		slog.New(h).Info("written")
		synctest.Wait()
		want := fmt.Sprintf("level=INFO msg=written\nlevel=WARN msg=%q count=3\n", linesLost)
		if out.String() != want || h.Dropped() != 3 {
			t.Errorf("%d are counted: %s", h.Dropped(), &out.lines)
		}
		h.Stop()
	})
}

// A disk that is full in the middle of a line tears it, and no other.
func TestATornLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := newReader()
		h := New(out, withoutTimes)
		out.err, out.part = errors.New("no space left"), len("level=INFO msg=to")
		slog.New(h).Info("torn")
		synctest.Wait()
		out.part = 0
		slog.New(h).Info("lost")
		synctest.Wait()
		out.err = nil
		slog.New(h).Info("whole")
		synctest.Wait()
		want := fmt.Sprintf("level=INFO msg=to\nlevel=INFO msg=whole\nlevel=WARN msg=%q count=2\n", linesLost)
		if out.String() != want || h.Dropped() != 2 {
			t.Errorf("%d are counted: %s", h.Dropped(), &out.lines)
		}
		h.Stop()
	})
}

// A line that is longer than all that may wait is lost.
func TestALineThatIsTooLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := newReader()
		h := New(out, withoutTimes)
		slog.New(h).Info("long", "line", strings.Repeat("x", maxWaiting))
		synctest.Wait()
		if want := fmt.Sprintf("level=WARN msg=%q count=1\n", linesLost); out.String() != want {
			t.Error(&out.lines)
		}
		h.Stop()
	})
}
