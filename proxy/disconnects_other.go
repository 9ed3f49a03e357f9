//go:build !linux

package proxy

// newNotifier fails: this system has no notifier, so the connections are polled.
func newNotifier() (notifier, error) { return nil, errNoNotifier }
