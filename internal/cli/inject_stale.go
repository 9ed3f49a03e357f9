package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/locksidecar/locksidecar/internal/client"
	"github.com/locksidecar/locksidecar/internal/exitcode"
	"github.com/locksidecar/locksidecar/internal/inject"
	"github.com/locksidecar/locksidecar/internal/kubeapi"
)

// staleFound is the exit code if there are such pods.
const staleFound = 1

// stale lists pods instead of injecting.
type stale struct {
	on                             bool
	kubeconfig, context, namespace string
}

func addStale(cmd *cobra.Command) *stale {
	in := &stale{}
	flags := cmd.Flags()
	flags.BoolVar(&in.on, "stale", false, "list the running pods whose sidecar is older than this command, and inject nothing")
	flags.StringVar(&in.kubeconfig, "kubeconfig", "", "with --stale: the kubeconfig (default: KUBECONFIG, otherwise ~/.kube/config, otherwise the pod's service account)")
	flags.StringVar(&in.context, "context", "", "with --stale: the kubeconfig's context (default: its current one)")
	flags.StringVarP(&in.namespace, "namespace", "n", "", "with --stale: only pods of this namespace (default: all)")
	addOutput(cmd, "with --stale, one document")
	return in
}

func (in *stale) list(cmd *cobra.Command, names []string) error {
	found, err := in.find(cmd, names)
	if err != nil {
		return err
	}
	if wantsJSON(cmd) {
		err = writeJSON(cmd.OutOrStdout(), found)
	} else {
		err = writeStale(cmd.OutOrStdout(), found)
		fmt.Fprintf(cmd.ErrOrStderr(), "locksidecar: %d of %d running sidecars are older than %s\n", len(found.Pods), found.Sidecars, found.Version)
	}
	if err == nil && len(found.Pods) > 0 {
		return exitcode.StatusError(staleFound)
	}
	return err
}

func (in *stale) find(cmd *cobra.Command, names []string) (*inject.Stale, error) {
	if len(names) > 0 {
		files, err := readManifests(names, cmd.InOrStdin())
		if err != nil {
			return nil, exitcode.With(exitcode.Usage, err)
		}
		found, err := inject.StaleIn(files)
		return found, exitcode.With(exitcode.Usage, err)
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), 5*time.Minute)
	defer cancel()
	api, err := in.api(ctx)
	if err != nil {
		return nil, exitcode.With(exitcode.Config, err)
	}
	found, err := inject.FindStale(ctx, api, in.namespace)
	return found, exitcode.With(exitcode.Unavailable, err)
}

// api finds the API server: as kubectl does, so a kubeconfig is used also in a pod.
func (in *stale) api(ctx context.Context) (*kubeapi.API, error) {
	api, err := kubeapi.Kubeconfig(ctx, in.kubeconfig, in.context)
	if !errors.Is(err, fs.ErrNotExist) || in.kubeconfig != "" {
		return api, err
	}
	if os.Getenv(kubeapi.PodVariable) == "" {
		return nil, fmt.Errorf("%w, and this is no pod: name one with --kubeconfig, or pass what `kubectl get pods --all-namespaces -o json` prints with -f -", err)
	}
	return kubeapi.InPod(kubeapi.Account)
}

func writeStale(w io.Writer, found *inject.Stale) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "NAMESPACE\tPOD\tOWNER\tVERSION\tAGE\tIMAGE")
	for _, p := range found.Pods {
		age := "-" // a list from a file need not say it
		if !p.CreatedAt.IsZero() {
			age = client.Human(time.Since(p.CreatedAt).Milliseconds())
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\n", p.Namespace, p.Name, orDash(p.Owner), orDash(p.Version), age, client.Printable(p.Image))
	}
	return table.Flush()
}
