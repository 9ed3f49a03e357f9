package conn

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// probeTimeout limits the attempt to connect to a socket that is already at the path.
const probeTimeout = time.Second

// Socket is a listening Unix socket with the lock of its path.
type Socket struct {
	// Listener accepts the connections.
	Listener *net.UnixListener

	path string
	lock *os.File
	made fs.FileInfo // the file that was made; a later file at the path belongs to another process
	// stays: Close leaves the file, because another process may just be taking the path over.
	stays bool
	once  sync.Once
}

// Listen locks the path, removes a stale socket, and listens. The socket's mode never allows more than mode.
func Listen(ctx context.Context, path string, mode fs.FileMode) (*Socket, error) {
	f := &Socket{path: path}
	if err := f.claim(ctx, mode); err != nil {
		f.Close(slog.New(slog.DiscardHandler))
		return nil, fmt.Errorf("LOCKSIDECAR_SOCKET: %w", err)
	}
	return f, nil
}

// TakeOver listens, and takes the path over from another server, which keeps its connections. claim calls its argument if this server may do
// that now, and lets no other one do it meanwhile. The folder of the path must exist.
func TakeOver(ctx context.Context, path string, mode fs.FileMode, claim func(take func() error) error) (*Socket, error) {
	// Whatever stands in the place of an earlier name does not hold up this one.
	f := &Socket{path: filepath.Join(filepath.Dir(path), ".new-"+strings.ToLower(rand.Text()[:8])), stays: true}
	err := claim(func() error {
		if err := f.make(ctx, mode); err != nil {
			_ = removeIfThere(f.path)
			return err
		}
		if err := os.Rename(f.path, path); err != nil {
			_ = removeIfThere(f.path)
			return err
		}
		f.path = path
		return nil
	})
	if err != nil {
		f.Close(slog.New(slog.DiscardHandler))
		return nil, err
	}
	return f, nil
}

func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// IsThere reports whether the path has the file that was made.
func (f *Socket) IsThere() bool {
	now, err := os.Lstat(f.path)
	return err == nil && os.SameFile(now, f.made)
}

// IsReplaced reports whether the path has another file.
func (f *Socket) IsReplaced() bool {
	now, err := os.Lstat(f.path)
	return err == nil && !os.SameFile(now, f.made)
}

func (f *Socket) claim(ctx context.Context, mode fs.FileMode) error {
	if err := ensureFolder(filepath.Dir(f.path)); err != nil {
		return err
	}
	if err := f.lockPath(); err != nil {
		return err
	}
	if err := clearPath(ctx, f.path); err != nil {
		return err
	}
	return f.make(ctx, mode)
}

// make makes the socket's file.
func (f *Socket) make(ctx context.Context, mode fs.FileMode) error {
	if err := f.bind(ctx, mode); err != nil {
		return err
	}
	if err := setMode(f.path, mode); err != nil {
		return fmt.Errorf("cannot set the mode %04o (LOCKSIDECAR_SOCKET_MODE): %w", mode, err)
	}
	made, err := os.Lstat(f.path)
	if err != nil {
		return err
	}
	f.made = made
	return nil
}

func ensureFolder(dir string) error {
	info, err := os.Stat(dir)
	switch {
	case err == nil && !info.IsDir():
		return fmt.Errorf("%s is not a folder", dir)
	case errors.Is(err, fs.ErrNotExist):
		// Apps of other users must reach the socket, and its own mode decides. What is in somebody's home is theirs alone.
		mode := fs.FileMode(0o755)
		if home, err := os.UserHomeDir(); err == nil && filepath.Dir(dir) == home {
			mode = 0o700
		}
		if err := os.Mkdir(dir, mode); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("the folder %s does not exist and cannot be made: %w", dir, err)
		}
		return nil
	}
	return err
}

// lockPath locks the path until the process ends.
func (f *Socket) lockPath() error {
	lock, err := os.OpenFile(f.path+".lock", os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("cannot open the lock file: %w", err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = lock.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return fmt.Errorf("another sidecar serves %s (it holds %s.lock): use it, stop it, or name another socket", f.path, f.path)
		}
		return fmt.Errorf("cannot lock %s.lock: %w", f.path, err)
	}
	f.lock = lock
	return nil
}

// clearPath removes a socket that is not served, and refuses any other file.
func clearPath(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("%s exists and is not a socket; remove it or choose another path", path)
	}
	d := net.Dialer{Timeout: probeTimeout}
	nc, err := d.DialContext(ctx, "unix", path)
	switch {
	case err == nil:
		_ = nc.Close()
		return fmt.Errorf("another process serves %s", path)
	case errors.Is(err, unix.ECONNREFUSED):
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("cannot remove the stale socket: %w", err)
		}
		return nil
	case errors.Is(err, fs.ErrNotExist):
		return nil
	default:
		return fmt.Errorf("cannot find out whether another process serves %s: %w", path, err)
	}
}

// UmaskMu guards the umask, which belongs to the whole process. Code that makes other files must lock it.
var UmaskMu sync.Mutex

func (f *Socket) bind(ctx context.Context, mode fs.FileMode) error {
	UmaskMu.Lock()
	old := unix.Umask(int(0o777 &^ mode.Perm()))
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "unix", f.path)
	unix.Umask(old)
	UmaskMu.Unlock()
	if err != nil {
		return err
	}
	f.Listener = ln.(*net.UnixListener)
	f.Listener.SetUnlinkOnClose(false) // Close removes the file, if it is still the same
	return nil
}

// setMode sets the mode if the umask did not (a default ACL). It does not follow links, because another
// user of the folder could make it change any file.
func setMode(path string, mode fs.FileMode) error {
	info, err := os.Lstat(path)
	switch {
	case err != nil:
		return err
	case info.Mode().Type() != fs.ModeSocket:
		return errNotTheSocket
	case info.Mode().Perm() == mode.Perm():
		return nil
	}
	return chmodUnfollowed(path, mode)
}

var errNotTheSocket = errors.New("the socket's path now has another file")

// Close removes the socket's file if it is still the same, and unlocks the path.
func (f *Socket) Close(log *slog.Logger) {
	f.once.Do(func() {
		if f.made != nil && !f.stays {
			now, err := os.Lstat(f.path)
			if err == nil && os.SameFile(now, f.made) {
				err = os.Remove(f.path)
			}
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				log.Warn("cannot remove the socket", "socket", f.path, "error", err)
			}
		}
		if f.Listener != nil {
			_ = f.Listener.Close()
		}
		if f.lock != nil {
			_ = f.lock.Close() // this also ends the flock
		}
	})
}
