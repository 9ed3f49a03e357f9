package sidecar

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
	goyaml "sigs.k8s.io/yaml/goyaml.v2"

	"github.com/locksidecar/locksidecar/internal/hostfolder"
)

// policy says what the pods of a node may do. Without a file, a pod's namespace is that of Kubernetes, and it may do nothing outside of it.
type policy struct {
	// Allow lists the namespaces of Kubernetes whose pods get a socket; nil: all.
	Allow []string `json:"allow"`
	// Namespaces maps namespaces of Kubernetes to those of locks. Pods of all that have the same value exclude each other.
	Namespaces map[string]string `json:"namespaces"`
	// ServiceAccounts lists what pods under service accounts may do besides.
	ServiceAccounts []rights `json:"serviceAccounts"`
}

// rights are those of the pods of one service account.
type rights struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Force: they may break locks of their namespace.
	Force bool `json:"force"`
	// OtherNamespaces: they may read the locks of other namespaces, and the counts of the whole database, as far as the store's role may.
	OtherNamespaces bool `json:"otherNamespaces"`
}

// maxNamespace is the limit of LOCKSIDECAR_NAMESPACE.
const maxNamespace = 255

// readPolicy reads a policy file. All its mistakes are reported.
func readPolicy(path string) (*policy, error) {
	p := &policy{}
	if path == "" {
		return p, nil
	}
	text, err := os.ReadFile(path) //nolint:gosec // the operator names the file
	if err != nil {
		return nil, err
	}
	if err := errors.Join(oneDocument(text), yaml.UnmarshalStrict(text, p)); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if err := p.check(); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return p, nil
}

// oneDocument refuses what UnmarshalStrict would leave out: further documents, and a list without a value.
func oneDocument(text []byte) error {
	var first map[string]any
	documents := goyaml.NewDecoder(bytes.NewReader(text))
	if err := documents.Decode(&first); err != nil {
		return nil //nolint:nilerr // UnmarshalStrict says it better, and an empty file is an empty policy
	}
	for name, value := range first {
		if strings.EqualFold(name, "allow") && value == nil { // the reader of JSON does not mind the case
			return errors.New("allow has no value: name namespaces, or leave it out to allow all")
		}
	}
	if err := documents.Decode(new(any)); !errors.Is(err, io.EOF) {
		return errors.New("it has a second document (behind a line ---): put all into one")
	}
	return nil
}

func (p *policy) check() error {
	var errs []error
	if p.Allow != nil && len(p.Allow) == 0 {
		errs = append(errs, errors.New("allow is empty: name namespaces, or leave it out to allow all"))
	}
	for i, namespace := range p.Allow {
		if !hostfolder.IsObjectName(namespace) {
			errs = append(errs, fmt.Errorf("allow[%d] is %q, which is no name of a namespace", i, namespace))
		}
	}
	for from, to := range p.Namespaces {
		if !hostfolder.IsObjectName(from) {
			errs = append(errs, fmt.Errorf("namespaces has %q, which is no name of a namespace", from))
		}
		if to == "" || len(to) > maxNamespace || strings.ContainsFunc(to, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			errs = append(errs, fmt.Errorf("namespaces[%s] is %q: it must be 1 to %d bytes without control characters", from, to, maxNamespace))
		}
	}
	for i, r := range p.ServiceAccounts {
		if !hostfolder.IsObjectName(r.Namespace) || !hostfolder.IsObjectName(r.Name) {
			errs = append(errs, fmt.Errorf("serviceAccounts[%d] is %q in the namespace %q: both must be names of Kubernetes", i, r.Name, r.Namespace))
		}
		if !r.Force && !r.OtherNamespaces {
			errs = append(errs, fmt.Errorf("serviceAccounts[%d] allows nothing: set force or otherNamespaces, or leave it out", i))
		}
	}
	return errors.Join(errs...)
}

// allows reports whether a pod gets a socket.
func (p *policy) allows(pod hostfolder.Pod) bool {
	return p.Allow == nil || slices.Contains(p.Allow, pod.Namespace)
}

// namespaceOf is the namespace of a pod's locks.
func (p *policy) namespaceOf(pod hostfolder.Pod) string {
	if to, ok := p.Namespaces[pod.Namespace]; ok {
		return to
	}
	return pod.Namespace
}

// rightsOf is what a pod may do besides.
func (p *policy) rightsOf(pod hostfolder.Pod) rights {
	all := rights{Namespace: pod.Namespace, Name: pod.ServiceAccount}
	for _, r := range p.ServiceAccounts {
		if r.Namespace == pod.Namespace && r.Name == pod.ServiceAccount {
			all.Force = all.Force || r.Force
			all.OtherNamespaces = all.OtherNamespaces || r.OtherNamespaces
		}
	}
	return all
}
