//go:build linux

package csi

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/locksidecar/locksidecar/internal/exitcode"
	"github.com/locksidecar/locksidecar/internal/hostfolder"
)

const (
	// maxMessage limits the bytes of a request.
	maxMessage = 1 << 20
	// stopLimit limits how long a stop waits for running calls.
	stopLimit = 5 * time.Second
	// sweepPause is the pause between two looks for what is left of pods that are gone.
	sweepPause = time.Minute
)

// Run serves the kubelet until ctx ends. The volumes stay as they are.
func Run(ctx context.Context, cfg Config) error {
	s := &service{Config: cfg}
	if err := s.Folder.MakeTop(); err != nil {
		return exitcode.With(exitcode.CannotOpen, fmt.Errorf("--folder: %w", err))
	}
	unlock, err := s.alone(ctx)
	if err != nil {
		return exitcode.With(exitcode.CannotOpen, err)
	}
	defer unlock()
	if ctx.Err() != nil {
		return nil
	}
	// Not before: the folders may have another user while another plugin serves.
	if err := s.Folder.Make(s.User); err != nil {
		return exitcode.With(exitcode.CannotOpen, fmt.Errorf("--folder: %w", err))
	}
	for _, folder := range []string{string(s.Folder), s.Folder.Volumes(), filepath.Dir(s.Folder.Pod("x")), s.Folder.Server(s.User)} {
		if err := relabel(folder); err != nil {
			s.Log.Warn("cannot label a folder for SELinux: pods may not reach their sockets", "folder", folder, "error", err)
		}
	}

	socket := filepath.Join(s.Kubelet, "plugins_registry", Driver+"-reg.sock")
	listener, err := listen(ctx, socket)
	if err != nil {
		return exitcode.With(exitcode.CannotOpen, fmt.Errorf("--kubelet: %w", err))
	}
	server := grpc.NewServer(grpc.MaxRecvMsgSize(maxMessage), grpc.UnaryInterceptor(s.logged))
	registration.RegisterRegistrationServer(server, s)
	register(server, s)
	s.Log.Info("locksidecar csi serves", "version", s.Version, "socket", socket, "folder", string(s.Folder), "node", s.Node)

	var sweeping sync.WaitGroup
	defer sweeping.Wait()
	sweepable, endSweep := context.WithCancel(ctx)
	defer endSweep()
	sweeping.Go(func() { s.sweep(sweepable) })
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	s.Log.Info("stopping", "reason", context.Cause(ctx))
	late := time.AfterFunc(stopLimit, server.Stop)
	defer late.Stop()
	server.GracefulStop()
	return <-ended
}

// alone waits until no other plugin serves the folder. When the plugin is updated, the old one has a moment to end.
func (s *service) alone(ctx context.Context) (unlock func(), err error) {
	const pause = 100 * time.Millisecond
	lock, err := os.OpenFile(filepath.Join(string(s.Folder), "csi.lock"), os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("--folder: cannot open the lock file: %w", err)
	}
	unlock = func() { _ = lock.Close() }
	for said := false; ; said = true {
		err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return unlock, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			unlock()
			return nil, fmt.Errorf("--folder: cannot lock %s: %w", lock.Name(), err)
		}
		if !said {
			s.Log.Warn("another `locksidecar csi` serves this folder: waiting for its end", "lock", lock.Name())
		}
		select {
		case <-ctx.Done():
			return unlock, nil
		case <-time.After(pause):
		}
	}
}

// listen listens at a path where a plugin before may have left its socket. Only root may connect, as the kubelet.
func listen(ctx context.Context, path string) (net.Listener, error) {
	if info, err := os.Lstat(path); err == nil && info.Mode().Type() != fs.ModeSocket {
		return nil, fmt.Errorf("%s exists and is not a socket", path)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	old := unix.Umask(0o177)
	defer unix.Umask(old)
	return new(net.ListenConfig).Listen(ctx, "unix", path)
}

// logged logs failed calls. A request may contain secrets, so no line shows more of it than the errors name.
func (s *service) logged(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	answer, err := handle(ctx, req)
	if err != nil {
		s.Log.Error("call failed", "call", info.FullMethod, "error", err)
	}
	return answer, err
}

// sweep removes what is left of pods that are gone. The kubelet unpublishes the volumes of a pod before it removes the pod's folder. It does not if it
// has forgotten the pod, or a publish did not get as far as the mount.
func (s *service) sweep(ctx context.Context) {
	for {
		s.sweepOnce()
		select {
		case <-ctx.Done():
			return
		case <-time.After(sweepPause):
		}
	}
}

func (s *service) sweepOnce() {
	if !hasEntries(s.pods()) {
		return // the plugin's own pod is missing, so this is not the kubelet's folder
	}
	volumes, err := s.Folder.Published()
	if err != nil {
		s.Log.Warn("cannot read all descriptions of volumes", "error", err)
	}
	for _, v := range volumes {
		uid, err := s.checkPlace(v.ID, v.Target)
		if err == nil {
			_, err = os.Lstat(filepath.Join(s.pods(), uid))
		}
		if !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := s.unpublish(v.ID, v.Target); err != nil {
			s.Log.Warn("a pod is gone, and its volume cannot be removed", append(attributes(v), "error", err)...)
			continue
		}
		s.Log.Info("a pod is gone, and its volume is removed", attributes(v)...)
	}
	s.sweepUnused(volumes)
}

// sweepUnused removes what no volume needs, whose description can be read or not: damaged descriptions, unfinished ones, and folders of pods without a description.
func (s *service) sweepUnused(readable map[hostfolder.Key]hostfolder.Volume) {
	s.mu.Lock() // no publish is between its folder and its description
	defer s.mu.Unlock()
	unread, err := s.Folder.Unread(readable)
	for _, k := range unread {
		err = errors.Join(err, s.forgetDamaged(k))
	}
	if err := errors.Join(err, s.Folder.ForgetUnfinished()); err != nil {
		s.Log.Warn("cannot remove all damaged descriptions of volumes", "error", err)
	}
	keys, err := s.Folder.Undescribed()
	if err != nil {
		s.Log.Warn("cannot see the folders of all pods", "error", err)
	}
	for _, k := range keys {
		if err := removePatiently(s.Folder.Pod(k)); err != nil {
			s.Log.Warn("cannot remove a folder that belongs to no pod", "folder", s.Folder.Pod(k), "error", err)
		}
	}
}

// forgetDamaged removes the description of a volume if it is damaged, and no pod has the volume mounted. See package hostfolder. The caller holds s.mu.
func (s *service) forgetDamaged(k hostfolder.Key) error {
	if _, err := s.Folder.Read(k); !errors.Is(err, hostfolder.ErrDamaged) {
		return nil
	}
	if mounted, err := isMounted(k); err != nil || mounted {
		return err
	}
	s.Log.Warn("the description of a volume is damaged, and no pod has the volume: removing it", "key", string(k))
	return s.Folder.Forget(k)
}

func hasEntries(folder string) bool {
	f, err := os.Open(folder) //nolint:gosec // the kubelet's folder
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	names, _ := f.Readdirnames(1)
	return len(names) > 0
}
