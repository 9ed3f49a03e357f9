package instance

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// file is a record's file, and what was logged about it.
type file struct {
	*testing.T
	path string
	log  bytes.Buffer
}

func newFile(t *testing.T) *file {
	t.Helper()
	return &file{T: t, path: filepath.Join(t.TempDir(), "s.instance")}
}

func (f *file) open(own string) (*Record, []string) {
	return Open(f.path, own, slog.New(slog.NewTextHandler(&f.log, nil)))
}

// finds opens the file for a run and checks which predecessors it finds.
func (f *file) finds(own string, want ...string) *Record {
	f.Helper()
	r, before := f.open(own)
	if !slices.Equal(before, want) {
		f.Fatalf("%s finds %q, want %q", own, before, want)
	}
	return r
}

func (f *file) has(want string) {
	f.Helper()
	content, err := os.ReadFile(f.path)
	if err != nil || string(content) != want {
		f.Errorf("the file has %q, %v; want %q", content, err, want)
	}
	info, err := os.Lstat(f.path)
	if err != nil || info.Mode() != 0o600 {
		f.Errorf("mode %v, %v", info.Mode(), err)
	}
	if _, err := os.Lstat(f.path + ".new"); !os.IsNotExist(err) {
		f.Errorf("left behind: %v", err)
	}
}

func (f *file) write(content string, mode os.FileMode) {
	f.Helper()
	if err := os.WriteFile(f.path, []byte(content), mode); err != nil {
		f.Fatal(err)
	}
	if err := os.Chmod(f.path, mode); err != nil {
		f.Fatal(err)
	}
}

const (
	runA = "pod-0000000a"
	runB = "pod-0000000b"
	runC = "pod-0000000c"
)

func TestNew(t *testing.T) {
	t.Parallel()
	a, err := New("pöd 1", "v1.2.3+dirty")
	if err != nil {
		t.Fatal(err)
	}
	b, _ := New("pöd 1", "v1.2.3+dirty")
	if a == b || !strings.HasPrefix(a, "pöd 1-") || !strings.HasSuffix(a, "@v1.2.3+dirty") || !isName(a) {
		t.Errorf("%q and %q", a, b)
	}
	if c, _ := New("pod", ""); strings.Contains(c, "@") || !isName(c) {
		t.Errorf("%q", c)
	}
	long, _ := New(strings.Repeat("p", 253), strings.Repeat("@", 300)) // what follows the last @ is the version
	if len(long) > maxName || strings.Count(long, "@") != 1 || !isName(long) {
		t.Errorf("%q", long)
	}
}

// Each run finds those before it that nobody has reaped.
func TestPredecessors(t *testing.T) {
	t.Parallel()
	f := newFile(t)
	f.finds(runA)
	f.has(runA + "\n")
	f.finds(runB, runA)
	f.has(runA + "\n" + runB + "\n")
	c := f.finds(runC, runA, runB)
	c.Alone()
	f.has(runC + "\n")
	c.Remove()
	c.Remove()
	f.finds(runA)
	if f.log.Len() != 0 {
		t.Errorf("logged %s", f.log.String())
	}
}

// The run before may have had another version, or none in its name.
func TestPredecessorsOfOtherVersions(t *testing.T) {
	t.Parallel()
	f := newFile(t)
	f.finds(runA + "@v1")
	f.finds(runB+"@v2", runA+"@v1")
	f.finds(runC, runA+"@v1", runB+"@v2")
}

// A folder may be a copy of another pod's, or shared: that one's sidecar may be alive.
func TestOtherPods(t *testing.T) {
	t.Parallel()
	f := newFile(t)
	f.write("pod-2-0000000a\nother-0000000a\n"+runA+"\n", 0o600)
	f.finds(runB, runA)
}

func TestGarbage(t *testing.T) {
	t.Parallel()
	f := newFile(t)
	f.write("\n"+runA+"\nnonsense\n{\"a\":1}\n\xff-0000000b\n"+strings.Repeat("x", 1000)+"-0000000c\na\x07-0000000d\n"+runA+"\n\n"+runB, 0o600)
	f.finds(runC, runA, runB)
	f.has(runA + "\n" + runB + "\n" + runC + "\n")
	if !strings.Contains(f.log.String(), "lines=5") {
		t.Errorf("logged %s", f.log.String())
	}
}

// Only what nobody else can have written says who is dead.
// Proves: threat other user
func TestForeignFiles(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(*file){
		"others may write": func(f *file) { f.write(runA+"\n", 0o622) },
		"link": func(f *file) {
			f.write(runA+"\n", 0o600)
			if err := os.Rename(f.path, f.path+".real"); err != nil {
				f.Fatal(err)
			}
			if err := os.Symlink(f.path+".real", f.path); err != nil {
				f.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFile(t)
			prepare(f)
			f.finds(runB)
			f.has(runB + "\n")
			if !strings.Contains(f.log.String(), "ignored") {
				t.Errorf("logged %s", f.log.String())
			}
		})
	}
}

// A sidecar that is started again and again does not fill the file.
func TestManyStarts(t *testing.T) {
	t.Parallel()
	f := newFile(t)
	long := strings.Repeat("p", 253)
	var last []string
	for i := range maxNames + 50 {
		own := fmt.Sprintf("%s-%08x", long, i)
		f.finds(own, last...)
		last = append(last, own)
		last = last[max(0, len(last)-maxNames):]
	}
}

func TestUnusableFile(t *testing.T) {
	t.Parallel()
	f := newFile(t)
	if err := os.Mkdir(f.path, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{f.path, filepath.Join(t.TempDir(), "missing", "s.instance")} {
		f.path = path
		f.log.Reset()
		f.finds(runA)
		if said := f.log.String(); strings.Count(said, "level=WARN") == 0 || !strings.Contains(said, "cannot record") || !strings.Contains(said, path) {
			t.Errorf("logged %s", said)
		}
	}
}

// Later on, a file that cannot be written harms nobody.
func TestLaterTrouble(t *testing.T) {
	t.Parallel()
	f := newFile(t)
	r := f.finds(runA)
	r.path = filepath.Join(f.path, "below a file")
	r.Alone()
	r.Remove()
	if n := strings.Count(f.log.String(), "level=WARN"); n != 2 {
		t.Errorf("logged %s", f.log.String())
	}
}
