package instance

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Runs is a folder in which several runs of a server note their leases, for node mode: while it is updated, two runs live. Each has a
// lock file of its own, RUN.lock, which it holds for its life, and a folder RUN with a file for each pod that it serves. If another run can lock the
// file, the run has ended, and what it has noted may be reaped. A living run is never reaped. A lock file is empty until a run has taken it
// over from one that has ended: then it says so, because its lock is held again.
//
// One run is current: it alone makes sockets. It is the one that took over last, or if that one has ended or resigned, the first other one that wants to make one.
type Runs struct{ path string }

// RunsIn are the runs that share a folder, which only their user may enter.
func RunsIn(path string) Runs { return Runs{path} }

// Run is this process's.
type Run struct {
	Runs
	name string
	lock *os.File
	// turn lets one goroutine at a time wait for the other runs, because each takes a thread.
	turn sync.Mutex
}

// Noted is what a run has noted for a pod: the instance that may have leases in a namespace.
type Noted struct {
	Namespace string `json:"namespace"`
	Instance  string `json:"instance"`
}

const (
	lockEnd = ".lock"
	// freshEnd is the name of a lock file that is not locked yet. No run looks at it.
	freshEnd = ".fresh"
)

func (rs Runs) lockOf(run string) string { return filepath.Join(rs.path, run+lockEnd) }

// Folder is where a run has its files.
func (rs Runs) Folder(run string) string { return filepath.Join(rs.path, run) }

// Begin begins a run with a unique name. It is not current yet.
func (rs Runs) Begin(name string) (*Run, error) {
	if err := os.Mkdir(rs.Folder(name), 0o700); err != nil {
		return nil, err
	}
	// The file gets its name when it is locked. Before that, another run could take it for one of a run that has ended.
	fresh := rs.lockOf(name) + freshEnd
	lock, err := os.OpenFile(fresh, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600) //nolint:gosec // in the configured folder
	if err != nil {
		return nil, err
	}
	r := &Run{Runs: rs, name: name, lock: lock}
	if err := errors.Join(unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB), os.Rename(fresh, rs.lockOf(name))); err != nil {
		_ = lock.Close()
		return nil, err
	}
	return r, nil
}

// Name is the run's name.
func (r *Run) Name() string { return r.name }

// exclusive calls f while no other run does so.
func (r *Run) exclusive(f func() error) error {
	r.turn.Lock()
	defer r.turn.Unlock()
	lock, err := os.OpenFile(filepath.Join(r.path, "turn"), os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }()
	if err := flockPatiently(lock); err != nil {
		return fmt.Errorf("cannot lock %s: %w", lock.Name(), err)
	}
	return f()
}

func flockPatiently(lock *os.File) error {
	for {
		if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func (rs Runs) currentFile() string { return filepath.Join(rs.path, "current") }

// TakeOver makes this run the current one.
func (r *Run) TakeOver() error {
	return r.exclusive(r.becomeCurrent)
}

func (r *Run) becomeCurrent() error {
	fresh := r.currentFile() + freshEnd
	return errors.Join(os.WriteFile(fresh, []byte(r.name), 0o600), os.Rename(fresh, r.currentFile()))
}

// Resign lets another run become the current one, because this one is being stopped.
func (r *Run) Resign() error {
	return r.exclusive(func() error {
		if name, err := os.ReadFile(r.currentFile()); err != nil || string(name) != r.name {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return err
		}
		return removeIfThere(r.currentFile())
	})
}

// hasEnded reports whether a run has ended.
func (r *Run) hasEnded(run string) (bool, error) {
	lock, err := r.lockEnded(run)
	if lock != nil {
		_ = lock.Close()
	}
	switch {
	case err == nil, errors.Is(err, errTaken), errors.Is(err, fs.ErrNotExist):
		return true, nil
	case errors.Is(err, errLives):
		return false, nil
	}
	return false, err
}

// Why no lock of an ended run can be had.
var (
	errLives = errors.New("the run lives")
	// errTaken: it has ended, and another process has taken it, or this one.
	errTaken = errors.New("the run is taken")
)

// takenMark is the content of the lock file of a run that has ended, and was taken.
const takenMark = "ended"

// lockEnded locks the file of a run that has ended. Errors: errLives, errTaken, [fs.ErrNotExist].
func (rs Runs) lockEnded(run string) (*os.File, error) {
	lock, err := os.OpenFile(rs.lockOf(run), os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		return lock, nil
	}
	defer func() { _ = lock.Close() }()
	if !errors.Is(err, unix.EWOULDBLOCK) {
		return nil, fmt.Errorf("cannot lock %s: %w", lock.Name(), err)
	}
	switch info, err := lock.Stat(); {
	case err != nil:
		return nil, err
	case info.Size() > 0:
		return nil, errTaken
	}
	return nil, errLives
}

// ErrNotCurrent: a later run is the current one.
var ErrNotCurrent = errors.New("a later run makes the sockets")

// IfCurrent calls f if this run is the current one. No other run takes over meanwhile, so f must be short.
func (r *Run) IfCurrent(f func() error) error {
	return r.exclusive(func() error {
		name, err := os.ReadFile(r.currentFile())
		switch {
		case errors.Is(err, fs.ErrNotExist): // the current one has resigned
			if err := r.becomeCurrent(); err != nil {
				return err
			}
		case err != nil:
			return err
		case string(name) != r.name:
			ended, err := r.hasEnded(string(name))
			if err != nil {
				return fmt.Errorf("cannot see whether the current run %s has ended: %w", name, err)
			}
			if !ended {
				return ErrNotCurrent
			}
			if err := r.becomeCurrent(); err != nil {
				return err
			}
		}
		return f()
	})
}

// Note notes that an instance may have leases, before it has any.
func (r *Run) Note(pod string, n Noted) error {
	text, err := json.Marshal(n)
	if err != nil {
		return err
	}
	path := filepath.Join(r.Folder(r.name), pod)
	return errors.Join(os.WriteFile(path+freshEnd, text, 0o600), os.Rename(path+freshEnd, path))
}

// Forget records that the instance of a pod has no leases any more.
func (r *Run) Forget(pod string) error {
	return removeIfThere(filepath.Join(r.Folder(r.name), pod))
}

// Others lists the other runs, the living and those that have ended.
func (r *Run) Others() ([]string, error) {
	entries, err := os.ReadDir(r.path)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), lockEnd); ok && name != r.name {
			names = append(names, name)
		}
	}
	return names, nil
}

// End ends the run. What it has noted and not forgotten is left to the next run.
func (r *Run) End() error {
	err := r.remove(r.name)
	return errors.Join(err, r.lock.Close())
}

// remove removes a run's files, if it has noted nothing. The caller holds its lock.
func (rs Runs) remove(run string) error {
	err := os.Remove(rs.Folder(run))
	switch {
	case errors.Is(err, unix.ENOTEMPTY), errors.Is(err, unix.EEXIST):
		return nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	}
	return removeIfThere(rs.lockOf(run))
}

func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Ended is a run that has ended. This process holds its lock, so no other one reaps it.
type Ended struct {
	Name string

	runs Runs
	lock *os.File
	// Left is what it has noted, by pod.
	Left map[string]Noted
}

// Take locks another run that has ended, and returns what it has left; nil if it lives, or was taken, or has ended and left nothing.
func (r *Run) Take(run string) (left *Ended, lives bool, err error) {
	lock, err := r.lockEnded(run)
	switch {
	case errors.Is(err, errLives):
		return nil, true, nil
	case errors.Is(err, errTaken), errors.Is(err, fs.ErrNotExist):
		return nil, false, nil
	case err != nil:
		return nil, false, err
	}
	_, err = lock.WriteAt([]byte(takenMark), 0)
	e := &Ended{Name: run, runs: r.Runs, lock: lock, Left: map[string]Noted{}}
	return e, false, errors.Join(err, e.read())
}

func (e *Ended) read() error {
	entries, err := os.ReadDir(e.runs.Folder(e.Name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, entry := range entries {
		path := filepath.Join(e.runs.Folder(e.Name), entry.Name())
		var n Noted
		text, err := os.ReadFile(path) //nolint:gosec // in the configured folder
		if err == nil {
			err = json.Unmarshal(text, &n)
		}
		if !entry.Type().IsRegular() || strings.HasSuffix(entry.Name(), freshEnd) || err != nil || n.Instance == "" {
			errs = append(errs, removeIfThere(path)) // a socket, or an unfinished file
			continue
		}
		e.Left[entry.Name()] = n
	}
	return errors.Join(errs...)
}

// Reaped records that what the run has noted for a pod has no leases any more.
func (e *Ended) Reaped(pod string) error {
	delete(e.Left, pod)
	return removeIfThere(filepath.Join(e.runs.Folder(e.Name), pod))
}

// Close removes the run if nothing of it is left, and unlocks it.
func (e *Ended) Close() error {
	return errors.Join(e.runs.remove(e.Name), e.lock.Close())
}
