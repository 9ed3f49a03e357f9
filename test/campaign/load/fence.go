package load

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Fence is what the locks protect: for each key, and each slot of a semaphore, it remembers the
// largest token that has been written, and refuses smaller ones. It lies in a file that processes share as
// memory, so it survives every one of them, and depends on nothing that is under test.
type Fence struct {
	largest []atomic.Int64
	mapped  []byte
}

// OpenFence opens the fence in that file, or makes it, for clients with that [Config.Keys].
func OpenFence(path string, keys int) (*Fence, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	size := cells(keys) * int(unsafe.Sizeof(atomic.Int64{}))
	if err := f.Truncate(int64(size)); err != nil {
		return nil, err
	}
	mapped, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("load: %s: %w", path, err)
	}
	return &Fence{largest: unsafe.Slice((*atomic.Int64)(unsafe.Pointer(&mapped[0])), cells(keys)), mapped: mapped}, nil
}

// Write writes a token, and reports whether it was accepted. It may be written again.
func (f *Fence) Write(cell int, token int64) bool {
	for largest := &f.largest[cell]; ; {
		before := largest.Load()
		if token < before {
			return false
		}
		if largest.CompareAndSwap(before, token) {
			return true
		}
	}
}

// Close ends the use of it in this process.
func (f *Fence) Close() error {
	if f.mapped == nil {
		return errors.New("load: the fence is closed")
	}
	err := unix.Munmap(f.mapped)
	f.mapped, f.largest = nil, nil
	return err
}
