package inject

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/semver"

	"github.com/locksidecar/locksidecar/internal/kubeapi"
)

// Stale are the pods with a sidecar of an older release.
type Stale struct {
	Version  string     `json:"version"`  // the release that they are compared with
	Sidecars int        `json:"sidecars"` // how many running pods have a sidecar, of any release
	Pods     []StalePod `json:"pods"`     // never null
}

// StalePod is one of them.
type StalePod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Owner is the workload that makes the pod, as Kind/name; empty if the pod was made alone.
	Owner string `json:"owner"`
	// Version is the release of its sidecar: that of the injection, or that of the image if it is older. Empty: neither is a version.
	Version string `json:"version"`
	Image   string `json:"image"`
	// CreatedAt is when the pod was created.
	CreatedAt time.Time `json:"created_at"`
}

// podsAtATime is how many pods an API server puts into a page.
const podsAtATime = 500

type podPage struct {
	Kind     string `json:"kind"`
	Metadata struct {
		Continue string `json:"continue"`
	} `json:"metadata"`
	Items []podShape `json:"items"`
}

// podShape contains the fields of a pod by which its sidecar's release is found.
type podShape struct {
	Metadata struct {
		Namespace       string            `json:"namespace"`
		Name            string            `json:"name"`
		Created         time.Time         `json:"creationTimestamp"`
		Annotations     map[string]string `json:"annotations"`
		OwnerReferences []struct {
			Kind       string `json:"kind"`
			Name       string `json:"name"`
			Controller bool   `json:"controller"`
		} `json:"ownerReferences"`
	} `json:"metadata"`
	Spec struct {
		InitContainers []imageShape `json:"initContainers"`
		Containers     []imageShape `json:"containers"`
	} `json:"spec"`
	Status struct {
		Phase string `json:"phase"`
	} `json:"status"`
}

type imageShape struct {
	Name  string `json:"name"`
	Image string `json:"image"`
}

// FindStale asks the API server for the pods of a namespace, or of all namespaces if it is empty.
func FindStale(ctx context.Context, api *kubeapi.API, namespace string) (*Stale, error) {
	path := "/api/v1/pods"
	if namespace != "" {
		path = "/api/v1/namespaces/" + url.PathEscape(namespace) + "/pods"
	}
	found := newStale()
	query := url.Values{"limit": {fmt.Sprint(podsAtATime)}}
	for {
		var page podPage
		if err := api.Call(ctx, http.MethodGet, path+"?"+query.Encode(), "", nil, &page); err != nil {
			return nil, fmt.Errorf("listing the pods: %w", err)
		}
		found.add(page.Items)
		if page.Metadata.Continue == "" {
			return found.sorted(), nil
		}
		query.Set("continue", page.Metadata.Continue)
	}
}

// StaleIn finds them in what `kubectl get pods -o json` prints.
func StaleIn(files []File) (*Stale, error) {
	found := newStale()
	for _, file := range files {
		var page podPage
		if err := json.Unmarshal(file.Content, &page); err != nil || !strings.HasSuffix(page.Kind, "List") {
			return nil, fmt.Errorf("%s is no list of pods, as `kubectl get pods --all-namespaces -o json` prints it", file.Name)
		}
		found.add(page.Items)
	}
	return found.sorted(), nil
}

func newStale() *Stale { return &Stale{Version: Version(), Pods: []StalePod{}} }

func (s *Stale) add(pods []podShape) {
	for _, p := range pods {
		if p.Status.Phase == "Succeeded" || p.Status.Phase == "Failed" {
			continue
		}
		all := slices.Concat(p.Spec.InitContainers, p.Spec.Containers) // a plain sidecar is among the latter
		i := slices.IndexFunc(all, func(c imageShape) bool { return c.Name == ContainerName })
		if i < 0 {
			continue
		}
		s.Sidecars++
		version := older(p.Metadata.Annotations[VersionAnnotation], tagOf(all[i].Image))
		if version != "" && semver.Compare(version, s.Version) >= 0 {
			continue
		}
		stale := StalePod{Namespace: p.Metadata.Namespace, Name: p.Metadata.Name, Version: version, Image: all[i].Image, CreatedAt: p.Metadata.Created}
		for _, o := range p.Metadata.OwnerReferences {
			if o.Controller {
				stale.Owner = o.Kind + "/" + o.Name
			}
		}
		s.Pods = append(s.Pods, stale)
	}
}

func (s *Stale) sorted() *Stale {
	slices.SortFunc(s.Pods, func(a, b StalePod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Owner, b.Owner), cmp.Compare(a.Name, b.Name))
	})
	return s
}

// older is the older one of two versions. What is no version does not count.
func older(a, b string) string {
	switch {
	case !semver.IsValid(a) && !semver.IsValid(b):
		return ""
	case !semver.IsValid(b), semver.IsValid(a) && semver.Compare(a, b) < 0:
		return a
	default:
		return b
	}
}

// tagOf is the tag of an image, empty if it has none.
func tagOf(image string) string {
	image, _, _ = strings.Cut(image, "@")
	name, tag, tagged := strings.Cut(image[strings.LastIndex(image, "/")+1:], ":")
	if !tagged || name == "" {
		return ""
	}
	return tag
}
