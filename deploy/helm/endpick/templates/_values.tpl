{{/*
The values by llm-d's names of today, as YAML: what was given by those of the former chart `inferencepool` is put where it belongs now.
*/}}
{{- define "endpick.values" -}}
{{- $router := deepCopy .Values.router -}}
{{- $route := deepCopy .Values.httpRoute -}}
{{- $extension := .Values.inferenceExtension -}}
{{- $pool := .Values.inferencePool -}}
{{- range $name := list "replicas" "image" "extProcPort" "grpcHealthPort" "env" "flags" "pluginsConfigFile" "pluginsCustomConfig" "extraContainerPorts" "volumes" "volumeMounts" "affinity" "tolerations" "podAnnotations" -}}
  {{- if hasKey $extension $name -}}{{- $_ := set $router.epp $name (get $extension $name) -}}{{- end -}}
{{- end -}}
{{- range $name := list "resources" "metricsDataSource" -}}
  {{- if hasKey $extension $name -}}{{- $_ := set $router.epp $name (mergeOverwrite (get $router.epp $name) (get $extension $name)) -}}{{- end -}}
{{- end -}}
{{- range $name := list "monitoring" "tracing" "latencyPredictor" -}}
  {{- if hasKey $extension $name -}}{{- $_ := set $router $name (mergeOverwrite (get $router $name) (get $extension $name)) -}}{{- end -}}
{{- end -}}
{{- if hasKey $extension "sidecar" -}}{{- $_ := set $router "proxy" (mergeOverwrite $router.proxy $extension.sidecar) -}}{{- end -}}
{{- if hasKey $extension "extraServicePorts" -}}{{- $_ := set $router "extraServicePorts" $extension.extraServicePorts -}}{{- end -}}
{{- if hasKey $extension "failureMode" -}}{{- $_ := set $router.inferencePool "failureMode" $extension.failureMode -}}{{- end -}}
{{- range $old, $new := dict "targetPorts" "targetPorts" "modelServerType" "type" "modelServerProtocol" "protocol" -}}
  {{- if hasKey $pool $old -}}{{- $_ := set $router.modelServers $new (get $pool $old) -}}{{- end -}}
{{- end -}}
{{- if hasKey $pool "modelServers" -}}{{- $_ := set $router "modelServers" (mergeOverwrite $router.modelServers $pool.modelServers) -}}{{- end -}}
{{- if $pool.parser -}}{{- $_ := set $router.epp "parsers" (list $pool.parser) -}}{{- end -}}
{{- if hasKey $pool "apiVersion" -}}{{- $_ := set $router.inferencePool "apiVersion" $pool.apiVersion -}}{{- end -}}
{{- if .Values.inferenceObjectives -}}{{- $_ := set $router "inferenceObjectives" .Values.inferenceObjectives -}}{{- end -}}
{{- if hasKey .Values.experimentalHttpRoute "enabled" -}}{{- $_ := set $route "create" .Values.experimentalHttpRoute.enabled -}}{{- end -}}
{{- range $name := list "inferenceGatewayName" "inferenceGatewayNamespace" "requestTimeout" "baseModel" "headerMatches" -}}
  {{- if hasKey $.Values.experimentalHttpRoute $name -}}{{- $_ := set $route $name (get $.Values.experimentalHttpRoute $name) -}}{{- end -}}
{{- end -}}
{{- $parsers := $router.epp.parsers -}}
{{- if and (eq $router.modelServers.type "vllm") (eq $router.modelServers.protocol "grpc") -}}{{- $parsers = list "vllmgrpc-parser" -}}
{{- else if and (not $parsers) (eq $router.modelServers.type "triton") -}}{{- $parsers = list "passthrough-parser" -}}{{- end -}}
{{- $_ := set $router.epp "parsers" $parsers -}}
{{- dict "router" $router "httpRoute" $route "provider" .Values.provider | toYaml -}}
{{- end }}

{{- define "endpick.check" -}}
{{- $values := include "endpick.values" . | fromYaml -}}
{{- $router := $values.router -}}
{{- if $router.proxy.enabled }}
{{- if not $router.proxy.image }}{{ fail "router.proxy.image (sidecar.image): name an image of Envoy 1.40 or newer" }}{{ end -}}
{{- if ne ($router.proxy.mode | default "sidecar") "sidecar" }}{{ fail (printf "router.proxy.mode: sidecar, not %s" $router.proxy.mode) }}{{ end -}}
{{- if ne ($router.proxy.proxyType | default "envoy") "envoy" }}{{ fail (printf "router.proxy.proxyType: envoy, not %s" $router.proxy.proxyType) }}{{ end -}}
{{- if ne (int $router.epp.extProcPort) 9002 }}{{ fail "router.epp.extProcPort: 9002 with router.proxy.enabled" }}{{ end -}}
{{- end -}}
{{- if $router.tokenizer.enabled }}{{ fail "router.tokenizer.enabled: run vLLM's render server as a Deployment, and name it in token-producer, in pluginsCustomConfig" }}{{ end -}}
{{- if $router.latencyPredictor.enabled }}{{ fail "router.latencyPredictor.enabled: run the latency predictor yourself, and name it in pluginsCustomConfig" }}{{ end -}}
{{- if ne (dig "provider" "name" "" $router.monitoring | default "prometheusoperator") "prometheusoperator" }}{{ fail (printf "router.monitoring.provider.name: prometheusoperator, not %s: make its PodMonitoring yourself" $router.monitoring.provider.name) }}{{ end -}}
{{- if not (has $values.provider.name (list "none" "istio")) }}{{ fail (printf "provider.name: none or istio, not %s: make its policies yourself" $values.provider.name) }}{{ end -}}
{{- if not (has $router.modelServers.type (list "vllm" "sglang" "triton-tensorrt-llm" "trtllm-serve" "triton")) }}{{ fail (printf "router.modelServers.type: %s is none that endpick knows" $router.modelServers.type) }}{{ end -}}
{{- if not $router.modelServers.matchLabels }}{{ fail "router.modelServers.matchLabels: say which Pods are model servers" }}{{ end -}}
{{- if not (or (has $router.epp.pluginsConfigFile (list "default-plugins.yaml" "payload-agnostic.yaml")) (hasKey $router.epp.pluginsCustomConfig $router.epp.pluginsConfigFile)) }}{{ fail (printf "router.epp.pluginsConfigFile: there is no %s in pluginsCustomConfig" $router.epp.pluginsConfigFile) }}{{ end -}}
{{- end }}
