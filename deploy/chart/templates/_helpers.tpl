{{- define "locksidecar.image" -}}
{{- with .Values.image -}}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{ end -}}
{{- end -}}
{{- end -}}

{{/*
The objects of a file of deploy/, as a JSON array: {of: the root, file: its name}. The files are the manifests that are applied
without Helm. So the chart has no second copy: it changes the image, the namespace and the labels here, and templates
change what values say.
*/}}
{{- define "locksidecar.objects" -}}
{{- $root := .of -}}
{{- $own := list "kube-system" $root.Release.Namespace -}}
{{- $text := regexReplaceAll "ghcr\\.io/locksidecar/locksidecar:[^\\s\"']+" ($root.Files.Get (printf "files/%s" .file)) (include "locksidecar.image" $root) -}}
{{- $objects := list -}}
{{- range splitList "\n---\n" $text -}}
{{- $object := fromYaml . -}}
{{- with $object.metadata -}}
{{- if .namespace }}{{ $_ := set . "namespace" $root.Release.Namespace }}{{ end -}}
{{- $_ := set . "labels" (include "locksidecar.labels" (dict "of" $root "more" (.labels | default dict)) | fromYaml) -}}
{{- end -}}
{{- if eq $object.kind "ServiceAccount" -}}
{{- with $root.Values.serviceAccounts.annotations }}{{ $_ := set $object.metadata "annotations" . }}{{ end -}}
{{- end -}}
{{- range $subject := $object.subjects }}{{ $_ := set $subject "namespace" $root.Release.Namespace }}{{ end -}}
{{- range $webhook := $object.webhooks -}}
{{- $_ := set $webhook.clientConfig.service "namespace" $root.Release.Namespace -}}
{{- range $webhook.namespaceSelector.matchExpressions }}{{ $_ := set . "values" $own }}{{ end -}}
{{- end -}}
{{- if $object.spec -}}
{{- with $object.spec.matchConstraints -}}
{{- range .namespaceSelector.matchExpressions }}{{ $_ := set . "values" $own }}{{ end -}}
{{- end -}}
{{- end -}}
{{- if ne $object.kind "Namespace" }}{{ $objects = append $objects $object }}{{ end -}}
{{- end -}}
{{- toJson $objects -}}
{{- end -}}

{{/* The name of the ConfigMap with a policy. */}}
{{- define "locksidecar.policyName" -}}
locksidecar-node-policy-{{ toJson . | sha256sum | trunc 10 }}
{{- end -}}

{{/* The labels of every object: {of: the root, more: those that it has anyway}. */}}
{{- define "locksidecar.labels" -}}
{{- toYaml (merge (dict) .more (dict "app.kubernetes.io/managed-by" .of.Release.Service "app.kubernetes.io/instance" .of.Release.Name "helm.sh/chart" (printf "%s-%s" .of.Chart.Name .of.Chart.Version)) .of.Values.labels) -}}
{{- end -}}

{{/* Prints the objects. */}}
{{- define "locksidecar.print" -}}
{{- range . }}
---
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The variables of every sidecar. */}}
{{- define "locksidecar.env" -}}
{{- $env := deepCopy .Values.injector.env -}}
{{- if .Values.migration.enabled }}{{ $_ := set $env "LOCKSIDECAR_AUTO_MIGRATE" "false" }}{{ end -}}
{{- $list := list -}}
{{- range $name, $value := $env }}{{ $list = append $list (dict "name" $name "value" (toString $value)) }}{{ end -}}
{{- toJson $list -}}
{{- end -}}

{{/* Adds what all pods of the chart have: {of: the root, pod: a pod template, everywhere: it runs on all nodes}. */}}
{{- define "locksidecar.pod" -}}
{{- $values := .of.Values -}}
{{- $spec := .pod.spec -}}
{{- $_ := set .pod.metadata "labels" (merge (dict) .pod.metadata.labels $values.pods.labels $values.labels) -}}
{{- with $values.pods.annotations }}{{ $_ := set $.pod.metadata "annotations" (deepCopy .) }}{{ end -}}
{{- range $name := ternary (list) (list "nodeSelector" "tolerations" "affinity" "priorityClassName") (.everywhere | default false) -}}
{{- with get $values.pods $name }}{{ $_ := set $spec $name . }}{{ end -}}
{{- end -}}
{{- with $values.imagePullSecrets -}}
{{- $names := list -}}
{{- range . }}{{ $names = append $names (dict "name" .) }}{{ end -}}
{{- $_ := set $spec "imagePullSecrets" $names -}}
{{- end -}}
{{- range $container := $spec.containers -}}
{{- with $values.image.pullPolicy }}{{ $_ := set $container "imagePullPolicy" . }}{{ end -}}
{{- end -}}
{{- range $secured := append $spec.containers $spec -}}
{{- with $secured.securityContext -}}
{{- if .runAsUser -}}
{{- if $values.uid }}{{ $_ := set . "runAsUser" (int64 $values.uid) }}{{ $_ := set . "runAsGroup" (int64 $values.uid) }}{{ else }}{{ $_ := unset . "runAsUser" }}{{ $_ := unset . "runAsGroup" }}{{ end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
