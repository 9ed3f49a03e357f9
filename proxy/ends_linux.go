package proxy

import (
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// ends hears which peers have closed or half-closed their connections, whatever bytes
// stand before the end. It is an epoll of its own, which asks for nothing else: a
// connection costs one call of the kernel in all its life, and a call that waits on it
// costs nothing.
type ends struct {
	file *os.File // of the epoll; sleeps in the runtime's poller as any other
	raw  syscall.RawConn
	over chan struct{} // closed when run has returned

	mu    sync.Mutex
	last  int32
	conns map[int32]*conn // by number: that of a descriptor is soon another one's
}

// newEnds begins to listen; close must follow.
func newEnds() (*ends, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	_ = unix.SetNonblock(fd, true) // NewFile looks at it
	e := &ends{file: os.NewFile(uintptr(fd), "epoll"), over: make(chan struct{}), conns: make(map[int32]*conn)}
	if e.raw, err = e.file.SyscallConn(); err != nil {
		_ = e.file.Close()
		return nil, err
	}
	go e.run()
	return e, nil
}

// add begins to listen to a connection; its watch is told. remove must follow.
func (e *ends) add(c *conn) error {
	if c.raw == nil {
		return nil
	}
	e.mu.Lock()
	e.last++
	for e.conns[e.last] != nil { // it has come round
		e.last++
	}
	c.number = e.last
	e.conns[c.number] = c
	e.mu.Unlock()
	return control(e.raw, func(epoll int) error {
		return control(c.raw, func(fd int) error {
			event := unix.EpollEvent{Events: unix.EPOLLRDHUP | unix.EPOLLET, Fd: c.number}
			return os.NewSyscallError("epoll_ctl", unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, fd, &event))
		})
	})
}

// control calls a function with a descriptor.
func control(raw syscall.RawConn, do func(fd int) error) (err error) {
	if failed := raw.Control(func(fd uintptr) { err = do(int(fd)) }); failed != nil {
		return failed
	}
	return err
}

// remove forgets a connection. The kernel does so when it closes.
func (e *ends) remove(c *conn) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.conns, c.number)
}

// run tells the watches, until the epoll is closed.
func (e *ends) run() {
	defer close(e.over)
	var events [64]unix.EpollEvent
	_ = e.raw.Read(func(epoll uintptr) bool {
		for {
			n, err := unix.EpollWait(int(epoll), events[:], 0)
			if n <= 0 && err != unix.EINTR {
				return false // sleep until there is more
			}
			for _, event := range events[:max(n, 0)] {
				e.tell(event.Fd)
			}
		}
	})
}

func (e *ends) tell(number int32) {
	e.mu.Lock()
	c := e.conns[number]
	e.mu.Unlock()
	if c != nil {
		c.watch.hangUp()
	}
}

// close ends run. A nil one does nothing.
func (e *ends) close() {
	if e != nil {
		_ = e.file.Close()
		<-e.over
	}
}
