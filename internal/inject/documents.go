package inject

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"strings"
	"unicode/utf8"
)

// MaxStream limits the bytes of manifests for Documents.
const MaxStream = 64 << 20

const ownNamespace = "locksidecar"

// File is a named stream of manifests.
type File struct {
	Name    string
	Content []byte
}

// Injected is the result of Documents.
type Injected struct {
	// Stream contains all files, one after the other.
	Stream []byte
	// Workloads counts pods and objects that make pods. OptedIn counts the injected ones.
	Workloads, OptedIn int
	// Hints describe probable mistakes that are allowed.
	Hints []string
}

// Documents injects the pods and pod templates in streams of YAML or JSON that are opted in: by their own
// label, by the label of a Namespace in the files, or all (in kube-system and locksidecar, only by their own
// label). Everything else is copied byte for byte. The error joins all mistakes.
func Documents(files []File, all bool, o Options) (Injected, error) {
	s := &stream{all: all, options: o, namespaces: map[string]string{}}
	if err := s.read(files); err != nil {
		return Injected{}, err
	}
	var errs []error
	for i := range s.documents {
		errs = append(errs, s.inject(&s.documents[i]))
	}
	if err := errors.Join(errs...); err != nil {
		return Injected{}, err
	}
	s.result.Stream = s.out.Bytes()
	return s.result, nil
}

type stream struct {
	all       bool
	options   Options
	documents []document
	// namespaces are those whose label opts their pods in, with its value.
	namespaces map[string]string
	out        bytes.Buffer
	result     Injected
}

// read decodes all documents before the first is injected, because a Namespace may come after its pods.
func (s *stream) read(files []File) error {
	var errs []error
	size := 0
	for _, file := range files {
		file.Content = bytes.TrimPrefix(file.Content, []byte("\ufeff"))
		if size += len(file.Content); size > MaxStream {
			return fmt.Errorf("%s: these are more than %d MiB of manifests: give them in parts", file.Name, MaxStream>>20)
		}
		if !utf8.Valid(file.Content) {
			errs = append(errs, fmt.Errorf("%s is not UTF-8", file.Name))
			continue
		}
		for _, d := range split(file) {
			if err := d.decode(); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", d.place(), err))
			}
			eachObject(d.value, s.note)
			s.documents = append(s.documents, d)
		}
	}
	return errors.Join(errs...)
}

func (s *stream) note(o object, is kind) {
	metadata := objectIn(o, "metadata")
	if value := textIn(objectIn(metadata, "labels"), Label); is == (kind{"", "Namespace"}) && optsIn(value) {
		s.namespaces[nameOf(metadata)] = value
	}
}

func (s *stream) inject(d *document) error {
	var errs []error
	changed := false
	eachObject(d.value, func(o object, is kind) {
		w := workloadIn(o, is)
		if w == nil {
			return
		}
		did, err := s.injectWorkload(w)
		changed = changed || did
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %v: %s%s", d.place(), w, w.place(), strings.ReplaceAll(err.Error(), "\n", "; ")))
		}
	})
	if changed {
		errs = append(errs, d.encode())
	}
	s.write(d)
	return errors.Join(errs...)
}

func (s *stream) injectWorkload(w *workload) (bool, error) {
	s.result.Workloads++
	namespace := w.namespace()
	byDefault := (s.all || s.namespaces[namespace] != "") && namespace != "kube-system" && namespace != ownNamespace
	in, err := w.optedIn(byDefault)
	if !in && err == nil && w.misplaced() {
		s.result.Hints = append(s.result.Hints, fmt.Sprintf("%v is not injected: its label %s must stand on its pods, in %smetadata.labels", w, Label, w.place()))
	}
	if !in || err != nil {
		return false, err
	}
	s.result.OptedIn++
	o := s.options
	o.Node = s.namespaces[namespace] == WithNode
	injected, err := Pod(w.template, o)
	if err != nil || reflect.DeepEqual(w.template, injected) {
		return false, err
	}
	clear(w.template)
	maps.Copy(w.template, injected)
	return true, nil
}

// write appends a document. Between two files it adds a missing mark.
func (s *stream) write(d *document) {
	if d.mark == "" && s.out.Len() > 0 { // a file begins
		if !bytes.HasSuffix(s.out.Bytes(), []byte("\n")) {
			s.out.WriteByte('\n')
		}
		switch {
		case strings.HasPrefix(d.body, "%"): // a directive is allowed only between documents
			s.out.WriteString("...\n")
		case d.body != "":
			s.out.WriteString("---\n")
		}
	}
	s.out.WriteString(d.mark + d.body)
}

func asJSON(value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		return fmt.Sprint(value)
	}
	return strings.TrimSpace(string(text))
}
