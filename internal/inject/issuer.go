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
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/internal/kubeapi"
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
	// overlap is how long API servers trust a CA before it signs, and still trust it after another one has signed. Within that time, all
	// of them have read the configuration, and all kubelets have replaced the Secret's files in the webhook's pods. Both usually take a minute.
	overlap = 12 * time.Hour
	// early is how long before its making a certificate is already valid, because clocks differ.
	early = time.Hour
)

// Issuer keeps the webhook's certificate valid in clusters without cert-manager. A CA signs it, so that a new certificate
// does not change what API servers trust. Both are Secrets. Each run corrects what it finds, so it may be repeated and ended at any time.
//
// A new CA has an overlap with the one before it, so no review fails meanwhile. One run makes it and adds it to the CAs in the configuration, a run
// after the overlap lets it sign, and a run after another overlap takes the old one out of the configuration. Nothing of this is written down but the
// Secrets and the configuration. To replace a CA whose key others have seen, delete its Secret: the same happens.
type Issuer struct {
	API *kubeapi.API

	Namespace string // of the injector
}

// keyPair is a certificate with its key, as in a Secret of type kubernetes.io/tls.
type keyPair struct {
	Cert []byte `json:"tls.crt"`
	Key  []byte `json:"tls.key"`
}

// stored is a Secret. The pair is nil if there is none that can be used. The version is empty if there is no Secret.
type stored struct {
	name, version string
	pair          *tls.Certificate
}

// configuration is what an Issuer reads and writes of the webhook's configuration. Its version makes a write fail if somebody else has written.
type configuration struct {
	Metadata version `json:"metadata"`
	Webhooks []hook  `json:"webhooks"`
}

type version struct {
	ResourceVersion string `json:"resourceVersion"`
}

type hook struct {
	Name         string     `json:"name"`
	ClientConfig hookClient `json:"clientConfig"`
}

type hookClient struct {
	CABundle []byte `json:"caBundle"`
}

const configurationPath = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/" + configurationName

// Renew makes what is missing or ends soon, and gives the CAs to the webhook's configuration. It returns when the certificate ends.
// If another run writes at the same time, one of them fails, and its repetition sees what the other has written.
func (i *Issuer) Renew(ctx context.Context) (time.Time, error) {
	ca, err := i.read(ctx, authorityName)
	if err != nil {
		return time.Time{}, err
	}
	certificate, err := i.read(ctx, injectorName)
	if err != nil {
		return time.Time{}, err
	}
	var hooks configuration
	if err := i.API.Call(ctx, http.MethodGet, configurationPath, "", nil, &hooks); err != nil {
		return time.Time{}, fmt.Errorf("reading the webhook's configuration %s: %w", configurationName, err)
	}

	if ca.pair == nil || !ca.pair.Leaf.IsCA || validFor(ca.pair.Leaf) < authorityLife/3 {
		if err := i.issue(ctx, &ca, authorityLife, nil); err != nil {
			return time.Time{}, err
		}
	}
	known := hooks.trusted()
	trusted := append([]*x509.Certificate{ca.pair.Leaf}, slices.DeleteFunc(slices.Clone(known), ca.pair.Leaf.Equal)...)
	switched := certificate.pair != nil && certificate.pair.Leaf.CheckSignatureFrom(ca.pair.Leaf) == nil
	if switched && age(certificate.pair.Leaf) >= overlap {
		trusted = trusted[:1]
	}
	if err := i.trust(ctx, hooks, trusted); err != nil {
		return time.Time{}, err
	}

	settled := switched || slices.ContainsFunc(known, ca.pair.Leaf.Equal) && age(ca.pair.Leaf) >= overlap
	switch {
	case !i.serves(certificate.pair, trusted), settled && (!switched || validFor(certificate.pair.Leaf) < certificateLife/3):
		if err := i.issue(ctx, &certificate, certificateLife, ca.pair); err != nil {
			return time.Time{}, err
		}
	}
	return certificate.pair.Leaf.NotAfter, nil
}

// validFor is how long a certificate is still valid, and age how long ago it was made.
func validFor(c *x509.Certificate) time.Duration { return time.Until(c.NotAfter) }
func age(c *x509.Certificate) time.Duration      { return time.Since(c.NotBefore) - early }

// host is the name by which API servers call the webhook.
func (i *Issuer) host() string { return injectorName + "." + i.Namespace + ".svc" }

// serves reports whether API servers that trust these CAs accept the certificate, until after the overlap.
func (i *Issuer) serves(pair *tls.Certificate, trusted []*x509.Certificate) bool {
	if pair == nil {
		return false
	}
	roots := x509.NewCertPool()
	for _, ca := range trusted {
		roots.AddCert(ca)
	}
	for _, at := range []time.Time{time.Now(), time.Now().Add(2 * overlap)} {
		if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: i.host(), CurrentTime: at}); err != nil {
			return false
		}
	}
	return true
}

func (i *Issuer) secrets() string { return "/api/v1/namespaces/" + i.Namespace + "/secrets" }

// read reads a Secret.
func (i *Issuer) read(ctx context.Context, name string) (stored, error) {
	var secret struct {
		Metadata version `json:"metadata"`
		Data     keyPair `json:"data"`
	}
	err := i.API.Call(ctx, http.MethodGet, i.secrets()+"/"+name, "", nil, &secret)
	if err != nil && !errors.Is(err, kubeapi.ErrNotFound) {
		return stored{}, fmt.Errorf("reading the Secret %s: %w", name, err)
	}
	s := stored{name: name, version: secret.Metadata.ResourceVersion}
	if pair, err := tls.X509KeyPair(secret.Data.Cert, secret.Data.Key); err == nil {
		s.pair = &pair
	}
	return s, nil
}

// issue makes another pair, and writes it into the Secret. Without a signer, it is a CA.
func (i *Issuer) issue(ctx context.Context, s *stored, life time.Duration, signer *tls.Certificate) error {
	made, err := i.make(life, signer)
	if err != nil {
		return fmt.Errorf("making the certificate of the Secret %s: %w", s.name, err)
	}
	metadata := map[string]any{"name": s.name, "labels": map[string]string{"app.kubernetes.io/name": injectorName}}
	secret := map[string]any{"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "data": made, "metadata": metadata}
	if s.version == "" {
		err = i.API.Call(ctx, http.MethodPost, i.secrets()+"?fieldManager=locksidecar", "application/json", secret, nil)
	} else {
		metadata["resourceVersion"] = s.version
		err = i.API.Call(ctx, http.MethodPatch, i.secrets()+"/"+s.name+"?fieldManager=locksidecar", "application/merge-patch+json", secret, nil)
	}
	if err != nil {
		return fmt.Errorf("writing the Secret %s: %w", s.name, err)
	}
	pair, err := tls.X509KeyPair(made.Cert, made.Key)
	s.pair = &pair
	return err
}

// make creates a pair: a CA, or a certificate for the webhook that the CA signs.
func (i *Issuer) make(life time.Duration, signer *tls.Certificate) (keyPair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return keyPair{}, err
	}
	now := time.Now()
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: injectorName + " CA"}, BasicConstraintsValid: true, IsCA: true, KeyUsage: x509.KeyUsageCertSign,
		NotBefore: now.Add(-early), NotAfter: now.Add(life),
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
	return keyPair{inPEM("CERTIFICATE", der), inPEM("PRIVATE KEY", keyDER)}, nil
}

func inPEM(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// trusted are the CAs of the configuration that are still valid. What is no certificate is left out.
func (c configuration) trusted() []*x509.Certificate {
	var found []*x509.Certificate
	for _, h := range c.Webhooks {
		for rest := h.ClientConfig.CABundle; ; {
			var block *pem.Block
			if block, rest = pem.Decode(rest); block == nil {
				break
			}
			ca, err := x509.ParseCertificate(block.Bytes)
			if err == nil && validFor(ca) > 0 && !slices.ContainsFunc(found, ca.Equal) {
				found = append(found, ca)
			}
		}
	}
	return found
}

// trust writes the CAs into all webhooks of the configuration, if others are there.
func (i *Issuer) trust(ctx context.Context, c configuration, cas []*x509.Certificate) error {
	var bundle []byte
	for _, ca := range cas {
		bundle = append(bundle, inPEM("CERTIFICATE", ca.Raw)...)
	}
	changed := false
	for n := range c.Webhooks {
		changed = changed || !bytes.Equal(c.Webhooks[n].ClientConfig.CABundle, bundle)
		c.Webhooks[n].ClientConfig.CABundle = bundle
	}
	if !changed {
		return nil
	}
	err := i.API.Call(ctx, http.MethodPatch, configurationPath+"?fieldManager=locksidecar", "application/strategic-merge-patch+json", c, nil)
	if err != nil {
		return fmt.Errorf("giving the CA to the webhook's configuration %s: %w", configurationName, err)
	}
	return nil
}
