//go:build !unix

package locksidecar

// descriptorLimit has nothing to name.
func descriptorLimit() string { return "this process has reached its limit" }
