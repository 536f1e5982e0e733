{{/* Values that the schema cannot judge: what contradicts something else, and names that other charts use. Each
     message says what to write instead. NOTES.txt and the operator's Deployment call this, so that nothing renders. */}}
{{- define "visionchat.checks" -}}
{{- $v := .Values -}}
{{- if hasKey $v "installCRDs" }}{{ fail "installCRDs is not a value of this chart; set crds.enabled" }}{{ end -}}
{{- if hasKey $v "replicaCount" }}{{ fail "replicaCount is not a value of this chart; set operator.replicas, and a VisionChat's own spec.scaling for its replicas" }}{{ end -}}
{{- if hasKey $v "image" }}{{ fail "image is not a value of this chart; set operator.image, serve.image and redis.image, or imageRegistry for all of them" }}{{ end -}}
{{- if hasKey $v.redis "auth" }}{{ fail "redis.auth is not a value of this chart; set redis.password, or redis.existingSecret to the name of a Secret" }}{{ end -}}
{{- $external := or $v.externalRedis.url $v.externalRedis.secret.name -}}
{{- if and $v.redis.enabled $external }}{{ fail "redis.enabled and externalRedis contradict each other; to use your own Redis set redis.enabled: false" }}{{ end -}}
{{- if and $v.externalRedis.url $v.externalRedis.secret.name }}{{ fail "set one of externalRedis.url and externalRedis.secret.name, not both" }}{{ end -}}
{{- if and (not $v.redis.enabled) (not $external) }}{{ fail "redis.enabled is false and there is no other Redis: set externalRedis.secret.name (or externalRedis.url), or redis.enabled: true" }}{{ end -}}
{{- with $v.redis -}}
{{- if and .password .existingSecret }}{{ fail "set one of redis.password and redis.existingSecret, not both" }}{{ end -}}
{{- if and .namespaces .existingSecret }}{{ fail "redis.namespaces copies a Secret that the chart makes; with redis.existingSecret put your Secret into those namespaces yourself" }}{{ end -}}
{{- if and .namespaces (not .enabled) }}{{ fail "redis.namespaces needs redis.enabled: true; put the Secret of externalRedis.secret.name into those namespaces yourself" }}{{ end -}}
{{- if and .persistence.existingClaim (not .persistence.enabled) }}{{ fail "redis.persistence.existingClaim needs redis.persistence.enabled: true" }}{{ end -}}
{{- end -}}
{{- if and (eq $v.scope "Namespace") $v.redis.namespaces }}{{ fail "scope: Namespace looks after the release's namespace only, so redis.namespaces must be empty; set scope: Cluster" }}{{ end -}}
{{- if and (not $v.operator.serviceAccount.create) (not $v.operator.serviceAccount.name) $v.rbac.create }}{{ fail "operator.serviceAccount.create: false needs operator.serviceAccount.name, or every pod of the namespace that runs as `default` would get the operator's rights" }}{{ end -}}
{{- range $name, $chat := $v.visionchats -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$" $name) }}{{ fail (printf "visionchats.%s: a VisionChat's name begins with a letter and has up to 40 lower-case letters, digits and dashes, as its Services are named after it" $name) }}{{ end -}}
{{- if dig "spec" "queue" "deleteWithResource" false $chat }}{{ fail (printf "visionchats.%s.spec.queue.deleteWithResource: helm uninstall stops the operator that would delete the queue, and the VisionChat would never go; apply this VisionChat with kubectl instead" $name) }}{{ end -}}
{{- end -}}
{{- if and $v.visionchats (not (include "visionchat.known" .)) }}{{ fail "visionchats: this cluster does not know the VisionChat resource yet, and Helm can make nothing of a kind that comes with the same release. Install without visionchats, then add them with helm upgrade" }}{{ end -}}
{{- end -}}

{{/* Not empty: VisionChats can be made. Without a cluster (helm template, helm lint) that is taken for granted: every
     real one serves apiregistration.k8s.io, and Helm alone knows nothing of it. */}}
{{- define "visionchat.known" -}}
{{- if or (.Capabilities.APIVersions.Has "visionchat.dev/v1alpha1") (not (.Capabilities.APIVersions.Has "apiregistration.k8s.io/v1")) }}yes{{ end -}}
{{- end -}}
