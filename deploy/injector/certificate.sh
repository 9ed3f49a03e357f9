#!/bin/sh
# Makes the injector's certificate, for clusters without cert-manager:
#
#   ./certificate.sh [FOLDER]
#
# writes a CA, a certificate for a year, and what to apply, into FOLDER, and prints the
# commands. Run it again in time: the CA stays, so a new Secret is all that changes.
set -eu
umask 077

folder=${1:-injector-certificate}
name=locksidecar-injector.locksidecar.svc

command -v openssl >/dev/null || { echo "openssl is not installed" >&2; exit 1; }
mkdir -p "$folder"
printf '*\n' > "$folder/.gitignore" # keys do not belong into a repository
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cat > "$work/openssl.cnf" <<CONF
[req]
distinguished_name = subject
prompt = no
[subject]
CN = $name
[ca]
basicConstraints = critical, CA:true
keyUsage = critical, keyCertSign
subjectKeyIdentifier = hash
[server]
basicConstraints = critical, CA:false
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth
subjectAltName = DNS:$name
CONF

key() { openssl ecparam -name prime256v1 -genkey -noout -out "$1"; }
base64_of() { openssl base64 -A -in "$1"; }

if [ ! -f "$folder/ca.crt" ]; then
  key "$folder/ca.key"
  openssl req -x509 -new -sha256 -days 3650 -config "$work/openssl.cnf" -extensions ca \
    -subj "/CN=locksidecar-injector CA" -key "$folder/ca.key" -out "$folder/ca.crt"
fi
key "$work/tls.key"
openssl req -new -sha256 -config "$work/openssl.cnf" -key "$work/tls.key" -out "$work/tls.csr"
# A random serial number: the next certificate of this CA is another one.
openssl x509 -req -sha256 -days 365 -in "$work/tls.csr" -CA "$folder/ca.crt" -CAkey "$folder/ca.key" \
  -set_serial "0x$(openssl rand -hex 16)" -extfile "$work/openssl.cnf" -extensions server -out "$work/tls.crt" 2>"$work/said" ||
  { cat "$work/said" >&2; exit 1; }

cat > "$folder/secret.yaml" <<SECRET
apiVersion: v1
kind: Secret
type: kubernetes.io/tls
metadata:
  name: locksidecar-injector
  namespace: locksidecar
data:
  tls.crt: $(base64_of "$work/tls.crt")
  tls.key: $(base64_of "$work/tls.key")
SECRET

bundle=$(base64_of "$folder/ca.crt")
cat > "$folder/ca-bundle.yaml" <<PATCH
webhooks:
  - name: pod.inject.locksidecar.dev
    clientConfig: {caBundle: $bundle}
  - name: namespace.inject.locksidecar.dev
    clientConfig: {caBundle: $bundle}
PATCH

cat <<SAY
After webhook.yaml has been applied:

  kubectl apply --server-side -f $folder/secret.yaml
  kubectl patch mutatingwebhookconfiguration locksidecar-injector --patch-file $folder/ca-bundle.yaml

Keep $folder/ca.key to yourself: whoever has it can pose as the injector. The certificate is
valid for a year; to renew it, run this again and apply the Secret.
SAY
