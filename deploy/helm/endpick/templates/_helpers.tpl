{{- define "endpick.name" -}}
{{ .Release.Name }}-epp
{{- end }}

{{- define "endpick.labels" -}}
app.kubernetes.io/name: {{ include "endpick.name" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{- define "endpick.selector" -}}
inferencepool: {{ include "endpick.name" . }}
{{- end }}

{{- define "endpick.image" -}}
{{- $image := .Values.inferenceExtension.image -}}
{{- if kindIs "map" $image -}}
{{ $image.hub | default $image.registry }}/{{ $image.name | default $image.repository }}:{{ $image.tag }}
{{- else -}}
{{ required "inferenceExtension.image: name the image that you have built from deploy/Containerfile" $image }}
{{- end -}}
{{- end }}

{{- define "endpick.lease" -}}
epp-{{ .Release.Namespace }}-{{ .Release.Name }}.llm-d.ai
{{- end }}

{{- define "endpick.ports" -}}
{{- range .Values.inferencePool.targetPorts }}
- number: {{ if kindIs "map" . }}{{ .number }}{{ else }}{{ . }}{{ end }}
{{- end }}
{{- end }}

{{- define "endpick.check" -}}
{{- $extension := .Values.inferenceExtension -}}
{{- if $extension.sidecar.enabled }}{{ fail "inferenceExtension.sidecar.enabled: this chart runs no Envoy beside endpick; put a gateway before it" }}{{ end -}}
{{- if $extension.latencyPredictor.enabled }}{{ fail "inferenceExtension.latencyPredictor.enabled: run the latency predictor yourself, and name it in pluginsCustomConfig" }}{{ end -}}
{{- if $extension.monitoring.prometheus.auth.enabled }}{{ fail "inferenceExtension.monitoring.prometheus.auth.enabled: endpick asks for no token; use --metrics-client-ca-file, or a NetworkPolicy" }}{{ end -}}
{{- if not (has .Values.provider.name (list "none" "istio")) }}{{ fail (printf "provider.name: none or istio, not %s: make its policies yourself" .Values.provider.name) }}{{ end -}}
{{- if not (has .Values.inferencePool.modelServerType (list "vllm" "sglang" "triton-tensorrt-llm" "trtllm-serve")) }}{{ fail (printf "inferencePool.modelServerType: %s is none that endpick knows" .Values.inferencePool.modelServerType) }}{{ end -}}
{{- if not .Values.inferencePool.modelServers.matchLabels }}{{ fail "inferencePool.modelServers.matchLabels: say which Pods are model servers" }}{{ end -}}
{{- if and (ne $extension.pluginsConfigFile "default-plugins.yaml") (not (hasKey $extension.pluginsCustomConfig $extension.pluginsConfigFile)) }}{{ fail (printf "inferenceExtension.pluginsConfigFile: there is no %s in pluginsCustomConfig" $extension.pluginsConfigFile) }}{{ end -}}
{{- end }}
