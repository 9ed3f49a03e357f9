// Package instance names the runs of a sidecar, and remembers which of them ran on a socket.
//
// A run that is killed or crashes leaves leases that hold its locks until they expire. Its apps have lost their
// connections, so the next run on the same socket may revoke these leases at once. For that, each run writes
// its name to a file beside the socket, which outlives a container if the socket's folder does. Only the holder
// of the socket's lock file may change it, so a name in the file belongs to a run that has ended.
package instance

import (
	"bufio"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// New names a run of the sidecar for a pod: POD-RANDOM@VERSION. Names are unique, because runs must not share leases. All holders show the name,
// so everyone sees which versions run, and no store has to keep the version apart. An empty version is left out.
func New(pod, version string) (string, error) {
	var random [4]byte
	if _, err := rand.Read(random[:]); err != nil {
		return "", fmt.Errorf("naming the instance: %w", err)
	}
	name := pod + "-" + hex.EncodeToString(random[:])
	if version != "" {
		name += "@" + strings.ReplaceAll(version[:min(len(version), maxVersion)], "@", "_")
	}
	return name, nil
}

const (
	// maxNames limits the kept names, because restarts without a store must not fill the file. The oldest are
	// removed first; their leases expire.
	maxNames = 100
	// maxVersion limits the bytes of a version in a name.
	maxVersion = 64
	// maxName and maxFile limit the bytes of a name, and of the file, that are read.
	maxName = 400
	maxFile = maxNames * (maxName + 1)
)

// sound matches the end of a valid name, after the pod: see New. The run before may have had another version.
var sound = regexp.MustCompile(`-[0-9a-f]{8}(@[^@]*)?$`)

// Record is the file with the names, one in each line.
type Record struct {
	path, own string
	log       *slog.Logger
}

// Open adds this run's name to the file at path. It returns the predecessors, which may have left leases. The file only makes
// the start after a crash faster, so if it cannot be read or written (a full disk), that is a warning. Unknown contents are, too.
func Open(path, own string, log *slog.Logger) (*Record, []string) {
	r := &Record{path: path, own: own, log: log}
	before, err := r.read()
	if err != nil {
		log.Warn("cannot read the names of the sidecars that ran here before: their leases end by themselves", "file", path, "error", err)
	}
	if err := r.write(append(slices.Clone(before), own)); err != nil {
		log.Warn("cannot record that this sidecar runs here: after a crash, its leases end by themselves", "file", path, "error", err)
	}
	return r, before
}

// Alone records that the predecessors have no leases any more.
func (r *Record) Alone() {
	if err := r.write([]string{r.own}); err != nil {
		// The only effect is that they are reaped again.
		r.log.Warn("cannot record that the leases of earlier sidecars are reaped", "file", r.path, "error", err)
	}
}

// Remove records that this run has no leases any more.
func (r *Record) Remove() {
	if err := os.Remove(r.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.log.Warn("cannot remove the file", "file", r.path, "error", err)
	}
}

func (r *Record) read() ([]string, error) {
	f, err := os.OpenFile(r.path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case errors.Is(err, unix.ELOOP):
		r.log.Warn("the file with the names of sidecars is a link, so it is ignored", "file", r.path)
		return nil, nil
	case err != nil:
		return nil, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		return nil, fmt.Errorf("%s is a folder", r.path)
	}
	if !ours(info) {
		r.log.Warn("the file with the names of sidecars is ignored, because another user may have written it", "file", r.path)
		return nil, nil
	}
	names, garbage, err := parse(io.LimitReader(f, maxFile), r.own)
	if garbage > 0 {
		r.log.Warn("lines that do not name a sidecar of this pod are ignored", "file", r.path, "lines", garbage)
	}
	return names, err
}

// ours reports a regular file that only this user can have written. Apps share the folder, and a writer of the
// file could end the locks of others.
func ours(info fs.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && info.Mode().IsRegular() && info.Mode().Perm()&0o022 == 0 && int(stat.Uid) == os.Geteuid()
}

// parse reads the names of runs for own's pod. It ignores others: the folder may be a copy, or shared with a
// machine whose sidecar runs.
func parse(in io.Reader, own string) (names []string, garbage int, err error) {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxFile+1)
	for lines.Scan() {
		switch name := lines.Text(); {
		case name == "" || slices.Contains(names, name):
		case !isName(name) || sound.ReplaceAllString(name, "") != sound.ReplaceAllString(own, ""):
			garbage++
		default:
			names = append(names, name)
		}
	}
	return names, garbage, lines.Err()
}

func isName(s string) bool {
	return len(s) <= maxName && utf8.ValidString(s) && sound.MatchString(s) && !strings.ContainsFunc(s, unicode.IsControl)
}

// write replaces the whole file, so after a crash it has either the old names or the new ones.
func (r *Record) write(names []string) error {
	names = names[max(0, len(names)-maxNames):]
	fresh := r.path + ".new"
	if err := os.Remove(fresh); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	//nolint:gosec // it is beside the configured socket
	f, err := os.OpenFile(fresh, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(strings.Join(names, "\n") + "\n")
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return errors.Join(err, os.Remove(fresh))
	}
	return os.Rename(fresh, r.path)
}
