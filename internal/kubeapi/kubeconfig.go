package kubeapi

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"
)

// kubeconfig contains what this package understands of a kubeconfig. Of several files, the first that has a name defines it, as for kubectl.
type kubeconfig struct {
	CurrentContext string         `json:"current-context"`
	Clusters       []namedCluster `json:"clusters"`
	Contexts       []namedContext `json:"contexts"`
	Users          []namedUser    `json:"users"`
}

type namedCluster struct {
	Name    string  `json:"name"`
	Cluster cluster `json:"cluster"`
}

type namedContext struct {
	Name    string `json:"name"`
	Context struct {
		Cluster string `json:"cluster"`
		User    string `json:"user"`
	} `json:"context"`
}

type namedUser struct {
	Name string `json:"name"`
	User user   `json:"user"`
}

type cluster struct {
	Server        string `json:"server"`
	TLSServerName string `json:"tls-server-name,omitempty"`
	Insecure      bool   `json:"insecure-skip-tls-verify,omitempty"`
	CA            string `json:"certificate-authority,omitempty"`
	CAData        []byte `json:"certificate-authority-data,omitempty"`
	ProxyURL      string `json:"proxy-url,omitempty"`

	folder string // of its file: the paths in it are relative to it
}

type user struct {
	Token           string   `json:"token"`
	TokenFile       string   `json:"tokenFile"`
	Certificate     string   `json:"client-certificate"`
	CertificateData []byte   `json:"client-certificate-data"`
	Key             string   `json:"client-key"`
	KeyData         []byte   `json:"client-key-data"`
	Exec            *program `json:"exec"`
	AuthProvider    any      `json:"auth-provider"`
	Username        string   `json:"username"`
	As              string   `json:"as"`

	folder string
}

// program prints the credentials of a user (client.authentication.k8s.io).
type program struct {
	APIVersion string   `json:"apiVersion"`
	Command    string   `json:"command"`
	Args       []string `json:"args"`
	Env        []struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	} `json:"env"`
	InstallHint        string `json:"installHint"`
	ProvideClusterInfo bool   `json:"provideClusterInfo"`
}

// Kubeconfig finds the API server of a context, or of the current one if it is empty. Without a file, the files are those of kubectl:
// KUBECONFIG, otherwise ~/.kube/config. The error is fs.ErrNotExist if there is none.
func Kubeconfig(ctx context.Context, file, name string) (*API, error) {
	config, err := readKubeconfig(file)
	if err != nil {
		return nil, err
	}
	name = cmp.Or(name, config.CurrentContext)
	if name == "" {
		return nil, errors.New("the kubeconfig has no current-context: name one with --context")
	}
	for _, c := range config.Contexts {
		if c.Name != name {
			continue
		}
		for _, cluster := range config.Clusters {
			if cluster.Name != c.Context.Cluster {
				continue
			}
			var caller user // none, if the cluster needs none
			for _, u := range config.Users {
				if u.Name == c.Context.User {
					caller = u.User
					break
				}
			}
			api, err := connect(ctx, &cluster.Cluster, &caller)
			if err != nil {
				return nil, fmt.Errorf("the kubeconfig's context %q: %w", name, err)
			}
			return api, nil
		}
		return nil, fmt.Errorf("the kubeconfig's context %q: there is no cluster %q", name, c.Context.Cluster)
	}
	return nil, fmt.Errorf("the kubeconfig has no context %q; `kubectl config get-contexts` lists them", name)
}

func readKubeconfig(file string) (*kubeconfig, error) {
	files := []string{file}
	if file == "" {
		home, _ := os.UserHomeDir()
		files = filepath.SplitList(cmp.Or(os.Getenv("KUBECONFIG"), filepath.Join(home, ".kube", "config")))
	}
	var all kubeconfig
	found := false
	for _, name := range files {
		content, err := os.ReadFile(name) //nolint:gosec // the file that the user names
		if errors.Is(err, fs.ErrNotExist) && file == "" {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("the kubeconfig: %w", err)
		}
		var one kubeconfig
		if err := yaml.Unmarshal(content, &one); err != nil {
			return nil, fmt.Errorf("the kubeconfig %s: %w", name, err)
		}
		found = true
		folder := filepath.Dir(name)
		for i := range one.Clusters {
			one.Clusters[i].Cluster.folder = folder
		}
		for i := range one.Users {
			one.Users[i].User.folder = folder
		}
		all.CurrentContext = cmp.Or(all.CurrentContext, one.CurrentContext)
		all.Clusters = append(all.Clusters, one.Clusters...)
		all.Contexts = append(all.Contexts, one.Contexts...)
		all.Users = append(all.Users, one.Users...)
	}
	if !found {
		return nil, fmt.Errorf("the kubeconfig %s: %w", strings.Join(files, ", "), fs.ErrNotExist)
	}
	return &all, nil
}

func connect(ctx context.Context, c *cluster, u *user) (*API, error) {
	if u.AuthProvider != nil || u.Username != "" || u.As != "" {
		return nil, errors.New("its user has an auth-provider, a password or an impersonation, which this command does not understand: " +
			"let kubectl ask, and pass its answer with -f")
	}
	address, err := url.Parse(strings.TrimSuffix(c.Server, "/"))
	if err != nil || address.Host == "" {
		return nil, fmt.Errorf("its cluster's server is %q: it must be a URL", c.Server)
	}
	api := &API{URL: address.String()}
	settings := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: c.TLSServerName, InsecureSkipVerify: c.Insecure} //nolint:gosec // the kubeconfig says so
	if c.CAData, err = content(c.CAData, c.CA, c.folder); err != nil {
		return nil, err
	}
	if len(c.CAData) > 0 {
		settings.RootCAs = x509.NewCertPool()
		if !settings.RootCAs.AppendCertsFromPEM(c.CAData) {
			return nil, errors.New("its cluster's certificate-authority is no certificate in PEM")
		}
	}
	if err := u.load(); err != nil {
		return nil, err
	}
	if u.Exec != nil && u.Token == "" && len(u.CertificateData) == 0 {
		if err := u.run(ctx, c); err != nil {
			return nil, err
		}
	}
	api.Token = strings.TrimSpace(u.Token)
	if len(u.CertificateData) > 0 {
		pair, err := tls.X509KeyPair(u.CertificateData, u.KeyData)
		if err != nil {
			return nil, fmt.Errorf("its user's client-certificate: %w", err)
		}
		settings.Certificates = []tls.Certificate{pair}
	}
	proxy := http.ProxyFromEnvironment
	if c.ProxyURL != "" {
		fixed, err := url.Parse(c.ProxyURL)
		if err != nil {
			return nil, fmt.Errorf("its cluster's proxy-url: %w", err)
		}
		proxy = http.ProxyURL(fixed)
	}
	api.HTTP = &http.Client{Transport: &http.Transport{TLSClientConfig: settings, Proxy: proxy, ForceAttemptHTTP2: true}}
	return api, nil
}

// content is data, or else that of the file.
func content(data []byte, file, folder string) ([]byte, error) {
	if len(data) > 0 || file == "" {
		return data, nil
	}
	if !filepath.IsAbs(file) {
		file = filepath.Join(folder, file)
	}
	return os.ReadFile(file) //nolint:gosec // the file that the kubeconfig names
}

// load reads the user's files.
func (u *user) load() (err error) {
	if u.CertificateData, err = content(u.CertificateData, u.Certificate, u.folder); err != nil {
		return err
	}
	if u.KeyData, err = content(u.KeyData, u.Key, u.folder); err != nil {
		return err
	}
	token, err := content([]byte(u.Token), u.TokenFile, u.folder)
	u.Token = string(token)
	return err
}

// run starts the program that prints the user's credentials, as the clouds have them.
func (u *user) run(ctx context.Context, c *cluster) error {
	spec := map[string]any{"interactive": false}
	if u.Exec.ProvideClusterInfo {
		shown := *c
		shown.CA = "" // it is in the data
		spec["cluster"] = shown
	}
	info, err := json.Marshal(map[string]any{"apiVersion": u.Exec.APIVersion, "kind": "ExecCredential", "spec": spec})
	if err != nil {
		return err
	}
	command := u.Exec.Command
	if strings.ContainsRune(command, filepath.Separator) && !filepath.IsAbs(command) {
		command = filepath.Join(u.folder, command)
	}
	var out bytes.Buffer
	run := exec.CommandContext(ctx, command, u.Exec.Args...) //nolint:gosec // the program that the kubeconfig names
	run.Env = append(os.Environ(), "KUBERNETES_EXEC_INFO="+string(info))
	for _, v := range u.Exec.Env {
		run.Env = append(run.Env, v.Name+"="+v.Value)
	}
	run.Stdout, run.Stderr = &out, os.Stderr
	if err := run.Run(); err != nil {
		hint := ""
		if errors.Is(err, exec.ErrNotFound) {
			hint = "\n" + u.Exec.InstallHint
		}
		return fmt.Errorf("its user's credentials come from the program %s: %w%s", u.Exec.Command, err, hint)
	}
	var credential struct {
		Status struct {
			Token       string `json:"token"`
			Certificate string `json:"clientCertificateData"`
			Key         string `json:"clientKeyData"`
		} `json:"status"`
	}
	if err := json.Unmarshal(out.Bytes(), &credential); err != nil || credential.Status.Token == "" && credential.Status.Certificate == "" {
		return fmt.Errorf("its user's credentials come from the program %s, which printed no ExecCredential with a token or a certificate", u.Exec.Command)
	}
	u.Token, u.CertificateData, u.KeyData = credential.Status.Token, []byte(credential.Status.Certificate), []byte(credential.Status.Key)
	return nil
}
