package inject

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// The names of the injector's objects in deploy/injector.
const (
	injectorName      = "locksidecar-injector"
	authorityName     = "locksidecar-injector-ca"
	configurationName = "0-locksidecar-injector"
)

// The life of what an Issuer makes. It makes a new one in the last third.
const (
	authorityLife   = 10 * 365 * 24 * time.Hour
	certificateLife = 90 * 24 * time.Hour
)

// Issuer keeps the webhook's certificate valid in clusters without cert-manager. A CA signs it, so that a new certificate
// does not change what API servers trust. Both are Secrets. Each run corrects what it finds, so it may be repeated and ended at any time.
type Issuer struct {
	API       string       // of the API server: https://host:port
	Client    *http.Client // trusts the API server
	Token     string       // of a service account that may do this
	Namespace string       // of the injector
}

// keyPair is a certificate with its key, as in a Secret of type kubernetes.io/tls.
type keyPair struct {
	Cert []byte `json:"tls.crt"`
	Key  []byte `json:"tls.key"`
}

var errNotFound = errors.New("not found")

// Renew makes what is missing or ends soon, and gives the CA to the webhook's configuration. It returns when the certificate ends.
func (i *Issuer) Renew(ctx context.Context) (time.Time, error) {
	ca, err := i.ensure(ctx, authorityName, authorityLife, nil)
	if err != nil {
		return time.Time{}, err
	}
	certificate, err := i.ensure(ctx, injectorName, certificateLife, ca)
	if err != nil {
		return time.Time{}, err
	}
	type config struct {
		CABundle []byte `json:"caBundle"`
	}
	type webhook struct {
		Name         string `json:"name"`
		ClientConfig config `json:"clientConfig"`
	}
	bundle := config{pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.Certificate[0]})}
	patch := map[string]any{"webhooks": []webhook{{"pod.inject.locksidecar.dev", bundle}, {"namespace.inject.locksidecar.dev", bundle}}}
	path := "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/" + configurationName
	if err := i.call(ctx, http.MethodPatch, path+"?fieldManager=locksidecar", "application/strategic-merge-patch+json", patch, nil); err != nil {
		return time.Time{}, fmt.Errorf("giving the CA to the webhook's configuration %s: %w", configurationName, err)
	}
	return certificate.Leaf.NotAfter, nil
}

// ensure returns the pair of a Secret. It makes another one if there is none, or if it cannot be used. Without a signer, the pair is a CA.
func (i *Issuer) ensure(ctx context.Context, name string, life time.Duration, signer *tls.Certificate) (*tls.Certificate, error) {
	path := "/api/v1/namespaces/" + i.Namespace + "/secrets/" + name
	var secret struct {
		Data keyPair `json:"data"`
	}
	switch err := i.call(ctx, http.MethodGet, path, "", nil, &secret); {
	case err == nil:
		if kept := i.usable(secret.Data, life, signer); kept != nil {
			return kept, nil
		}
	case !errors.Is(err, errNotFound):
		return nil, fmt.Errorf("reading the Secret %s: %w", name, err)
	}
	made, err := i.issue(life, signer)
	if err != nil {
		return nil, fmt.Errorf("making the certificate of the Secret %s: %w", name, err)
	}
	object := map[string]any{
		"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "data": made,
		"metadata": map[string]any{"name": name, "namespace": i.Namespace, "labels": map[string]string{"app.kubernetes.io/name": injectorName}},
	}
	if err := i.call(ctx, http.MethodPatch, path+"?fieldManager=locksidecar&force=true", "application/apply-patch+yaml", object, nil); err != nil {
		return nil, fmt.Errorf("writing the Secret %s: %w", name, err)
	}
	loaded, err := tls.X509KeyPair(made.Cert, made.Key)
	return &loaded, err
}

// host is the name by which API servers call the webhook.
func (i *Issuer) host() string { return injectorName + "." + i.Namespace + ".svc" }

// usable returns the pair if it is valid for another third of its life, and if the signer signed it for this webhook.
func (i *Issuer) usable(p keyPair, life time.Duration, signer *tls.Certificate) *tls.Certificate {
	loaded, err := tls.X509KeyPair(p.Cert, p.Key)
	if err != nil || time.Until(loaded.Leaf.NotAfter) < life/3 || time.Now().Before(loaded.Leaf.NotBefore) {
		return nil
	}
	if signer == nil {
		if !loaded.Leaf.IsCA {
			return nil
		}
	} else if loaded.Leaf.CheckSignatureFrom(signer.Leaf) != nil || loaded.Leaf.VerifyHostname(i.host()) != nil {
		return nil
	}
	return &loaded
}

// issue makes a pair: a CA, or a certificate for the webhook that the CA signs.
func (i *Issuer) issue(life time.Duration, signer *tls.Certificate) (keyPair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return keyPair{}, err
	}
	now := time.Now()
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: injectorName + " CA"}, BasicConstraintsValid: true, IsCA: true, KeyUsage: x509.KeyUsageCertSign,
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(life), // an hour: clocks differ
	}
	parent, signingKey := template, any(key)
	if signer != nil {
		template.Subject.CommonName, template.DNSNames, template.IsCA = i.host(), []string{i.host()}, false
		template.KeyUsage, template.ExtKeyUsage = x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		parent, signingKey = signer.Leaf, signer.PrivateKey
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signingKey)
	if err != nil {
		return keyPair{}, err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return keyPair{}, err
	}
	encode := func(kind string, der []byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}) }
	return keyPair{encode("CERTIFICATE", der), encode("PRIVATE KEY", keyDER)}, nil
}

// call sends a request to the API server, and reads its answer.
func (i *Issuer) call(ctx context.Context, method, path, contentType string, body, answer any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, method, i.API+path, bytes.NewReader(text))
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+i.Token)
	request.Header.Set("Accept", "application/json")
	if contentType != "" {
		request.Header.Set("Content-Type", contentType)
	}
	response, err := i.Client.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	const limit = 4 << 20 // the API server stores at most 3 MiB
	content, err := io.ReadAll(io.LimitReader(response.Body, limit))
	if err != nil {
		return err
	}
	if response.StatusCode >= http.StatusMultipleChoices {
		var status struct {
			Message string `json:"message"`
		}
		_ = json.Unmarshal(content, &status) // the status says enough without a message
		err := fmt.Errorf("%s: %s", response.Status, status.Message)
		if response.StatusCode == http.StatusNotFound {
			return errors.Join(errNotFound, err)
		}
		return err
	}
	if answer == nil {
		return nil
	}
	return json.Unmarshal(content, answer)
}
