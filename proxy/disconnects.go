package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// disconnects learns which peers have closed or half-closed their connections, and tells their
// watches. On Linux the kernel says so. Elsewhere, and where a kernel does not keep that
// promise (that of a sandbox, perhaps), the connections are looked at: see polls.go.
type disconnects struct {
	log      *slog.Logger
	notifier notifier   // nil: there is none
	tested   chan int32 // the numbers of tries that were told
	running  sync.WaitGroup
	ctx      context.Context // ends with close
	stop     context.CancelFunc

	mu      sync.Mutex
	last    int32
	conns   map[int32]*conn // by number: that of a descriptor is soon another one's
	polling bool
}

// notifier is a kernel that tells which peers have closed or half-closed.
type notifier interface {
	// add begins to listen to a socket, until that is closed.
	add(raw syscall.RawConn, number int32) error
	// listen passes numbers on, until close; or it fails.
	listen(tell func(number int32)) error
	close()
}

// selfTestTimeout is how long the word of a close may take at the start. It takes microseconds, or
// does not come.
const selfTestTimeout = time.Second

// errNoNotifier is why there is none where that is known, and not worth a line in the log.
var errNoNotifier = errors.New("this system does not tell which connections close")

// newDisconnects begins to listen; close must follow.
func newDisconnects(log *slog.Logger, open func() (notifier, error)) *disconnects {
	e := &disconnects{log: log, tested: make(chan int32, 8), conns: make(map[int32]*conn)}
	e.ctx, e.stop = context.WithCancel(context.Background())
	t, err := open()
	if err == nil {
		e.notifier = t
		e.running.Go(e.listen)
		err = e.selfTest()
	}
	if err != nil {
		e.startPolling(err)
	}
	return e
}

// selfTest tries whether the kernel tells of both ways in which a peer can go.
func (e *disconnects) selfTest() error {
	if err := e.testOne(0, halfClose); err != nil {
		return fmt.Errorf("half-close: %w", err)
	}
	if err := e.testOne(-1, (*os.File).Close); err != nil {
		return fmt.Errorf("close: %w", err)
	}
	return nil
}

// try lets the peer of a socket go, and waits for the word of that. No connection has the
// number of a try.
func (e *disconnects) testOne(number int32, leave func(*os.File) error) error {
	ours, peer, err := pair()
	if err != nil {
		return err
	}
	defer func() {
		_ = ours.Close()
		_ = peer.Close()
	}()
	raw, err := ours.SyscallConn()
	if err != nil {
		return err
	}
	if err = e.notifier.add(raw, number); err != nil {
		return err
	}
	if err = leave(peer); err != nil {
		return err
	}
	late := time.NewTimer(selfTestTimeout)
	defer late.Stop()
	for {
		select {
		case n := <-e.tested:
			if n == number { // and no second word of the one before
				return nil
			}
		case <-late.C:
			return fmt.Errorf("no word of it in %s", selfTestTimeout)
		}
	}
}

func halfClose(f *os.File) error {
	return os.NewSyscallError("shutdown", unix.Shutdown(int(f.Fd()), unix.SHUT_WR))
}

// pair is the two ends of a socket.
func pair() (ours, peer *os.File, err error) {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	for _, fd := range fds {
		unix.CloseOnExec(fd)
	}
	return os.NewFile(uintptr(fds[0]), "socketpair"), os.NewFile(uintptr(fds[1]), "socketpair"), nil
}

// add registers a connection, and its watch is notified. remove must follow.
func (e *disconnects) add(c *conn) {
	if c.raw == nil {
		return
	}
	e.mu.Lock()
	c.number = e.next()
	e.conns[c.number] = c
	e.mu.Unlock()
	if e.notifier == nil {
		return
	}
	if err := e.notifier.add(c.raw, c.number); err != nil {
		e.startPolling(err)
	}
}

// next is a number that no connection has. e.mu is held.
func (e *disconnects) next() int32 {
	for {
		if e.last == math.MaxInt32 { // it comes round
			e.last = 0
		}
		if e.last++; e.conns[e.last] == nil {
			return e.last
		}
	}
}

// remove forgets a connection.
func (e *disconnects) remove(c *conn) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.conns, c.number)
}

// listen notifies the watches of what the kernel reports.
func (e *disconnects) listen() {
	if err := e.notifier.listen(e.notify); e.ctx.Err() == nil {
		e.startPolling(err)
	}
}

func (e *disconnects) notify(number int32) {
	if number <= 0 {
		select {
		case e.tested <- number:
		default:
		}
		return
	}
	e.mu.Lock()
	c := e.conns[number]
	e.mu.Unlock()
	if c != nil {
		c.watch.peerClosed()
	}
}

// startPolling begins to look at the connections, because the kernel does not tell of all.
func (e *disconnects) startPolling(why error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.polling {
		return
	}
	e.polling = true
	if !errors.Is(why, errNoNotifier) {
		e.log.Warn("the kernel does not report closed connections: connections with a waiting call are polled",
			"interval", pollInterval.String(), "error", why)
	}
	e.running.Go(e.poll)
}

// close ends all that. A nil one does nothing.
func (e *disconnects) close() {
	if e == nil {
		return
	}
	e.stop()
	if e.notifier != nil {
		e.notifier.close()
	}
	e.running.Wait()
}
