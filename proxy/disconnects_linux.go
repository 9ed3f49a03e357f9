package proxy

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// epoll tells which peers have closed, whatever bytes stand before the end. It asks for
// nothing else: a connection costs one call of the kernel in all its life, and a call that
// waits on it costs nothing.
type epoll struct {
	file *os.File // sleeps in the runtime's poller as any other
	raw  syscall.RawConn
}

// newNotifier opens an epoll; close must follow.
func newNotifier() (notifier, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	_ = unix.SetNonblock(fd, true) // NewFile looks at it
	p := &epoll{file: os.NewFile(uintptr(fd), "epoll")}
	if p.raw, err = p.file.SyscallConn(); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

func (p *epoll) add(raw syscall.RawConn, number int32) error {
	return control(p.raw, func(epoll int) error {
		return control(raw, func(fd int) error {
			event := unix.EpollEvent{Events: unix.EPOLLRDHUP | unix.EPOLLET, Fd: number}
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

func (p *epoll) listen(notify func(number int32)) error {
	var events [64]unix.EpollEvent
	var failed error
	err := p.raw.Read(func(epoll uintptr) bool {
		for {
			n, err := unix.EpollWait(int(epoll), events[:], 0)
			switch {
			case err == unix.EINTR:
				continue
			case err != nil:
				failed = os.NewSyscallError("epoll_wait", err)
				return true
			case n == 0:
				return false // sleep until there is more
			}
			for _, event := range events[:n] {
				notify(event.Fd)
			}
		}
	})
	if failed != nil {
		return failed
	}
	return err
}

func (p *epoll) close() { _ = p.file.Close() }
