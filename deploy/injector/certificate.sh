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
case $folder in
  -h | --help) echo "usage: $0 [FOLDER]   (injector-certificate if there is none)"; exit ;;
  -*) folder=./$folder ;; # mkdir would take it for an option
esac
name=locksidecar-injector.locksidecar.svc

fail() { echo "$0: $1" >&2; exit 1; }

command -v openssl >/dev/null || fail "openssl is not installed"
if [ -f "$folder/ca.crt" ] && [ ! -f "$folder/ca.key" ]; then
  fail "$folder has ca.crt without ca.key, which signs: put it back, or remove ca.crt to have a new CA"
elif [ -f "$folder/ca.key" ] && [ ! -f "$folder/ca.crt" ]; then
  fail "$folder has ca.key without ca.crt: put it back, or remove ca.key to have a new CA"
fi
mkdir -p "$folder"
printf '*\n' > "$folder/.gitignore" # keys do not belong into a repository
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 129' HUP # not all shells go through EXIT when a signal ends them
trap 'exit 130' INT
trap 'exit 143' TERM

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
  key "$work/ca.key"
  openssl req -x509 -new -sha256 -days 3650 -config "$work/openssl.cnf" -extensions ca \
    -subj "/CN=locksidecar-injector CA" -key "$work/ca.key" -out "$work/ca.crt"
  mv "$work/ca.key" "$work/ca.crt" "$folder"
fi
key "$work/tls.key"
openssl req -new -sha256 -config "$work/openssl.cnf" -key "$work/tls.key" -out "$work/tls.csr"
# A random serial number: the next certificate of this CA is another one.
openssl x509 -req -sha256 -days 365 -in "$work/tls.csr" -CA "$folder/ca.crt" -CAkey "$folder/ca.key" \
  -set_serial "0x$(openssl rand -hex 16)" -extfile "$work/openssl.cnf" -extensions server -out "$work/tls.crt" 2>"$work/said" ||
  { cat "$work/said" >&2; exit 1; }

rm -f "$folder/secret.yaml" # one from before may be readable by others
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

# shown is the folder as a shell takes it.
case $folder in
  *[!A-Za-z0-9_./-]*) shown="'$(printf %s "$folder" | sed "s/'/'\\\\''/g")'" ;;
  *) shown=$folder ;;
esac
cat <<SAY
After webhook.yaml has been applied:

  kubectl apply --server-side -f $shown/secret.yaml
  kubectl patch mutatingwebhookconfiguration 0-locksidecar-injector --patch-file $shown/ca-bundle.yaml

Keep $shown/ca.key to yourself: whoever has it can pose as the injector. The certificate is
valid for a year; to renew it, run this again and apply the Secret.
SAY
