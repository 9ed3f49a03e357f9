package instance

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Runs is a folder in which several runs of a server note their leases, for node mode: while it is updated, two runs live. Each has a
// lock file of its own, RUN.lock, which it holds for its life, and a folder RUN with a file for each instance that may have leases. If another run can lock the
// file, the run has ended, and what it has noted may be reaped. A living run is never reaped. A run that takes one that has ended holds its lock again: the file's
// mode says so, because on a full disk nothing could be written into it.
//
// One run is current: it alone makes sockets. It is the one that took over last, or if that one has ended or resigned, the first other one that wants to make one.
// From its first take-over on, the lock file of a run has its [Place]. A run does not take over while another one lives whose locks are elsewhere.
type Runs struct{ path string }

// RunsIn are the runs that share a folder, which only their user may enter.
func RunsIn(path string) Runs { return Runs{path} }

// Run is this process's.
type Run struct {
	Runs
	name string
	lock *os.File
	// turn has room for the goroutine whose turn it is, or that waits for the turn of this run.
	turn chan struct{}
	// patience limits the wait for a turn. Another run may be frozen in its own.
	patience time.Duration
}

// Noted is what a run has noted: the instance that may have leases for a pod in a namespace.
type Noted struct {
	Pod       string `json:"pod"`
	Namespace string `json:"namespace"`
	Instance  string `json:"instance"`
}

// Place says where the locks of a run are.
type Place struct {
	// Store is the kind of the store with what divides it: the database, or the prefix of the keys.
	Store string `json:"store"`
	// Hosts are those of the store. Two lists that have a host in common are of one store.
	Hosts []string `json:"hosts"`
	// Namespaces is the map from namespaces of pods to those of their locks.
	Namespaces map[string]string `json:"namespaces"`
}

// isThatOf reports whether the locks of two runs are in one place, under the same names.
func (p Place) isThatOf(other Place) bool {
	return p.Store == other.Store && slices.ContainsFunc(p.Hosts, func(h string) bool { return slices.Contains(other.Hosts, h) }) &&
		maps.Equal(p.Namespaces, other.Namespaces)
}

func (p Place) String() string {
	text := p.Store + " at " + strings.Join(p.Hosts, ",")
	if len(p.Namespaces) > 0 {
		text += fmt.Sprintf(" with the namespaces %v", p.Namespaces)
	}
	return text
}

// ElsewhereError says that another run lives, whose locks are elsewhere.
type ElsewhereError struct {
	Run    string
	There  Place
	Wanted Place
}

// Error implements error.
func (e *ElsewhereError) Error() string {
	return fmt.Sprintf("the run %s has its locks in %s, and this one would have them in %s", e.Run, e.There, e.Wanted)
}

const (
	lockEnd = ".lock"
	// freshEnd is the name of a lock file that is not locked yet, or of a file that is not written yet. No run looks at it.
	freshEnd = ".fresh"

	// takenMode is the mode of the lock file of a run that has ended, and was taken.
	takenMode, untakenMode = 0o700, 0o600

	// turnPatience limits the wait for a turn, which takes some 100 µs, and turnPause is the pause between two looks.
	turnPatience, turnPause = 2 * time.Second, 5 * time.Millisecond
)

func (rs Runs) lockOf(run string) string { return filepath.Join(rs.path, run+lockEnd) }

// Folder is where a run has its files.
func (rs Runs) Folder(run string) string { return filepath.Join(rs.path, run) }

// Begin begins a run with a unique name. It is not current yet.
func (rs Runs) Begin(name string) (_ *Run, err error) {
	if err := os.Mkdir(rs.Folder(name), 0o700); err != nil {
		return nil, err
	}
	// The file gets its name when it is locked. Before that, another run could take it for one of a run that has ended.
	fresh := rs.lockOf(name) + freshEnd
	defer func() {
		if err != nil { // no later run would find it
			err = errors.Join(err, removeIfThere(fresh), removeIfThere(rs.Folder(name)))
		}
	}()
	lock, err := os.OpenFile(fresh, os.O_CREATE|os.O_EXCL|os.O_RDWR, untakenMode) //nolint:gosec // in the configured folder
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		err = os.Rename(fresh, rs.lockOf(name))
	}
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return &Run{Runs: rs, name: name, lock: lock, turn: make(chan struct{}, 1), patience: turnPatience}, nil
}

// Name is the run's name.
func (r *Run) Name() string { return r.name }

// ErrNoTurn: another run does not end its turn, or too many goroutines of this one wait for theirs.
var ErrNoTurn = errors.New("it is the turn of another run for too long: its process may be frozen")

// exclusive calls f while no other run does so.
func (r *Run) exclusive(f func() error) error {
	late := time.NewTimer(r.patience)
	defer late.Stop()
	select {
	case r.turn <- struct{}{}:
		defer func() { <-r.turn }()
	case <-late.C:
		return ErrNoTurn
	}
	lock, err := os.OpenFile(filepath.Join(r.path, "turn"), os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }()
	if err := flockUntil(lock, late.C); err != nil {
		return fmt.Errorf("%s: %w", lock.Name(), err)
	}
	return f()
}

func flockUntil(lock *os.File, late <-chan time.Time) error {
	for {
		err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return err
		}
		select {
		case <-late:
			return ErrNoTurn
		case <-time.After(turnPause):
		}
	}
}

func (rs Runs) currentFile() string { return filepath.Join(rs.path, "current") }

// TakeOver makes this run the current one. Error: [ElsewhereError].
func (r *Run) TakeOver(place Place) error {
	return r.exclusive(func() error {
		if err := r.checkPlace(place); err != nil {
			return err
		}
		text, err := json.Marshal(place)
		if err != nil {
			return err
		}
		if _, err := r.lock.WriteAt(text, 0); err != nil {
			return err
		}
		return r.becomeCurrent()
	})
}

// checkPlace looks for a run that lives, has taken over once, and has its locks elsewhere.
func (r *Run) checkPlace(place Place) error {
	others, err := r.Others()
	if err != nil {
		return err
	}
	for _, run := range others {
		ended, err := r.hasEnded(run)
		if err != nil {
			return fmt.Errorf("cannot see whether the run %s has ended: %w", run, err)
		}
		if ended {
			continue
		}
		text, err := os.ReadFile(r.lockOf(run))
		if errors.Is(err, fs.ErrNotExist) || err == nil && len(text) == 0 {
			continue // it has ended since, or has never served
		}
		var there Place
		if err == nil {
			err = json.Unmarshal(text, &there)
		}
		if err != nil {
			return fmt.Errorf("cannot see where the locks of the run %s are: %w", run, err)
		}
		if !there.isThatOf(place) {
			return &ElsewhereError{Run: run, There: there, Wanted: place}
		}
	}
	return nil
}

func (r *Run) becomeCurrent() error { return replaceFile(r.currentFile(), []byte(r.name)) }

// replaceFile writes a file. If that fails, as on a full disk, the file that was there stays.
func replaceFile(path string, text []byte) error {
	fresh := path + freshEnd
	if err := os.WriteFile(fresh, text, 0o600); err != nil {
		return errors.Join(err, removeIfThere(fresh))
	}
	return os.Rename(fresh, path)
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
	case info.Mode().Perm() == takenMode:
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

// Note notes that an instance may have leases, before it has any. It returns the note's name. A pod that is served again has another instance, and a note
// of its own, because the instance before may still have leases.
func (r *Run) Note(n Noted) (note string, err error) {
	text, err := json.Marshal(n)
	if err != nil {
		return "", err
	}
	note = n.Pod + "." + strings.ToLower(rand.Text()[:8])
	return note, replaceFile(filepath.Join(r.Folder(r.name), note), text)
}

// Forget records that the instance of a note has no leases any more.
func (r *Run) Forget(note string) error {
	return removeIfThere(filepath.Join(r.Folder(r.name), note))
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
	// Left is what it has noted, by the names of the notes.
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
	err = lock.Chmod(takenMode)
	e := &Ended{Name: run, runs: r.Runs, lock: lock, Left: map[string]Noted{}}
	return e, false, errors.Join(err, e.read(os.ReadFile))
}

func (e *Ended) read(readFile func(string) ([]byte, error)) error {
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
		if !entry.Type().IsRegular() || strings.HasSuffix(entry.Name(), freshEnd) { // a socket, or an unfinished file
			errs = append(errs, removeIfThere(path))
			continue
		}
		text, err := readFile(path)
		if err != nil {
			errs = append(errs, err) // it stays, and is read again
			continue
		}
		var n Noted
		if json.Unmarshal(text, &n) != nil || n.Instance == "" {
			errs = append(errs, removeIfThere(path))
			continue
		}
		e.Left[entry.Name()] = n
	}
	return errors.Join(errs...)
}

// Reaped records that the instance of a note has no leases any more.
func (e *Ended) Reaped(note string) error {
	delete(e.Left, note)
	return removeIfThere(filepath.Join(e.runs.Folder(e.Name), note))
}

// Close removes the run if nothing of it is left, and unlocks it.
func (e *Ended) Close() error {
	return errors.Join(e.runs.remove(e.Name), e.lock.Close())
}
