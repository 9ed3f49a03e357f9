// Package secretfile reads files that hold secrets.
package secretfile

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
)

// maxBytes limits the size of a secret: a chain of certificates with its key is much smaller.
const maxBytes = 64 << 10

// Read reads a regular file that not every user may read. Its group may, because a Secret of Kubernetes belongs to root and to the pod's
// group. The error contains nothing of the file.
func Read(path string) ([]byte, error) {
	// O_NONBLOCK: opening a pipe does not wait for a writer.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) //nolint:gosec // the operator names the file
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a regular file", path)
	case info.Mode().Perm()&0o007 != 0:
		return nil, fmt.Errorf("every user of the machine may use %s (mode %04o); allowed: at most the owner and the group, as after chmod 640", path, info.Mode().Perm())
	}
	content, err := io.ReadAll(io.LimitReader(f, maxBytes+1))
	if err == nil && len(content) > maxBytes {
		err = errors.New(path + " has more than 64 KiB")
	}
	return content, err
}
