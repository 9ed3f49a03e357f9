package inject

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/internal/config"
)

// Label opts in a pod, or all pods of a namespace. A pod's own overrides that of its namespace.
const Label = "locksidecar.dev/inject"

// The values of Label.
const (
	// WithSidecar gives the pod a sidecar.
	WithSidecar = "true"
	// WithNode gives it a volume with the socket of its node's lock server, `locksidecar node`, and no container.
	WithNode = "node"
	// WithNothing: the pod has no locks, whatever its namespace says.
	WithNothing = "false"
)

// Annotations of a pod, all optional.
const (
	// ImageAnnotation is the sidecar's image.
	ImageAnnotation = "locksidecar.dev/image"
	// SecretAnnotation names the Secret with the store's URL under the key "store-url".
	SecretAnnotation = "locksidecar.dev/secret" //nolint:gosec // a name, no secret
	// ContainersAnnotation lists the containers that get the socket, including init containers, separated by
	// commas. Without it the pod's own containers get the socket, and injection adds the annotation.
	ContainersAnnotation = "locksidecar.dev/containers"
	// SocketAnnotation is the path of the socket, in all containers.
	SocketAnnotation = "locksidecar.dev/socket"
	// TTLAnnotation is the default time to live of the pod's locks (LOCKSIDECAR_TTL).
	TTLAnnotation = "locksidecar.dev/ttl"
	// NamespaceAnnotation is LOCKSIDECAR_NAMESPACE of the pod's locks. The default is the pod's namespace.
	NamespaceAnnotation = "locksidecar.dev/namespace"
	// CPUAnnotation is the sidecar's request for processor time.
	CPUAnnotation = "locksidecar.dev/cpu"
	// CPULimitAnnotation is the sidecar's limit of processor time. By default it has none.
	CPULimitAnnotation = "locksidecar.dev/cpu-limit"
	// StorageAnnotation is the sidecar's request for ephemeral storage, and StorageLimitAnnotation its limit. It writes no files,
	// but a kubelet counts its log.
	StorageAnnotation      = "locksidecar.dev/ephemeral-storage"
	StorageLimitAnnotation = "locksidecar.dev/ephemeral-storage-limit"
	// PullPolicyAnnotation is the imagePullPolicy of the sidecar.
	PullPolicyAnnotation = "locksidecar.dev/image-pull-policy"
	// MemoryAnnotation is the sidecar's memory limit. A quarter of it is its request.
	MemoryAnnotation = "locksidecar.dev/memory"
	// LogLevelAnnotation is LOCKSIDECAR_LOG_LEVEL.
	LogLevelAnnotation = "locksidecar.dev/log-level"
	// EnvAnnotation contains further variables of the sidecar, one NAME=value in each line.
	EnvAnnotation = "locksidecar.dev/env"
)

// VersionAnnotation is not a setting: injection writes the version of the release that added the sidecar. See Stale.
const VersionAnnotation = "locksidecar.dev/injected-version"

const prefix = "locksidecar.dev/"

var annotationNames = []string{
	ImageAnnotation, SecretAnnotation, ContainersAnnotation, SocketAnnotation, TTLAnnotation, NamespaceAnnotation,
	CPUAnnotation, CPULimitAnnotation, MemoryAnnotation, StorageAnnotation, StorageLimitAnnotation, PullPolicyAnnotation, LogLevelAnnotation, EnvAnnotation,
}

// The defaults of Options.
const (
	// DefaultImage is also the image of the manifests in deploy/.
	DefaultImage  = "ghcr.io/locksidecar/locksidecar:v0.1.0"
	DefaultSecret = "locksidecar"
	// DefaultUser is the user of the image.
	DefaultUser = 65532
)

// Version is the release that this code belongs to. It is that of the image, and not of the build, so that a
// policy, which is no build, writes the same into a pod.
func Version() string { return tagOf(DefaultImage) }

// Options are the same for all pods of a cluster. They must be checked once, before the first pod.
type Options struct {
	// Image and Secret are used for pods without the annotations.
	Image, Secret string
	// PullPolicy is used for pods without the annotation. Empty: Kubernetes decides by the image's tag.
	PullPolicy string
	// User is the sidecar's user and group. 0: none is set, because the cluster assigns one, as OpenShift does.
	User int64
	// Env are further variables of the sidecar, such as OTEL_EXPORTER_OTLP_ENDPOINT.
	Env []Variable
	// Node: pods without a label of their own are as those with WithNode.
	Node bool
}

// Variable is an environment variable.
type Variable struct{ Name, Value string }

// Check returns the mistakes in the options, named by their flags.
func (o Options) Check() error {
	var errs []error
	if !imageName.MatchString(o.Image) {
		errs = append(errs, fmt.Errorf("--image is %q: it must be %s", o.Image, imageRule))
	}
	if !secretName.MatchString(o.Secret) {
		errs = append(errs, fmt.Errorf("--secret is %q: it must be %s", o.Secret, secretRule))
	}
	if o.PullPolicy != "" && !pullPolicy.MatchString(o.PullPolicy) {
		errs = append(errs, fmt.Errorf("--image-pull-policy is %q: it must be %s", o.PullPolicy, pullRule))
	}
	if o.User < 0 || o.User > math.MaxInt32 {
		errs = append(errs, fmt.Errorf("--uid is %d: it must be from 1 to %d, or 0 if the cluster assigns one", o.User, math.MaxInt32))
	}
	taken := ownVariables()
	for _, v := range o.Env {
		switch {
		case !variableName.MatchString(v.Name):
			errs = append(errs, fmt.Errorf("--env %q: a variable's name is letters, digits and '_', and does not begin with a digit", v.Name))
		case v.Name == ttlVariable:
			errs = append(errs, fmt.Errorf("--env %s: a pod sets it with the annotation %s", v.Name, TTLAnnotation))
		case slices.Contains(taken, v.Name):
			errs = append(errs, fmt.Errorf("--env %s is set already: by the injection itself, or twice", v.Name))
		}
		taken = append(taken, v.Name)
	}
	return errors.Join(errs...)
}

type settings struct {
	// node: the socket comes from the node's lock server. Only socket and containers count then.
	node                             bool
	image, secret, socket, namespace string
	// These are quantities of Kubernetes, memory and storage in Mi. Empty: none.
	cpu, cpuLimit, memory, storage, storageLimit string
	// pullPolicy is empty for Kubernetes' default.
	pullPolicy string
	// ttl is empty for the sidecar's default, containers is empty for the pod's own.
	ttl        string
	containers []string
	// env also contains the log level.
	env []Variable
}

// The rules for values, as shown in errors.
const (
	imageRule  = "the name of an image, such as " + DefaultImage
	cpuRule    = "millicores from 1m to 99999m, or cores from 1 to 99"
	memoryRule = "from 64Mi to 9999Mi, in Mi"
	spaceRule  = "from 1Mi to 99999Mi, in Mi"
	pullRule   = "Always, IfNotPresent or Never"
	levelRule  = "debug, info, warn or error"
	secretRule = "the name of a Secret: small letters, digits, '-' and '.'" //nolint:gosec // no secret
)

// pattern is a regular expression that is compiled at its first use. Each sidecar links this package and hardly any uses
// it, and together the patterns take a megabyte and two milliseconds.
type pattern func() *regexp.Regexp

func matcher(text string) pattern {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(text) })
}

func (p pattern) MatchString(s string) bool { return p().MatchString(s) }

func (p pattern) String() string { return p().String() }

var (
	variableName = matcher(`^[A-Za-z_][A-Za-z0-9_]*$`)

	// A part that begins with a dot could be "." or "..", or hide the folder.
	socketPath = matcher(`^(/[A-Za-z0-9_-][A-Za-z0-9._-]*){2,}$`)
	// Mounts in the Secret's mount or over the sidecar's binary would prevent the pod's start.
	takenFolder = matcher(`^(/etc)?/locksidecar/`)
	secretName  = matcher(`^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$`)
	imageName   = matcher(`^[A-Za-z0-9][-A-Za-z0-9._/:@]{0,511}$`)
	lockSpace   = matcher(`^[A-Za-z0-9][-A-Za-z0-9._/:]{0,254}$`)
	cpuAmount   = matcher(`^([1-9][0-9]{0,4}m|[1-9][0-9]?)$`)
	memory      = matcher(`^(6[4-9]|[7-9][0-9]|[1-9][0-9]{2,3})Mi$`)
	space       = matcher(`^[1-9][0-9]{0,4}Mi$`)
	pullPolicy  = matcher(`^(Always|IfNotPresent|Never)$`)
	logLevel    = matcher(`^(debug|info|warn|error)$`)
	minTTL      = 500 * time.Millisecond
	maxTTL      = 24 * time.Hour
	maxSocket   = 107 // bytes of a Unix socket's path (unix(7), sun_path)
	storeFolder = "/etc/locksidecar"
)

// settingsOf reads the pod's annotations. The error joins all mistakes.
func settingsOf(annotations map[string]any, node bool, o Options) (settings, error) {
	s := settings{node: node, image: o.Image, secret: o.Secret, socket: config.DefaultSocket, namespace: "$(POD_NAMESPACE)", cpu: "10m", memory: "128Mi", pullPolicy: o.PullPolicy}
	var errs []error
	read := func(name string, into *string, rule string, right func(string) bool) {
		value, there := annotations[name]
		if !there {
			return
		}
		text, ok := value.(string)
		switch {
		case !ok:
			errs = append(errs, fmt.Errorf("annotation %s is %s: it must be a string, in quotes", name, asJSON(value)))
		case !right(text):
			errs = append(errs, fmt.Errorf("annotation %s is %q: it must be %s", name, text, rule))
		default:
			*into = text
		}
	}
	for _, name := range slices.Sorted(maps.Keys(annotations)) {
		if strings.HasPrefix(name, prefix) && name != VersionAnnotation && !slices.Contains(annotationNames, name) {
			errs = append(errs, fmt.Errorf("annotation %s is not known; known annotations: %s", name, strings.Join(annotationNames, ", ")))
		}
	}
	if s.node {
		errs = append(errs, checkNodeAnnotations(annotations))
	}
	var containers, level, env string
	read(ImageAnnotation, &s.image, imageRule, imageName.MatchString)
	read(SecretAnnotation, &s.secret, secretRule, secretName.MatchString)
	read(SocketAnnotation, &s.socket, fmt.Sprintf("an absolute path with a folder other than %s and /locksidecar, of letters, digits, '.', '_' and '-', at most %d bytes", storeFolder, maxSocket),
		func(p string) bool {
			return len(p) <= maxSocket && socketPath.MatchString(p) && !takenFolder.MatchString(path.Dir(p)+"/")
		})
	read(TTLAnnotation, &s.ttl, "a duration from 500ms to 24h, such as 15s", rightTTL)
	read(NamespaceAnnotation, &s.namespace, "1 to 255 letters, digits, '-', '.', '_', '/' or ':'", lockSpace.MatchString)
	read(ContainersAnnotation, &containers, "names of containers, separated by commas, without spaces", func(list string) bool {
		return !slices.Contains(strings.Split(list, ","), "")
	})
	read(CPUAnnotation, &s.cpu, cpuRule, cpuAmount.MatchString)
	read(CPULimitAnnotation, &s.cpuLimit, cpuRule, cpuAmount.MatchString)
	read(MemoryAnnotation, &s.memory, memoryRule, memory.MatchString)
	read(StorageAnnotation, &s.storage, spaceRule, space.MatchString)
	read(StorageLimitAnnotation, &s.storageLimit, spaceRule, space.MatchString)
	read(PullPolicyAnnotation, &s.pullPolicy, pullRule, pullPolicy.MatchString)
	read(LogLevelAnnotation, &level, levelRule, logLevel.MatchString)
	read(EnvAnnotation, &env, envRule, rightEnv)
	if level != "" {
		s.env = append(s.env, Variable{config.Prefix + "LOG_LEVEL", level})
	}
	s.env = append(s.env, variablesIn(env)...)
	for _, r := range []struct{ request, limit, is, most string }{
		{CPUAnnotation, CPULimitAnnotation, s.cpu, s.cpuLimit},
		{StorageAnnotation, StorageLimitAnnotation, s.storage, s.storageLimit},
	} {
		if r.most != "" && amount(r.most) < amount(r.is) {
			errs = append(errs, fmt.Errorf("annotation %s is %q: it must not be less than the request, %s (the annotation %s changes it)", r.limit, r.most, r.is, r.request))
		}
	}
	if containers != "" {
		s.containers = strings.Split(containers, ",")
	}
	return s, errors.Join(errs...)
}

func rightTTL(value string) bool {
	ttl, err := time.ParseDuration(value)
	return err == nil && ttl >= minTTL && ttl <= maxTTL
}

func (s settings) wants(container string) bool {
	return slices.Contains(s.containers, container)
}

// amount is a checked quantity as a number: thousandths of a core, or mebibytes. The empty one is 0.
func amount(quantity string) int {
	number := strings.TrimRight(quantity, "mMi")
	n, _ := strconv.Atoi(number)
	if number == quantity { // cores
		n *= 1000
	}
	return n
}

func (s settings) mebibytes() int { return amount(s.memory) }

func (s settings) folder() string { return path.Dir(s.socket) }
