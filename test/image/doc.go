// Package image tests the image of the Dockerfile: what is in it, and that it works as a
// container of a pod does. It needs no container runtime, so it runs for each change: a container
// is a process with a mount namespace, a root folder and a user of its own, a volume is a folder
// with the modes that the kubelet gives it. test/node has a real kubelet, and runs each night. As
// root, on Linux: `make test-image`.
package image
