package kubeapi

import (
	"crypto/tls"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// server answers with the caller's token, or with the name in its certificate.
func server(t *testing.T) (url, ca string) {
	t.Helper()
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/missing":
			w.WriteHeader(http.StatusNotFound)
			_, _ = w.Write([]byte(`{"message":"no such pod"}`))
		case "/garbage":
			_, _ = w.Write([]byte(`<html>`))
		default:
			_, _ = fmt.Fprintf(w, `{"path":%q,"token":%q}`, r.URL.Path, strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))
		}
	}))
	t.Cleanup(s.Close)
	return s.URL, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}))
}

func write(t *testing.T, folder, name, text string, mode os.FileMode) string {
	t.Helper()
	file := filepath.Join(folder, name)
	if err := os.WriteFile(file, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	return file
}

func called(t *testing.T, api *API, path string) (token string) {
	t.Helper()
	var answer struct{ Path, Token string }
	if err := api.Call(t.Context(), http.MethodGet, path, "", nil, &answer); err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(answer.Path, path) {
		t.Errorf("called %s, want %s", answer.Path, path)
	}
	return answer.Token
}

// A user's credentials are found wherever kubectl would find them.
func TestKubeconfig(t *testing.T) {
	url, ca := server(t)
	folder := t.TempDir()
	write(t, folder, "ca.crt", ca, 0o600)
	write(t, folder, "token", "from-file\n", 0o600)
	write(t, folder, "credentials", "#!/bin/sh\ncase $KUBERNETES_EXEC_INFO in *'\"server\":\"https://'*'certificate-authority-data'*) ;; *) exit 3 ;; esac\n"+
		`echo "{\"kind\":\"ExecCredential\",\"status\":{\"token\":\"$1-$REGION\"}}"`+"\n", 0o700)
	write(t, folder, "silent", "#!/bin/sh\n", 0o700)
	data := base64.StdEncoding.EncodeToString([]byte(ca))
	file := write(t, folder, "config", `
apiVersion: v1
kind: Config
current-context: a
clusters:
- {name: data, cluster: {server: "`+url+`/", certificate-authority-data: `+data+`}}
- {name: file, cluster: {server: "`+url+`/below", certificate-authority: ca.crt}}
- {name: insecure, cluster: {server: "`+url+`", insecure-skip-tls-verify: true}}
- {name: distrust, cluster: {server: "`+url+`"}}
- {name: strange, cluster: {server: "here"}}
users:
- {name: token, user: {token: direct}}
- {name: file, user: {tokenFile: token}}
- {name: program, user: {exec: {apiVersion: client.authentication.k8s.io/v1, command: ./credentials, args: [x], env: [{name: REGION, value: eu}], provideClusterInfo: true}}}
- {name: silent, user: {exec: {command: ./silent}}}
- {name: absent, user: {exec: {command: no-such-program, installHint: get it from the cloud}}}
- {name: old, user: {auth-provider: {name: gcp}}}
- {name: as, user: {token: x, as: root}}
- {name: half, user: {client-certificate-data: `+data+`}}
contexts:
- {name: a, context: {cluster: data, user: token}}
- {name: b, context: {cluster: file, user: file}}
- {name: c, context: {cluster: data, user: program}}
- {name: d, context: {cluster: insecure, user: ""}}
- {name: e, context: {cluster: distrust, user: token}}
- {name: f, context: {cluster: none, user: token}}
- {name: g, context: {cluster: strange, user: token}}
- {name: h, context: {cluster: data, user: silent}}
- {name: i, context: {cluster: data, user: absent}}
- {name: j, context: {cluster: data, user: old}}
- {name: k, context: {cluster: data, user: as}}
- {name: l, context: {cluster: data, user: half}}
`, 0o600)
	for _, test := range []struct{ context, path, token, fails string }{
		{"", "/x", "direct", ""},
		{"b", "/below/x", "from-file", ""},
		{"c", "/x", "x-eu", ""},
		{"d", "/x", "", ""},
		{"f", "", "", `there is no cluster "none"`},
		{"g", "", "", `its cluster's server is "here": it must be a URL`},
		{"h", "", "", "printed no ExecCredential"},
		{"i", "", "", "get it from the cloud"},
		{"j", "", "", "pass its answer with -f"},
		{"k", "", "", "pass its answer with -f"},
		{"l", "", "", "client-certificate"},
		{"z", "", "", `no context "z"; ` + "`kubectl config get-contexts`"},
	} {
		api, err := Kubeconfig(t.Context(), file, test.context)
		if test.fails != "" {
			if err == nil || !strings.Contains(err.Error(), test.fails) {
				t.Errorf("%s: %v, want %q", test.context, err, test.fails)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", test.context, err)
		} else if token := called(t, api, "/x"); token != test.token {
			t.Errorf("%s: the token is %q, want %q", test.context, token, test.token)
		}
	}
	api, err := Kubeconfig(t.Context(), file, "e")
	if err != nil {
		t.Fatal(err)
	}
	if err := api.Call(t.Context(), http.MethodGet, "/x", "", nil, nil); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("a server of an unknown CA: %v", err)
	}
}

// KUBECONFIG may name several files, some of which do not exist. Without one, it is that of the home.
func TestKubeconfigFiles(t *testing.T) {
	url, _ := server(t)
	one, home := t.TempDir(), t.TempDir()
	first := write(t, one, "first", "contexts: [{name: a, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {token: first}}]\n", 0o600)
	second := write(t, one, "second", "current-context: a\nclusters: [{name: c, cluster: {server: '"+url+"', insecure-skip-tls-verify: true}}]\nusers: [{name: u, user: {token: second}}]\n", 0o600)
	t.Setenv("HOME", home)
	t.Setenv("KUBECONFIG", strings.Join([]string{filepath.Join(one, "none"), first, second}, string(filepath.ListSeparator)))
	api, err := Kubeconfig(t.Context(), "", "")
	if err != nil {
		t.Fatal(err)
	}
	if token := called(t, api, "/x"); token != "first" {
		t.Errorf("the token is %q", token)
	}
	t.Setenv("KUBECONFIG", "")
	if _, err := Kubeconfig(t.Context(), "", ""); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), home) {
		t.Error(err)
	}
	for text, says := range map[string]string{"a: [": "the kubeconfig " + filepath.Join(one, "x"), "{}": "no current-context: name one with --context"} {
		if _, err := Kubeconfig(t.Context(), write(t, one, "x", text, 0o600), ""); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", text, err)
		}
	}
	if _, err := Kubeconfig(t.Context(), filepath.Join(one, "none"), ""); err == nil || !strings.Contains(err.Error(), "none") {
		t.Error(err)
	}
}

func TestCallSaysWhatIsWrong(t *testing.T) {
	url, _ := server(t)
	api := &API{URL: url, HTTP: &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}}
	if err := api.Call(t.Context(), http.MethodGet, "/missing", "", nil, nil); !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "no such pod") {
		t.Error(err)
	}
	var answer struct{}
	if err := api.Call(t.Context(), http.MethodGet, "/garbage", "", nil, &answer); err == nil || !strings.Contains(err.Error(), "answer cannot be read") {
		t.Error(err)
	}
}
