//go:build unix && !linux

package pgtest

const shm = "/dev/shm"

// memory returns "", because this system has no folder in memory.
func memory() string { return "" }
