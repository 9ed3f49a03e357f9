// Package console uses the console in a real browser: Debian's Chromium, driven by its own protocol. It is a module
// of its own, because the sidecar needs no driver of browsers.
package console
