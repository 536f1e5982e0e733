{{/* What all pods of the chart have in common. */}}

{{/* `dict "root" $ "image" IMAGE` */}}
{{- define "visionchat.image" -}}
{{- $registry := .root.Values.imageRegistry | trimSuffix "/" -}}
{{- $name := ternary (printf "%s/%s" $registry .image.repository) .image.repository (ne $registry "") -}}
{{- if .image.digest -}}
{{ $name }}@{{ .image.digest }}
{{- else -}}
{{ $name }}:{{ default .root.Chart.AppVersion .image.tag }}
{{- end -}}
{{- end -}}

{{/* Of the restricted Pod Security profile, and a root that cannot be written. */}}
{{- define "visionchat.container.security" -}}
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
readOnlyRootFilesystem: true
runAsNonRoot: true
{{- end -}}

{{/* Begin of a pod's spec: `dict "root" $ "user" UID "pod" VALUES` */}}
{{- define "visionchat.pod" -}}
enableServiceLinks: false
securityContext:
  {{- $user := .user }}
  {{- $own := dict "runAsNonRoot" true "runAsUser" $user "runAsGroup" $user "fsGroup" $user "seccompProfile" (dict "type" "RuntimeDefault") }}
  {{- toYaml (merge (dict) (default dict .pod.securityContext) $own) | nindent 2 }}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- range $field := list "nodeSelector" "tolerations" "affinity" "topologySpreadConstraints" "priorityClassName" }}
{{- with get $.pod $field }}
{{- toYaml (dict $field .) | nindent 0 }}
{{- end }}
{{- end }}
{{- end -}}
