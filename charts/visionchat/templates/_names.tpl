{{/* Every name is made here, and nowhere else. */}}

{{/* What all names begin with: the release's name, with the chart's in it. Room is left for `-operator-lease`. */}}
{{- define "visionchat.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- default $full .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "visionchat.operator.name" -}}{{ include "visionchat.fullname" . }}-operator{{- end -}}
{{- define "visionchat.redis.name" -}}{{ include "visionchat.fullname" . }}-redis{{- end -}}
{{- define "visionchat.gateways.name" -}}{{ include "visionchat.fullname" . }}-gateways{{- end -}}
{{- define "visionchat.ray.name" -}}{{ include "visionchat.fullname" . }}-ray{{- end -}}
{{- define "visionchat.rules.name" -}}{{ include "visionchat.fullname" . }}-alerts{{- end -}}
{{- define "visionchat.test.name" -}}{{ include "visionchat.fullname" . }}-test{{- end -}}
{{- define "visionchat.lease.name" -}}{{ include "visionchat.operator.name" . }}-lease{{- end -}}
{{- define "visionchat.dashboard.name" -}}{{ include "visionchat.fullname" .root }}-dashboard-{{ .name }}{{- end -}}

{{/* ClusterRoles have no namespace, and two releases may have one name. */}}
{{- define "visionchat.cluster.name" -}}{{ .Release.Namespace }}-{{ include "visionchat.operator.name" . }}{{- end -}}

{{- define "visionchat.serviceAccount.name" -}}
{{- with .Values.operator.serviceAccount -}}
{{- default (ternary (include "visionchat.operator.name" $) "default" .create) .name -}}
{{- end -}}
{{- end -}}

{{/* The Secret with the queue's address, by which VisionChats that name none find their queue; empty: there is none. */}}
{{- define "visionchat.queueSecret.name" -}}
{{- if .Values.redis.enabled -}}
{{- default (include "visionchat.redis.name" .) .Values.redis.existingSecret -}}
{{- else -}}
{{- .Values.externalRedis.secret.name -}}
{{- end -}}
{{- end -}}

{{- define "visionchat.queueSecret.key" -}}
{{- ternary "url" .Values.externalRedis.secret.key .Values.redis.enabled -}}
{{- end -}}
