// Package hostfolder is the folder of a node that `locksidecar csi` and `locksidecar node` share.
//
//	FOLDER/            root, and the group of the server may enter
//	  volumes/KEY.json   who a published volume belongs to: written by csi, read by the servers
//	  pods/KEY/          the folder that is mounted into the pod; the servers make its socket
//	  server-USER/       the servers' own: see package instance
//
// # Only root writes descriptions
//
// The names in a description come from the kubelet, so a socket says who calls. Only root can write descriptions, and replace the folders
// of pods. A server can write in a pod's folder, and an app only reads there. So csi, which is root, never follows a link that it finds in a pod's folder.
//
// # Each mount has a description
//
// A description is written before the mount, and removed after the unmount. So each mount has a description, also after a crash. A
// description without a mount is a publish that is half done: the kubelet asks again, or the pod's folder goes and csi removes it.
//
// # A damaged description
//
// One that is no JSON says nothing: a full disk, or an error of somebody. While the folder is mounted, a server may serve its pod, so the description stays until the kubelet unpublishes
// the volume, and a server that cannot read it does not claim to serve all pods. Otherwise no app can call, and csi removes it: the kubelet says again whose the volume is when it
// publishes it. Every version writes JSON. So what another one wrote is not damaged, and csi removes it only when the kubelet asks.
//
// # Another user
//
// If the servers get another user, csi gives it the folders of the pods, and lets it read the descriptions. It gives it nothing that a server has made: root would have to look into a folder
// in which the old user may make links. So each user has a folder of its own for its servers.
package hostfolder

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

const (
	// Default is where the folder is. It is in memory: after a reboot no volume is published.
	Default = "/run/locksidecar-node"
	// User is the user and group of the server.
	User = 65532
	// Socket is the name of the socket in a pod's folder.
	Socket = "locksidecar.sock"

	descriptionEnd = ".json"
	// unfinishedEnd is behind the name of a description that is being written.
	unfinishedEnd = ".new"
	// maxDescription limits the bytes of a description that are read.
	maxDescription = 16 << 10
	// keyBytes is half of a hash. Paths of sockets must be short.
	keyBytes = 16
)

// Folder is the path of the folder.
type Folder string

// Key names a published volume in the folder.
type Key string

// KeyOf returns the key of a volume at a path. Static pods use their uids again, and with them the volumes' ids, so both count.
func KeyOf(id, target string) Key {
	sum := sha256.Sum256([]byte(id + "\x00" + target))
	return Key(hex.EncodeToString(sum[:keyBytes]))
}

// Volume describes a published volume.
type Volume struct {
	// ID and Target are the kubelet's: the volume's id, and the path where it is mounted.
	ID     string `json:"id"`
	Target string `json:"target"`
	Pod    Pod    `json:"pod"`
	// Publication is random. A volume that was unpublished and published again has another one.
	Publication string `json:"publication"`
}

// Pod is whom a volume belongs to, as the kubelet says.
type Pod struct {
	Namespace      string `json:"namespace"`
	Name           string `json:"name"`
	UID            string `json:"uid"`
	ServiceAccount string `json:"serviceAccount"`
}

// ErrDamaged says that a description is no JSON.
var ErrDamaged = errors.New("the description is damaged")

// maxObjectName is Kubernetes' limit.
const maxObjectName = 253

var objectName = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$`)

// IsObjectName reports a name of a pod, namespace or service account.
func IsObjectName(s string) bool { return len(s) <= maxObjectName && objectName.MatchString(s) }

// Key is the volume's key.
func (v Volume) Key() Key { return KeyOf(v.ID, v.Target) }

// Pod is the folder of a pod.
func (f Folder) Pod(k Key) string { return filepath.Join(string(f), "pods", string(k)) }

// Socket is the socket of a pod.
func (f Folder) Socket(k Key) string { return filepath.Join(f.Pod(k), Socket) }

// Volumes is the folder of the descriptions.
func (f Folder) Volumes() string { return filepath.Join(string(f), "volumes") }

// Server is the folder of the servers of a user.
func (f Folder) Server(user int) string {
	return filepath.Join(string(f), "server-"+strconv.Itoa(user))
}

func (f Folder) description(k Key) string {
	return filepath.Join(f.Volumes(), string(k)+descriptionEnd)
}

// MakeTop makes the folder itself, for root alone, if it is not there.
func (f Folder) MakeTop() error {
	if err := os.Mkdir(string(f), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// Make makes the folders for a server of this user and group, and gives it the folders and the descriptions of the pods that are published. No other process may
// do so meanwhile.
func (f Folder) Make(user int) error {
	for _, one := range []struct {
		path  string
		mode  fs.FileMode
		owner int
	}{
		{string(f), 0o710, 0},
		{f.Volumes(), 0o750, 0},
		{filepath.Join(string(f), "pods"), 0o710, 0},
	} {
		if err := makeFolder(one.path, one.mode, one.owner, user); err != nil {
			return err
		}
	}
	pods, err := os.ReadDir(filepath.Dir(f.Pod("x")))
	if err != nil {
		return err
	}
	descriptions, err := os.ReadDir(f.Volumes())
	if err != nil {
		return err
	}
	for _, description := range descriptions {
		if err := os.Lchown(filepath.Join(f.Volumes(), description.Name()), 0, user); err != nil {
			return err
		}
	}
	for _, pod := range pods {
		if err := f.MakePod(Key(pod.Name()), user); err != nil {
			return err
		}
	}
	return makeFolder(f.Server(user), 0o700, user, user) // last: then a server may begin
}

// MakePod makes the folder of a pod. Every user may enter it: the mount is the boundary, and the pod's users may be mapped.
func (f Folder) MakePod(k Key, user int) error { return makeFolder(f.Pod(k), 0o755, user, user) }

func makeFolder(path string, mode fs.FileMode, owner, group int) error {
	if err := os.Mkdir(path, mode); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("%s is not a folder", path)
	}
	return errors.Join(os.Lchown(path, owner, group), os.Chmod(path, mode))
}

// Describe writes the description of a volume, unless it is there. It fails if another one is there.
func (f Folder) Describe(v Volume, group int) error {
	before, err := f.Read(v.Key())
	if err == nil {
		v.Publication = before.Publication
		if before != v {
			return fmt.Errorf("the volume %s is published at %s for another pod: %s/%s", v.ID, v.Target, before.Pod.Namespace, before.Pod.Name)
		}
		return nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	v.Publication = rand.Text()
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	path := f.description(v.Key())
	fresh := path + unfinishedEnd
	if err := errors.Join(os.WriteFile(fresh, text, 0o640), os.Lchown(fresh, 0, group)); err != nil { //nolint:gosec // the server's group reads it
		return err
	}
	return os.Rename(fresh, path)
}

// Forget removes the description of a volume.
func (f Folder) Forget(k Key) error {
	if err := os.Remove(f.description(k)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// IsPublished reports whether there is a description, even if it cannot be read.
func (f Folder) IsPublished(k Key) bool {
	_, err := os.Lstat(f.description(k))
	return !errors.Is(err, fs.ErrNotExist)
}

// Read reads the description of a volume. Errors: [fs.ErrNotExist], [ErrDamaged].
func (f Folder) Read(k Key) (v Volume, err error) {
	file, err := os.Open(f.description(k))
	if err != nil {
		return v, err
	}
	defer func() { _ = file.Close() }()
	if info, err := file.Stat(); err != nil || info.Size() > maxDescription {
		return v, errors.Join(err, fmt.Errorf("%s has more than %d bytes", file.Name(), maxDescription))
	}
	switch err := json.NewDecoder(file).Decode(&v); {
	case isNoJSON(err):
		return v, fmt.Errorf("%s: %w: %w", file.Name(), ErrDamaged, err)
	case err != nil:
		return v, fmt.Errorf("%s: %w", file.Name(), err)
	}
	if v.Key() != k {
		return v, fmt.Errorf("%s describes another volume: %s at %s", file.Name(), v.ID, v.Target)
	}
	return v, nil
}

func isNoJSON(err error) bool {
	_, wrong := errors.AsType[*json.SyntaxError](err)
	return wrong || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// Published lists the published volumes. The error joins those of descriptions that cannot be read.
func (f Folder) Published() (map[Key]Volume, error) {
	entries, err := os.ReadDir(f.Volumes())
	if err != nil {
		return nil, err
	}
	all, errs := map[Key]Volume{}, []error(nil)
	for _, entry := range entries {
		name, ok := strings.CutSuffix(entry.Name(), descriptionEnd)
		if !ok {
			continue
		}
		v, err := f.Read(Key(name))
		switch {
		case err == nil:
			all[Key(name)] = v
		case !errors.Is(err, fs.ErrNotExist): // unpublished meanwhile
			errs = append(errs, err)
		}
	}
	return all, errors.Join(errs...)
}

// Unread lists the descriptions that are not of these volumes.
func (f Folder) Unread(published map[Key]Volume) (keys []Key, err error) {
	entries, err := os.ReadDir(f.Volumes())
	for _, entry := range entries {
		name, ok := strings.CutSuffix(entry.Name(), descriptionEnd)
		if _, read := published[Key(name)]; ok && !read {
			keys = append(keys, Key(name))
		}
	}
	return keys, err
}

// ForgetUnfinished removes what is left of descriptions that were not written to their end. Nobody may be writing one.
func (f Folder) ForgetUnfinished() error {
	entries, err := os.ReadDir(f.Volumes())
	errs := []error{err}
	for _, entry := range entries {
		if strings.HasSuffix(entry.Name(), descriptionEnd+unfinishedEnd) {
			errs = append(errs, os.Remove(filepath.Join(f.Volumes(), entry.Name())))
		}
	}
	return errors.Join(errs...)
}

// Undescribed lists the folders of pods that have no description.
func (f Folder) Undescribed() (keys []Key, err error) {
	entries, err := os.ReadDir(filepath.Dir(f.Pod("x")))
	for _, entry := range entries {
		if k := Key(entry.Name()); !f.IsPublished(k) {
			keys = append(keys, k)
		}
	}
	return keys, err
}
