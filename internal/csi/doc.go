// Package csi is the volume plugin of node mode: the command `locksidecar csi`. It gives each pod that asks for it a folder, in which
// `locksidecar node` listens for that pod alone.
//
// It serves what a kubelet needs for an ephemeral inline volume: the registration of plugins, and CSI's Identity and Node services,
// all on one socket in the kubelet's folder of registrations. It is root, and may mount. So it does little, talks to no app,
// has no password, and reads nothing that an app or a server can write.
//
// # A publish
//
//  1. The request is checked: a pod's volume in the kubelet's own form, with the pod's names.
//  2. The description is written. A server sees it, and makes the socket. See package hostfolder.
//  3. The plugin waits until somebody listens at the socket, so an app starts when it can call, as with a sidecar. A server waits a while for its store
//     before it listens. If it does not come in time, the call fails, the kubelet tries again, and the pod's events say why.
//  4. The pod's folder is mounted at the target path.
//
// An unpublish takes the steps back: unmount, remove the description, remove the folder. Each step may find its work done, because
// the kubelet repeats a call after a crash on either side. Nothing is remembered in memory.
//
// # Names that cannot be forged
//
// The kubelet writes the names of pod, namespace and service account into the volume's context, over what the pod's manifest has there. It does so only if
// the CSIDriver object has podInfoOnMount. Without it, a manifest could name another pod. Therefore the pod's uid in
// the context must be that of the target path: nobody knows the uid of a pod before it exists.
//
// # An app only reads in its volume
//
// The volume must be read-only in the pod (csi.readOnly: true), so that no app can fill the node's memory with files, or replace its socket. The
// mount is read-only, too, because a kubelet makes the folders of a subPath through it. The server makes the socket in the folder itself.
package csi
