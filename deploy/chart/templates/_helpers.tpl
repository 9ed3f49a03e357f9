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
{{- $_ := set . "labels" (merge (dict "app.kubernetes.io/managed-by" $root.Release.Service "app.kubernetes.io/instance" $root.Release.Name "helm.sh/chart" (printf "%s-%s" $root.Chart.Name $root.Chart.Version)) (.labels | default dict)) -}}
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

{{/* Adds what all pods of the chart have: {of: the root, spec: the pod's}. */}}
{{- define "locksidecar.pod" -}}
{{- with .of.Values.imagePullSecrets -}}
{{- $names := list -}}
{{- range . }}{{ $names = append $names (dict "name" .) }}{{ end -}}
{{- $_ := set $.spec "imagePullSecrets" $names -}}
{{- end -}}
{{- end -}}
