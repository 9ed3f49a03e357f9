//go:build unix && !linux

package pgtest

const shm = "/dev/shm"

// Memory returns "", because this system has no folder in memory.
func Memory() string { return "" }
