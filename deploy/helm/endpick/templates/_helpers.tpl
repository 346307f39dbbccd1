{{- define "endpick.name" -}}
{{ .Release.Name | lower | trunc 40 }}-epp
{{- end }}

{{- define "endpick.labels" -}}
app.kubernetes.io/name: {{ include "endpick.name" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{- define "endpick.selector" -}}
inferencepool: {{ include "endpick.name" . }}
{{- end }}

{{/*
The Service selects it. The leader sets it on its own Pod; a single replica has it from the start.
*/}}
{{- define "endpick.leader" -}}
endpick.dev/leader: {{ include "endpick.name" . }}
{{- end }}

{{/*
Not empty if one replica leads: several serve at once only if they share what they learn.
*/}}
{{- define "endpick.elects" -}}
{{- $epp := (include "endpick.values" . | fromYaml).router.epp -}}
{{- if and (gt (int $epp.replicas) 1) (not $epp.state.url) }}true{{ end -}}
{{- end }}

{{- define "endpick.image" -}}
{{- $image := .image -}}
{{- if kindIs "map" $image -}}
{{ $image.registry | default $image.hub }}/{{ $image.repository | default $image.name }}:{{ $image.tag }}
{{- else -}}
{{ required "router.epp.image: name the image that you have built from deploy/Containerfile" $image }}
{{- end -}}
{{- end }}

{{- define "endpick.lease" -}}
{{- $router := (include "endpick.values" . | fromYaml).router -}}
epp-{{ .Release.Namespace }}-{{ $router.inferencePool.create | ternary .Release.Name (include "endpick.name" .) }}.llm-d.ai
{{- end }}

{{/*
The Secret with the token of Prometheus; empty if everyone may read metrics.
*/}}
{{- define "endpick.metricsSecret" -}}
{{- $prometheus := (include "endpick.values" . | fromYaml).router.monitoring.prometheus -}}
{{- if and $prometheus.enabled $prometheus.auth.enabled -}}
{{ $prometheus.auth.secretName | default (printf "%s-metrics" (include "endpick.name" .)) }}
{{- end -}}
{{- end }}

{{- define "endpick.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "endpick.ports" -}}
{{- range . }}
- number: {{ if kindIs "map" . }}{{ .number }}{{ else }}{{ . }}{{ end }}
{{- end }}
{{- end }}
