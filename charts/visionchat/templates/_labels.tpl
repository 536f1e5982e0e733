{{/* Labels and annotations. `dict "root" $ "component" NAME`. */}}

{{/* What selectors select; never changes. The operator's pods are known by the first of them to the NetworkPolicies
     that the operator makes for each VisionChat. */}}
{{- define "visionchat.selector" -}}
app.kubernetes.io/name: visionchat-{{ .component }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- end -}}

{{/* Of a pod's template: nothing that another version of the chart changes, or each upgrade would restart Redis. */}}
{{- define "visionchat.pod.labels" -}}
{{ include "visionchat.selector" . }}
app.kubernetes.io/part-of: visionchat
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "visionchat.labels" -}}
{{ include "visionchat.pod.labels" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* `metadata` of an object of the release's namespace: root, component, name; labels and annotations to add. */}}
{{- define "visionchat.metadata" -}}
name: {{ .name }}
namespace: {{ default .root.Release.Namespace .namespace }}
{{ include "visionchat.marks" . }}
{{- end -}}

{{/* Labels and annotations alone, for what has no namespace. */}}
{{- define "visionchat.marks" -}}
labels:
  {{- include "visionchat.labels" . | nindent 2 }}
  {{- include "visionchat.marks.rest" . }}
{{- end -}}

{{/* The same for a pod's template. */}}
{{- define "visionchat.pod.marks" -}}
labels:
  {{- include "visionchat.pod.labels" . | nindent 2 }}
  {{- include "visionchat.marks.rest" . }}
{{- end -}}

{{- define "visionchat.marks.rest" -}}
  {{- with .labels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with merge (dict) (default dict .annotations) .root.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
