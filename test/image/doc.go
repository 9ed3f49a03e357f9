// Package image tests the image of the Dockerfile: what is in it, and that it works as a
// container of a pod does. There is no container runtime: a container is a process with a
// mount namespace, a root folder and a user of its own, a volume is a folder with the modes
// that the kubelet gives it. As root, on Linux: `make test-image`.
package image
