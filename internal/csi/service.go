//go:build linux

package csi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	pb "github.com/locksidecar/locksidecar/internal/csi/csipb"
	"github.com/locksidecar/locksidecar/internal/hostfolder"
)

// service answers a kubelet.
type service struct {
	registration.UnimplementedRegistrationServer

	Config
	// mu: one volume after the other. A publish does not hold it while it waits for a server.
	mu sync.Mutex
}

// pods is the kubelet's folder of pods.
func (s *service) pods() string { return filepath.Join(s.Kubelet, "pods") }

// GetInfo is what the kubelet asks first. Without an endpoint, the kubelet uses the socket of the registration.
func (s *service) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{Type: registration.CSIPlugin, Name: Driver, SupportedVersions: []string{"1.0.0"}}, nil
}

// NotifyRegistrationStatus is what the kubelet tells then.
func (s *service) NotifyRegistrationStatus(_ context.Context, r *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	if r.GetPluginRegistered() {
		s.Log.Info("registered with the kubelet")
	} else {
		s.Log.Error("the kubelet has refused the registration", "error", r.GetError())
	}
	return &registration.RegistrationStatusResponse{}, nil
}

func (s *service) pluginInfo(context.Context, *pb.Nothing) (*pb.PluginInfo, error) {
	return &pb.PluginInfo{Name: Driver, VendorVersion: s.Version}, nil
}

func (s *service) nodeInfo(context.Context, *pb.Nothing) (*pb.NodeInfo, error) {
	return &pb.NodeInfo{NodeId: s.Node}, nil
}

// publishVolume gives a pod its folder: see the package document.
func (s *service) publishVolume(ctx context.Context, req *pb.Publish) (*pb.Nothing, error) {
	v, err := s.volumeOf(req)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if err := s.describe(v); err != nil {
		return nil, err
	}
	if err := s.awaitSocket(ctx, v.Key()); err != nil {
		return nil, unfinished("%w", err)
	}
	if err := s.mount(v); err != nil {
		return nil, err
	}
	s.Log.Info("volume published", attributes(v)...)
	return &pb.Nothing{}, nil
}

// unfinished is an error after which something of the volume may be left. The code Unavailable makes the kubelet call NodeUnpublishVolume if the pod is
// deleted before it tries again: after Internal, it would not.
func unfinished(format string, args ...any) error {
	return status.Error(codes.Unavailable, fmt.Errorf(format, args...).Error())
}

// describe makes the pod's folder, and its description.
func (s *service) describe(v hostfolder.Volume) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.forgetDamaged(v.Key()); err != nil {
		return unfinished("the description of the volume is damaged, and cannot be removed: %v", err)
	}
	// Limits are those of a volume's socket, so a pod has one.
	published, err := s.Folder.Published()
	switch {
	case published == nil:
		return unfinished("cannot read the published volumes: %v", err)
	case err != nil: // the volume of another pod must not stop this one
		s.Log.Warn("cannot read all descriptions of volumes: a second volume of a pod may not be noticed", "error", err)
	}
	for k, other := range published {
		if other.Pod.UID == v.Pod.UID && k != v.Key() {
			return status.Errorf(codes.InvalidArgument, "the pod has two volumes of %s: it needs one, which all its containers may mount", Driver)
		}
	}
	if err := s.Folder.MakePod(v.Key(), s.User); err != nil {
		return unfinished("cannot make the pod's folder: %v", err)
	}
	if err := relabel(s.Folder.Pod(v.Key())); err != nil {
		return unfinished("cannot label the pod's folder for SELinux: %v", err)
	}
	switch err := s.Folder.Describe(v, s.User); {
	case errors.Is(err, hostfolder.ErrDamaged):
		return unfinished("the volume is mounted, so its pod may hold locks, and its description is damaged: delete the pod: %v", err)
	case err != nil:
		return unfinished("cannot describe the volume: %v", err)
	}
	return nil
}

// mount mounts the pod's folder, unless the volume was unpublished meanwhile.
func (s *service) mount(v hostfolder.Volume) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.Folder.Read(v.Key()); err != nil {
		return status.Errorf(codes.Aborted, "the volume was unpublished meanwhile: %v", err)
	}
	if err := bind(s.Folder.Pod(v.Key()), v.Target); err != nil {
		return unfinished("cannot mount the pod's folder: %v", err)
	}
	return nil
}

// awaitSocket waits until a server listens for the pod.
func (s *service) awaitSocket(ctx context.Context, k hostfolder.Key) error {
	const pause = 50 * time.Millisecond
	late := time.NewTimer(s.Patience)
	defer late.Stop()
	for !answers(ctx, s.Folder.Socket(k)) {
		select {
		case <-ctx.Done():
			return fmt.Errorf("no `locksidecar node` listens for this pod yet: %w", ctx.Err())
		case <-late.C:
			return fmt.Errorf("no `locksidecar node` listens for this pod after %s: look at the log of its pod on this node", s.Patience)
		case <-time.After(pause):
		}
	}
	return nil
}

// unpublishVolume takes a pod's folder away.
func (s *service) unpublishVolume(_ context.Context, req *pb.Unpublish) (*pb.Nothing, error) {
	if _, err := s.checkPlace(req.GetVolumeId(), req.GetTargetPath()); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if err := s.unpublish(req.GetVolumeId(), req.GetTargetPath()); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	s.Log.Info("volume unpublished", "volume", req.GetVolumeId(), "target", req.GetTargetPath())
	return &pb.Nothing{}, nil
}

func attributes(v hostfolder.Volume) []any {
	return []any{
		slog.String("volume", v.ID), slog.String("target", v.Target), slog.String("pod", v.Pod.Name),
		slog.String("namespace", v.Pod.Namespace), slog.String("uid", v.Pod.UID), slog.String("service_account", v.Pod.ServiceAccount),
	}
}
