//go:build linux

package csi

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"

	pb "github.com/locksidecar/locksidecar/internal/csi/csipb"
	"github.com/locksidecar/locksidecar/internal/hostfolder"
)

// The keys of a volume's context, which the kubelet fills.
const (
	contextPrefix         = "csi.storage.k8s.io/"
	contextEphemeral      = contextPrefix + "ephemeral"
	contextNamespace      = contextPrefix + "pod.namespace"
	contextName           = contextPrefix + "pod.name"
	contextUID            = contextPrefix + "pod.uid"
	contextServiceAccount = contextPrefix + "serviceAccount.name"
)

const (
	maxVolumeID = 128
	maxPathPart = 253
)

// part matches the id of a volume, the uid of a pod, and the name of a volume. Lengths are checked apart: counts in an expression are memory of every process.
var part = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)

func isPart(s string, limit int) bool { return len(s) <= limit && part.MatchString(s) }

// volumeOf reads whom a volume belongs to from a request to publish it.
func (s *service) volumeOf(req *pb.Publish) (v hostfolder.Volume, err error) {
	uid, err := s.checkPlace(req.GetVolumeId(), req.GetTargetPath())
	if err != nil {
		return v, err
	}
	if err := checkCapability(req.GetVolumeCapability()); err != nil {
		return v, err
	}
	of := req.GetVolumeContext()
	pod := hostfolder.Pod{Namespace: of[contextNamespace], Name: of[contextName], UID: of[contextUID], ServiceAccount: of[contextServiceAccount]}
	switch {
	case of[contextEphemeral] != "true":
		return v, fmt.Errorf("only an inline volume of a pod can be published: %s is %q, and must be \"true\"", contextEphemeral, of[contextEphemeral])
	case !req.GetReadonly():
		return v, fmt.Errorf("the volume must have readOnly: true in the pod (spec.volumes[].csi.readOnly)")
	case pod.UID != uid:
		return v, fmt.Errorf("%s is %q, but the target path is of the pod %q: the CSIDriver object must have podInfoOnMount: true", contextUID, pod.UID, uid)
	}
	for key, name := range map[string]string{contextNamespace: pod.Namespace, contextName: pod.Name, contextServiceAccount: pod.ServiceAccount} {
		if key == contextServiceAccount && name == "" {
			continue // a static pod has none
		}
		if !hostfolder.IsObjectName(name) {
			return v, fmt.Errorf("%s is %q, which is no name of Kubernetes: the CSIDriver object must have podInfoOnMount: true", key, name)
		}
	}
	return hostfolder.Volume{ID: req.GetVolumeId(), Target: req.GetTargetPath(), Pod: pod}, nil
}

// checkPlace accepts only the paths that a kubelet uses for inline volumes, so no request can mount or unmount anything elsewhere.
// It returns the uid of the path's pod.
func (s *service) checkPlace(id, target string) (uid string, err error) {
	if !isPart(id, maxVolumeID) {
		return "", fmt.Errorf("the volume's id is %.200q: it must be letters, digits, and . _ -, at most 128", id)
	}
	parts := strings.Split(strings.TrimPrefix(target, s.pods()+"/"), "/")
	const form = 5 // UID/volumes/kubernetes.io~csi/NAME/mount
	if filepath.Clean(target) != target || !strings.HasPrefix(target, s.pods()+"/") || len(parts) != form ||
		!isPart(parts[0], maxPathPart) || parts[1] != "volumes" || parts[2] != "kubernetes.io~csi" || !isPart(parts[3], maxPathPart) || parts[4] != "mount" {
		return "", fmt.Errorf("the target path is %.400q: it must be %s/UID/volumes/kubernetes.io~csi/NAME/mount (--kubelet)", target, s.pods())
	}
	return parts[0], nil
}

func checkCapability(c *pb.VolumeCapability) error {
	mount := c.GetMount()
	switch {
	case mount == nil:
		return fmt.Errorf("the volume must be a file system, without a device (a volume capability with mount)")
	case mount.GetFsType() != "" || len(mount.GetMountFlags()) > 0:
		return fmt.Errorf("the volume has no fsType and no mount options: leave them out")
	}
	return nil
}
