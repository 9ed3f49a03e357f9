package pgtest

import (
	"bytes"
	"fmt"
	"os"
	"syscall"
)

// shm is the memory file system that every Linux has. In a container it may be tiny.
const shm = "/dev/shm"

// memoryNeeded is the free space that clusters need. Those of a package need up to 3 GB, and
// without space a test fails.
const memoryNeeded = 8 << 30

const tmpfs = 0x01021994 // statfs(2)

// Memory returns a folder in memory, or "" if it is too small for clusters.
func Memory() string {
	var fs syscall.Statfs_t
	if syscall.Statfs(shm, &fs) != nil || fs.Type != tmpfs || int64(fs.Bavail)*fs.Bsize < memoryNeeded || available() < memoryNeeded {
		return ""
	}
	return shm
}

// available returns the memory that the kernel can give without taking it from processes.
func available() int64 {
	text, _ := os.ReadFile("/proc/meminfo")
	_, line, _ := bytes.Cut(text, []byte("MemAvailable:"))
	var kilobytes int64
	_, _ = fmt.Sscan(string(line), &kilobytes)
	return kilobytes << 10
}
