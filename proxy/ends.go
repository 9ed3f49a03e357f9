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

// ends hears which peers have closed or half-closed their connections, and tells their
// watches. On Linux the kernel says so. Elsewhere, and where a kernel does not keep that
// promise (that of a sandbox, perhaps), the connections are looked at: see looks.go.
type ends struct {
	log     *slog.Logger
	teller  teller     // nil: there is none
	tried   chan int32 // the numbers of tries that were told
	running sync.WaitGroup
	ctx     context.Context // ends with close
	stop    context.CancelFunc

	mu      sync.Mutex
	last    int32
	conns   map[int32]*conn // by number: that of a descriptor is soon another one's
	looking bool
}

// teller is a kernel that tells which peers have closed or half-closed.
type teller interface {
	// add begins to listen to a socket, until that is closed.
	add(raw syscall.RawConn, number int32) error
	// hear hands numbers on, until close; or it fails.
	hear(tell func(number int32)) error
	close()
}

// tryFor is how long the word of a close may take at the start. It takes microseconds, or
// does not come.
const tryFor = time.Second

// errNoTeller is why there is none where that is known, and not worth a line in the log.
var errNoTeller = errors.New("this system does not tell which connections close")

// newEnds begins to hear; close must follow.
func newEnds(log *slog.Logger, open func() (teller, error)) *ends {
	e := &ends{log: log, tried: make(chan int32, 8), conns: make(map[int32]*conn)}
	e.ctx, e.stop = context.WithCancel(context.Background())
	t, err := open()
	if err == nil {
		e.teller = t
		e.running.Go(e.hear)
		err = e.tryAll()
	}
	if err != nil {
		e.look(err)
	}
	return e
}

// tryAll tries whether the kernel tells of both ways in which a peer can go.
func (e *ends) tryAll() error {
	if err := e.try(0, halfClose); err != nil {
		return fmt.Errorf("half-close: %w", err)
	}
	if err := e.try(-1, (*os.File).Close); err != nil {
		return fmt.Errorf("close: %w", err)
	}
	return nil
}

// try lets the peer of a socket go, and waits for the word of that. No connection has the
// number of a try.
func (e *ends) try(number int32, leave func(*os.File) error) error {
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
	if err = e.teller.add(raw, number); err != nil {
		return err
	}
	if err = leave(peer); err != nil {
		return err
	}
	late := time.NewTimer(tryFor)
	defer late.Stop()
	for {
		select {
		case n := <-e.tried:
			if n == number { // and no second word of the one before
				return nil
			}
		case <-late.C:
			return fmt.Errorf("no word of it in %s", tryFor)
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

// add begins to hear of a connection; its watch is told. remove must follow.
func (e *ends) add(c *conn) {
	if c.raw == nil {
		return
	}
	e.mu.Lock()
	c.number = e.next()
	e.conns[c.number] = c
	e.mu.Unlock()
	if e.teller == nil {
		return
	}
	if err := e.teller.add(c.raw, c.number); err != nil {
		e.look(err)
	}
}

// next is a number that no connection has. e.mu is held.
func (e *ends) next() int32 {
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
func (e *ends) remove(c *conn) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.conns, c.number)
}

// hear tells the watches what the kernel tells.
func (e *ends) hear() {
	if err := e.teller.hear(e.tell); e.ctx.Err() == nil {
		e.look(err)
	}
}

func (e *ends) tell(number int32) {
	if number <= 0 {
		select {
		case e.tried <- number:
		default:
		}
		return
	}
	e.mu.Lock()
	c := e.conns[number]
	e.mu.Unlock()
	if c != nil {
		c.watch.hangUp()
	}
}

// look begins to look at the connections, because the kernel does not tell of all.
func (e *ends) look(why error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.looking {
		return
	}
	e.looking = true
	if !errors.Is(why, errNoTeller) {
		e.log.Warn("the kernel does not tell which connections close, those on which a call waits are looked at",
			"each", lookEach.String(), "error", why)
	}
	e.running.Go(e.lookOn)
}

// close ends all that. A nil one does nothing.
func (e *ends) close() {
	if e == nil {
		return
	}
	e.stop()
	if e.teller != nil {
		e.teller.close()
	}
	e.running.Wait()
}
