package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/locksidecar/locksidecar/internal/exitcode"
	"github.com/locksidecar/locksidecar/internal/inject"
)

const injectLong = `Put the sidecar into the pods of Kubernetes manifests, and print all manifests. Documents
without such pods are printed byte for byte; the others lose their comments.

A pod is injected if it has the label locksidecar.dev/inject: "true" (in a Deployment and
the like: in spec.template.metadata.labels), or if its namespace has this label on a
Namespace in the same manifests. A "false" on the pod has priority. With --all, all pods are
injected except those with "false"; add the label yourself if policies select by it. In the
namespaces kube-system and locksidecar, only the pod's own label counts (a cluster's injector
ignores these namespaces). Pods that already have the sidecar do not change.

With "node" in place of "true" a pod gets no sidecar, but a volume with the socket of its node's
lock server ("locksidecar node"). Of the annotations below, only containers and socket are for it.

Annotations of the pod, all optional:
  locksidecar.dev/image        the sidecar's image
  locksidecar.dev/secret       the Secret with the store's URL under the key store-url
  locksidecar.dev/containers   the containers that get the socket, as "app,worker"; by default the
                               pod's own without sidecars, and injection adds the annotation
  locksidecar.dev/socket       the socket's path (default /run/locksidecar/locksidecar.sock)
  locksidecar.dev/ttl          the default time to live of locks, as "15s"
  locksidecar.dev/namespace    the namespace of the locks (default: the pod's)
  locksidecar.dev/cpu          the processor time requested for the sidecar (default 10m)
  locksidecar.dev/cpu-limit    its limit of processor time (default: none; one that is too low
                               makes the sidecar renew late)
  locksidecar.dev/memory       the sidecar's memory limit, in Mi (default 128Mi)
  locksidecar.dev/ephemeral-storage, locksidecar.dev/ephemeral-storage-limit
                               the request and the limit of ephemeral storage, in Mi (default:
                               none). The sidecar writes no files, but its log counts
  locksidecar.dev/image-pull-policy
                               Always, IfNotPresent or Never
  locksidecar.dev/log-level    debug, info, warn or error
  locksidecar.dev/env          further variables of the sidecar, OTEL_ and some of LOCKSIDECAR_,
                               one NAME=value in each line; --env has priority

If a document is wrong, the command prints only the mistakes on standard error. The exit code is 2.

An injected pod has the annotation locksidecar.dev/injected-version: the release that made its
sidecar. A running pod keeps its sidecar when you upgrade the injector. With --stale, the
command lists the running pods whose sidecar is older than this command, by the annotation and
by the image's tag, whichever is older; VERSION is "-" if neither is a version. Restart their
owners (kubectl rollout restart) to replace the sidecars. It finds the cluster as kubectl does,
and its user must be allowed to list pods. With -f it reads what kubectl prints instead. The
exit code is 0 if there are no such pods, and 1 if there are (69: the cluster does not answer).`

const injectExample = `  # What a pod would look like
  locksidecar inject -f pod.yaml

  # In a pipe
  kubectl kustomize overlays/prod | locksidecar inject -f - | kubectl apply -f -
  kubectl get deployment web -o yaml | locksidecar inject -f - --all | kubectl apply -f -

  # As Helm's post-renderer: a script that calls it; from Helm 4 on, a plugin
  printf '#!/bin/sh\nexec locksidecar inject -f -\n' > inject.sh; chmod +x inject.sh
  helm upgrade --install web ./chart --post-renderer ./inject.sh

  mkdir plugin; cat > plugin/plugin.yaml <<'END'
  {apiVersion: v1, type: postrenderer/v1, name: locksidecar, version: 0.1.0, runtime: subprocess,
   runtimeConfig: {platformCommand: [{command: locksidecar, args: [inject, -f, "-"]}]}}
  END
  helm plugin install ./plugin
  helm upgrade --install web ./chart --post-renderer locksidecar

  # After an upgrade: which pods still have an older sidecar?
  locksidecar inject --stale
  locksidecar inject --stale --context prod -n shop
  locksidecar inject --stale -o json | jq -r '.pods[].owner' | sort -u
  kubectl get pods -A -o json | locksidecar inject --stale -f -

  # As the webhook of a cluster, see deploy/injector/webhook.yaml
  locksidecar inject --webhook --certificate tls.crt --key tls.key`

func (a *app) injectCommand() *cobra.Command {
	var names []string
	var all bool
	cmd := &cobra.Command{
		Use:     "inject -f FILE | --stale | --webhook",
		Short:   "Put the sidecar into Kubernetes manifests",
		Long:    injectLong,
		Example: injectExample,
		Args:    exactly(0),
	}
	cmd.Flags().StringArrayVarP(&names, "filename", "f", nil, "file with manifests, YAML or JSON; - is standard input; may be repeated")
	cmd.Flags().BoolVar(&all, "all", false, "inject pods without the label, too")
	options, webhook, stale := addInjectOptions(cmd), addWebhook(cmd), addStale(cmd)
	cmd.AddCommand(a.injectCertificateCommand())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		o, err := options.checked()
		if err == nil {
			err = cmp.Or(checkModes(cmd, webhook.on, stale.on), webhook.check())
		}
		switch {
		case err != nil:
			return err
		case webhook.on:
			return a.serveWebhook(cmd, webhook, o)
		case stale.on:
			return stale.list(cmd, names)
		case len(names) == 0:
			return usagef("-f is missing: name a file with manifests, or - for standard input, as in `kubectl kustomize . | locksidecar inject -f -`; serve with --webhook; or list pods with --stale")
		}
		files, err := readManifests(names, cmd.InOrStdin())
		if err != nil {
			return exitcode.With(exitcode.Usage, err)
		}
		injected, err := inject.Documents(files, all, o)
		if err != nil {
			return exitcode.With(exitcode.Usage, err)
		}
		reportInjected(cmd.ErrOrStderr(), injected)
		_, err = cmd.OutOrStdout().Write(injected.Stream)
		return err
	}
	return cmd
}

// checkModes refuses flags that mean nothing with, or without, --webhook and --stale.
func checkModes(cmd *cobra.Command, webhook, stale bool) error {
	if webhook && stale {
		return usagef("--webhook and --stale: use one of them")
	}
	for _, group := range []struct {
		flags []string
		fits  bool
		hint  string
	}{
		{[]string{"listen", "metrics", "certificate", "key", "client-ca", "shutdown-delay"}, webhook, "is for --webhook"},
		{[]string{"kubeconfig", "context", "namespace", "output", "json"}, stale, "is for --stale"},
		{[]string{"filename"}, !webhook, "is for manifests, and --webhook is asked for pods by a cluster: use one of them"},
		{[]string{"all"}, !webhook && !stale, "is for manifests alone"},
		{[]string{"image", "image-pull-policy", "secret", "uid", "env"}, !stale, "is for injection, and --stale injects nothing: use one of them"},
	} {
		for _, name := range group.flags {
			if cmd.Flags().Changed(name) && !group.fits {
				return usagef("--%s %s", name, group.hint)
			}
		}
	}
	return nil
}

type injectOptions struct {
	inject.Options

	env []string
}

func addInjectOptions(cmd *cobra.Command) *injectOptions {
	o := &injectOptions{}
	flags := cmd.Flags()
	flags.StringVar(&o.Image, "image", inject.DefaultImage, "the sidecar's image, where a pod has no annotation")
	flags.StringVar(&o.PullPolicy, "image-pull-policy", "", "Always, IfNotPresent or Never for that image, where a pod has no annotation (default: by its tag, as Kubernetes does)")
	flags.Int64Var(&o.User, "uid", inject.DefaultUser, "the sidecar's user and group; 0: the cluster assigns them, as OpenShift does")
	flags.StringVar(&o.Secret, "secret", inject.DefaultSecret, "the Secret with the store's URL under the key store-url, where a pod has no annotation")
	flags.StringArrayVar(&o.env, "env", nil, "a further variable of the sidecar, NAME=VALUE; may be repeated")
	return o
}

func (o *injectOptions) checked() (inject.Options, error) {
	options := o.Options
	for _, text := range o.env {
		name, value, ok := strings.Cut(text, "=")
		if !ok {
			return options, usagef("--env %q: it must be NAME=VALUE", text)
		}
		options.Env = append(options.Env, inject.Variable{Name: name, Value: value})
	}
	return options, exitcode.With(exitcode.Usage, options.Check())
}

func readManifests(names []string, stdin io.Reader) ([]inject.File, error) {
	var files []inject.File
	for _, name := range names {
		content, err := readManifest(name, stdin)
		if err != nil {
			return nil, err
		}
		if name == "-" {
			name = "standard input"
		}
		files = append(files, inject.File{Name: name, Content: content})
	}
	return files, nil
}

// readManifest reads at most one byte more than the limit.
func readManifest(name string, stdin io.Reader) ([]byte, error) {
	const limit = inject.MaxStream + 1
	if name == "-" {
		return io.ReadAll(io.LimitReader(stdin, limit))
	}
	file, err := os.Open(name) //nolint:gosec // the file that the user names
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("-f %s: there is no such file", name)
	}
	if err != nil {
		return nil, fmt.Errorf("-f %w", err)
	}
	defer func() { _ = file.Close() }()
	if info, err := file.Stat(); err == nil && info.IsDir() {
		return nil, fmt.Errorf("-f %s is a folder: name its files, each with -f, or use `kubectl kustomize %s | locksidecar inject -f -`", name, name)
	}
	return io.ReadAll(io.LimitReader(file, limit))
}

// reportInjected writes a summary to standard error, so that a stream without a sidecar is noticed.
func reportInjected(w io.Writer, injected inject.Injected) {
	for _, hint := range injected.Hints {
		fmt.Fprintf(w, "locksidecar: %s\n", hint)
	}
	switch {
	case injected.Workloads == 0:
		fmt.Fprintln(w, "locksidecar: nothing to inject: there are no pods in these manifests")
	case injected.OptedIn == 0:
		fmt.Fprintf(w, "locksidecar: injected none of %d workloads: give their pods the label %s: \"true\", or use --all\n", injected.Workloads, inject.Label)
	default:
		fmt.Fprintf(w, "locksidecar: injected %d of %d workloads\n", injected.OptedIn, injected.Workloads)
	}
}
