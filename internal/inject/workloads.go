package inject

import (
	"strings"
)

type kind struct{ group, name string }

func kindOf(apiVersion, name string) kind {
	group, _, found := strings.Cut(apiVersion, "/")
	if !found {
		group = "" // v1
	}
	return kind{group, name}
}

// templates is where the pods of Kubernetes' own kinds are. Other kinds (a Rollout, a Service of Knative) are
// recognized if theirs are at the usual place.
var templates = map[kind][]string{
	{"", "Pod"}:                   {},
	{"", "PodTemplate"}:           {"template"},
	{"", "ReplicationController"}: usualTemplate,
	{"apps", "Deployment"}:        usualTemplate,
	{"apps", "StatefulSet"}:       usualTemplate,
	{"apps", "DaemonSet"}:         usualTemplate,
	{"apps", "ReplicaSet"}:        usualTemplate,
	{"batch", "Job"}:              usualTemplate,
	{"batch", "CronJob"}:          {"spec", "jobTemplate", "spec", "template"},
}

var usualTemplate = []string{"spec", "template"}

// workload is an object that is a pod, or makes pods.
type workload struct {
	whole, template object
	path            []string // from whole to template
	kind            kind
}

// workloadIn returns nil for an object without pods.
func workloadIn(o object, is kind) *workload {
	path, known := templates[is]
	if !known {
		path = usualTemplate
	}
	template := o
	for _, field := range path {
		template = objectIn(template, field)
	}
	if !known && listIn(objectIn(template, "spec"), "containers") == nil {
		return nil
	}
	return &workload{o, template, path, is}
}

func (w *workload) namespace() string { return textIn(objectIn(w.whole, "metadata"), "namespace") }

// String is its name in errors: "Deployment prod/web".
func (w *workload) String() string {
	metadata := objectIn(w.whole, "metadata")
	name := textIn(metadata, "name")
	if name == "" {
		name = textIn(metadata, "generateName") + "..."
	}
	if namespace := w.namespace(); namespace != "" {
		name = namespace + "/" + name
	}
	return w.kind.name + " " + name
}

// place is the pod's path in the workload for an error, with a dot at the end.
func (w *workload) place() string {
	if len(w.path) == 0 {
		return ""
	}
	return strings.Join(w.path, ".") + "."
}

// optedIn reads the pod's own label. Without it, byDefault is returned.
func (w *workload) optedIn(byDefault bool) (bool, error) {
	labels := objectIn(objectIn(w.template, "metadata"), "labels")
	value, there := labels[Label]
	if !there {
		return byDefault, nil
	}
	text, _ := value.(string)
	return optsIn(text), checkLabel(labels)
}

// misplaced reports whether the label is on the workload, where it has no effect.
func (w *workload) misplaced() bool {
	return len(w.path) > 0 && optsIn(textIn(objectIn(objectIn(w.whole, "metadata"), "labels"), Label))
}

// optsIn reports whether a value of Label opts a pod in.
func optsIn(value string) bool { return value == WithSidecar || value == WithNode }

// eachObject visits the object, or those of a List. In a typed list (a PodList), items need no kind.
func eachObject(value any, visit func(object, kind)) {
	o, ok := value.(object)
	if !ok {
		return
	}
	apiVersion, name := textIn(o, "apiVersion"), textIn(o, "kind")
	itemName, isList := strings.CutSuffix(name, "List")
	if _, hasItems := o["items"].(list); !isList || !hasItems {
		visit(o, kindOf(apiVersion, name))
		return
	}
	for _, item := range objectsIn(o, "items") {
		if itemName == "" || item["kind"] != nil {
			eachObject(item, visit)
		} else {
			visit(item, kindOf(apiVersion, itemName))
		}
	}
}
