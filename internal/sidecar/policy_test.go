package sidecar

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/internal/hostfolder"
)

func policyOf(t *testing.T, text string) (*policy, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return readPolicy(path)
}

// A pod has the namespace of Kubernetes and no rights, unless the policy says so, for its own service account.
func TestPolicy(t *testing.T) {
	t.Parallel()
	p, err := policyOf(t, `
namespaces: {shop-canary: shop}
serviceAccounts:
- {namespace: ops, name: breaker, force: true}
- {namespace: ops, name: reader, otherNamespaces: true}
`)
	if err != nil {
		t.Fatal(err)
	}
	none, err := readPolicy("")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		policy             *policy
		namespace, account string
		want               string
		force, others      bool
	}{
		{p, "shop", "breaker", "shop", false, false},
		{p, "shop-canary", "default", "shop", false, false},
		{p, "ops", "breaker", "ops", true, false},
		{p, "ops", "reader", "ops", false, true},
		{p, "ops", "default", "ops", false, false},
		{none, "ops", "breaker", "ops", false, false},
	} {
		pod := hostfolder.Pod{Namespace: c.namespace, ServiceAccount: c.account}
		if got, may := c.policy.namespaceOf(pod), c.policy.rightsOf(pod); got != c.want || may.Force != c.force || may.OtherNamespaces != c.others {
			t.Errorf("%+v: namespace %s, rights %+v", pod, got, may)
		}
	}
}

// With a list of namespaces, the pods of all others get nothing.
func TestAllowedNamespaces(t *testing.T) {
	t.Parallel()
	p, err := policyOf(t, "---\nallow: [shop, pay]\n")
	if err != nil {
		t.Fatal(err)
	}
	for namespace, want := range map[string]bool{"shop": true, "pay": true, "ops": false} {
		if got := p.allows(hostfolder.Pod{Namespace: namespace}); got != want {
			t.Errorf("%s is allowed: %t", namespace, got)
		}
		if !(&policy{}).allows(hostfolder.Pod{Namespace: namespace}) {
			t.Errorf("without a list, %s is not allowed", namespace)
		}
	}
}

// A mistake in the policy is an error, because a wrong name would only take rights away, or mix namespaces.
func TestWrongPolicies(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ text, want string }{
		{"namespace: {a: b}", "namespace"},
		{"namespaces: {a: ''}", "namespaces[a]"},
		{"namespaces: {A_B: c}", `"A_B"`},
		{"namespaces: {a: \"b\\nc\"}", "control characters"},
		{"namespaces: [a]", "policy.yaml"},
		{"serviceAccounts: [{namespace: a, name: b}]", "allows nothing"},
		{"serviceAccounts: [{namespace: a, force: true}]", "serviceAccounts[0]"},
		{"serviceAccounts: [{namespace: a, name: b, force: true, x: true}]", "x"},
		{"allow: [A_B]", "allow[0]"},
		{"allow: []", "allow is empty"},
		{"allow:\nnamespaces: {a: b}", "allow has no value"},
		{"Allow:\nnamespaces: {a: b}", "allow has no value"},
		{"namespaces: {a: b}\n---\nnamespaces: {c: d}", "second document"},
	} {
		if _, err := policyOf(t, c.text); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.text, err)
		}
	}
	if _, err := readPolicy("/no/such/file"); err == nil {
		t.Error("a missing file is no error")
	}
}
