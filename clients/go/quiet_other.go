//go:build !unix

package locksidecar

// isQuiet reports whether a connection is open, and nothing has come.
func isQuiet(k *conn) bool { return k.isQuietAfterAWait() }
