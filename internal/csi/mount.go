//go:build linux

package csi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/internal/hostfolder"
)

// bind mounts a folder at the target path, which it makes. The mount is read-only for everybody: the kubelet makes the folders of a subPath in it as root,
// whatever the container's mount says. The flags are set before the mount is attached, because the node gets a copy of the mount then, and no later
// change of its flags. Whatever else is mounted there is unmounted first: a folder that was removed since, or a mount without the flags.
// It needs Linux 5.12.
func bind(folder, target string) error {
	if err := os.Mkdir(target, 0o750); err != nil && !errors.Is(err, fs.ErrExist) { //nolint:gosec // the kubelet names the target
		return err
	}
	if isSame(folder, target) && hasFlags(target) {
		return nil
	}
	if err := unmountAll(target); err != nil {
		return err
	}
	tree, err := unix.OpenTree(unix.AT_FDCWD, folder, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return fmt.Errorf("making a mount of %s: %w", folder, err)
	}
	defer unix.Close(tree) //nolint:errcheck // a mount that is attached stays, and another one goes
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &unix.MountAttr{
		Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC,
	}); err != nil {
		return fmt.Errorf("setting the flags of the mount for %s (needs Linux 5.12): %w", target, err)
	}
	if err := unix.MoveMount(tree, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mounting %s at %s: %w", folder, target, err)
	}
	return nil
}

// hasFlags reports whether a mount has the flags that bind gives.
func hasFlags(target string) bool {
	const want = unix.ST_RDONLY | unix.ST_NOSUID | unix.ST_NODEV | unix.ST_NOEXEC
	var stat unix.Statfs_t
	return unix.Statfs(target, &stat) == nil && stat.Flags&want == want
}

// isSame reports whether two paths are the same folder. A folder has one name, so the second one is then a mount of the first.
func isSame(a, b string) bool {
	one, err := os.Lstat(a) //nolint:gosec // the kubelet names the target
	if err != nil {
		return false
	}
	other, err := os.Lstat(b) //nolint:gosec // the same
	return err == nil && os.SameFile(one, other)
}

// isMounted reports whether the folder of a volume is mounted somewhere. The system's list shows of each mount which folder it is, under its path in its file system.
func isMounted(k hostfolder.Key) (bool, error) {
	const folder = 3 // the fourth field of a line
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return false, err
	}
	for line := range strings.Lines(string(mounts)) {
		if fields := strings.Fields(line); len(fields) <= folder || strings.HasSuffix(fields[folder], "/"+string(k)) {
			return true, nil
		}
	}
	return false, nil
}

// unmountAll unmounts everything at the target path. A path that is missing, or is no mount, is no error. A mount that somebody on the node
// still looks into goes from the path at once, and really when nobody does any more: a pod must not hang for that.
func unmountAll(target string) error {
	const most = 100 // no publish mounts twice
	for range most {
		err := unix.Unmount(target, unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EBUSY) {
			err = unix.Unmount(target, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)
		}
		switch {
		case err == nil:
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT):
			return nil
		default:
			return fmt.Errorf("unmounting %s: %w", target, err)
		}
	}
	return fmt.Errorf("unmounting %s: there is still something after %d times", target, most)
}

// unpublish unmounts a volume, and removes its description and folder.
func (s *service) unpublish(id, target string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := unmountAll(target); err != nil {
		return err
	}
	if err := os.Remove(target); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing the target path: %w", err)
	}
	k := hostfolder.KeyOf(id, target)
	if err := s.Folder.Forget(k); err != nil {
		return fmt.Errorf("removing the description: %w", err)
	}
	return removePatiently(s.Folder.Pod(k))
}

// removePatiently removes a folder in which a server may just be making its socket. The server stops that when it sees that the description is gone.
func removePatiently(folder string) (err error) {
	const tries, pause = 20, 50 * time.Millisecond
	for range tries {
		if err = os.RemoveAll(folder); err == nil { // it does not follow links
			return nil
		}
		time.Sleep(pause)
	}
	return fmt.Errorf("removing the pod's folder: %w", err)
}

// answers reports whether somebody listens at a socket.
func answers(ctx context.Context, path string) bool {
	if info, err := os.Lstat(path); err != nil || info.Mode().Type() != fs.ModeSocket {
		return false
	}
	nc, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err != nil {
		return false
	}
	_ = nc.Close()
	return true
}

const (
	labelName = "security.selinux"
	// containerLabel is what every container may use, whatever categories it has. The mount decides which container sees a folder.
	containerLabel = "system_u:object_r:container_file_t:s0"
)

// relabel gives a file containerLabel if the node uses SELinux: files have labels then. The kubelet does not label a volume that is read-only
// in its pod.
func relabel(path string) error {
	was := make([]byte, 256)
	n, err := unix.Lgetxattr(path, labelName, was)
	if err != nil || n == 0 || string(bytes.TrimRight(was[:n], "\x00")) == containerLabel {
		return nil //nolint:nilerr // no label: no SELinux
	}
	return unix.Lsetxattr(path, labelName, []byte(containerLabel+"\x00"), 0)
}
