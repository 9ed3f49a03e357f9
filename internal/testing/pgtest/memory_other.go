//go:build unix && !linux

package pgtest

const shm = "/dev/shm"

// memory is a folder in memory, which this system has not.
func memory() string { return "" }
