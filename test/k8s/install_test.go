package k8s

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// ways are how a cluster may inject. Each installs itself together with validate.yaml.
var ways = map[string]func(t *testing.T){
	"policy":  func(t *testing.T) { installInjector(t, deployed(t, "injector/policy.yaml")...) },
	"webhook": func(t *testing.T) { installInjector(t, webhook(t)) },
}

// notInjected is in validate.yaml's refusal of a pod that nothing has injected.
const notInjected = "is the injector installed"

// installInjector installs validate.yaml and a way to inject, until the end of the test.
func installInjector(t *testing.T, injector ...*unstructured.Unstructured) {
	t.Helper()
	installValidation(t)
	probe := newProbe(t)
	t.Cleanup(func() { probe.until(t, "refused", isRefused(notInjected)) })
	install(t, injector...)
	probe.until(t, "injected", isInjected)
}

// installValidation installs validate.yaml alone.
func installValidation(t *testing.T) {
	t.Helper()
	probe := newProbe(t)
	t.Cleanup(func() {
		probe.until(t, "admitted", func(_ *unstructured.Unstructured, err error) bool { return err == nil })
	})
	install(t, deployed(t, "injector/validate.yaml")...)
	probe.until(t, "refused", isRefused(notInjected))
}

func isAdmitted(_ *unstructured.Unstructured, err error) bool { return err == nil }

func isInjected(pod *unstructured.Unstructured, err error) bool {
	return err == nil && hasSocket(pod, "app")
}

func isRefused(why string) func(*unstructured.Unstructured, error) bool {
	return func(_ *unstructured.Unstructured, err error) bool {
		return err != nil && strings.Contains(err.Error(), why)
	}
}

// probe asks in both ways of opting in, each of which has a binding or a webhook of its own.
type probe struct{ plain, labelled string }

func newProbe(t *testing.T) probe {
	t.Helper()
	return probe{plain: namespace(t, nil), labelled: namespace(t, optedIn)}
}

func (p probe) until(t *testing.T, what string, right func(*unstructured.Unstructured, error) bool) {
	t.Helper()
	ask := func(namespace string, labels map[string]string) error {
		pod, err := dryRun(t, namespace, podOf("probe", labels, nil))
		if !right(pod, err) {
			return fmt.Errorf("the probe is not yet %s (error: %w)", what, err)
		}
		return nil
	}
	eventually(t, func() error { return errors.Join(ask(p.plain, optedIn), ask(p.labelled, nil)) })
}
