package inject

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
)

type review struct {
	APIVersion string    `json:"apiVersion"`
	Kind       string    `json:"kind"`
	Request    *request  `json:"request,omitempty"`
	Response   *response `json:"response,omitempty"`
}

const (
	reviewVersion = "admission.k8s.io/v1"
	reviewKind    = "AdmissionReview"
)

// mirrorAnnotation marks a kubelet's copy of a static pod, which may not have a Secret.
const mirrorAnnotation = "kubernetes.io/config.mirror"

type request struct {
	UID  string `json:"uid"`
	Kind struct {
		Group   string `json:"group"`
		Version string `json:"version"`
		Kind    string `json:"kind"`
	} `json:"kind"`
	Name      string          `json:"name"`
	Namespace string          `json:"namespace"`
	Operation string          `json:"operation"`
	DryRun    bool            `json:"dryRun"`
	Object    json.RawMessage `json:"object"`

	// pod is Object, if a pod is created.
	pod object
}

type response struct {
	UID       string `json:"uid"`
	Allowed   bool   `json:"allowed"`
	Patch     []byte `json:"patch,omitempty"` // base64, as the API requires
	PatchType string `json:"patchType,omitempty"`
	Status    *state `json:"status,omitempty"`
}

// state is the reason of a refusal (a Status of the API).
type state struct {
	Code    int    `json:"code"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// refusedError is a malformed call, which an API server never sends.
type refusedError struct {
	status  int
	message string
}

func (e *refusedError) Error() string { return e.message }

func badRequest(format string, args ...any) error {
	return &refusedError{http.StatusBadRequest, fmt.Sprintf(format, args...)}
}

// readBody reads a whole call. The error is a *refusedError.
func readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxReview))
	if err != nil {
		if _, tooLarge := errors.AsType[*http.MaxBytesError](err); tooLarge {
			return nil, &refusedError{http.StatusRequestEntityTooLarge, fmt.Sprintf("the review is larger than %d bytes", maxReview)}
		}
		return nil, badRequest("reading the review: %v", err)
	}
	return body, nil
}

// readReview decodes the API server's request. The error is a *refusedError.
func readReview(contentType string, body []byte) (*request, error) {
	if !isJSON(contentType) {
		return nil, &refusedError{http.StatusUnsupportedMediaType, fmt.Sprintf("the Content-Type is %q; it must be application/json", contentType)}
	}
	if countValues(body) > maxValues {
		return nil, &refusedError{http.StatusRequestEntityTooLarge, fmt.Sprintf("the review has more than %d values", maxValues)}
	}
	var in review
	if err := json.Unmarshal(body, &in); err != nil {
		return nil, badRequest("this is no review: %v", err)
	}
	switch {
	case in.APIVersion != reviewVersion || in.Kind != reviewKind:
		return nil, badRequest("this is apiVersion %q, kind %q; it must be %s, %s", in.APIVersion, in.Kind, reviewVersion, reviewKind)
	case in.Request == nil:
		return nil, badRequest("the review has no request")
	case in.Request.UID == "":
		return nil, badRequest("the review's request has no uid")
	}
	if err := in.Request.decodePod(); err != nil {
		return nil, badRequest("request.object is no pod: %v", err)
	}
	return in.Request, nil
}

// countValues is an upper bound of the number of JSON values, because each is behind a comma or a bracket.
func countValues(body []byte) int {
	count, quoted, escaped := 0, false, false
	for _, b := range body {
		switch {
		case escaped:
			escaped = false
		case b == '"':
			quoted = !quoted
		case quoted:
			escaped = b == '\\'
		case b == ',' || b == '{' || b == '[':
			count++
		}
	}
	return count
}

func isJSON(contentType string) bool {
	media, _, err := mime.ParseMediaType(contentType)
	return err == nil && media == "application/json"
}

// decodePod keeps numbers as written, because a patch copies what it does not change.
func (r *request) decodePod() error {
	if r.Kind.Group != "" || r.Kind.Kind != "Pod" || r.Operation != "CREATE" {
		return nil
	}
	decoder := json.NewDecoder(bytes.NewReader(r.Object))
	decoder.UseNumber()
	if err := decoder.Decode(&r.pod); err != nil {
		return err
	}
	if r.pod == nil {
		return errors.New("it is null")
	}
	return nil
}

// answer injects the pod. node: its namespace's label is WithNode.
func (r *request) answer(o Options, node bool) response {
	allowed := response{UID: r.UID, Allowed: true}
	metadata := objectIn(r.pod, "metadata")
	if r.pod == nil || objectIn(metadata, "labels")[Label] == WithNothing {
		return allowed
	}
	if _, mirror := objectIn(metadata, "annotations")[mirrorAnnotation]; mirror {
		return allowed
	}
	o.Node = node
	injected, err := Pod(r.pod, o)
	if err != nil {
		return response{UID: r.UID, Status: &state{http.StatusUnprocessableEntity, "Invalid", err.Error()}}
	}
	operations := patch(r.pod, injected)
	if operations == nil {
		return allowed
	}
	allowed.PatchType = "JSONPatch"
	if allowed.Patch, err = json.Marshal(operations); err != nil {
		panic(err) // decoded values can always be encoded
	}
	return allowed
}
