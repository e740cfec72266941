{{/* Name prefix of the release's objects, at most 50 characters, so that a suffix always fits into the 63 characters of a label. */}}
{{- define "sos.fullname" -}}
{{- $name := .Values.nameOverride | default "sos" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Labels that a selector uses; they never change. Call with (dict "root" . "component" "operator"). */}}
{{- define "sos.selectorLabels" -}}
app.kubernetes.io/name: sos
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "sos.labels" -}}
{{ include "sos.selectorLabels" . }}
app.kubernetes.io/part-of: sos
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Labels of an object together with labels from a value, which take precedence. Call with (dict "root" . "component" "" "more" labels). */}}
{{- define "sos.mergedLabels" -}}
{{- mergeOverwrite (include "sos.labels" . | fromYaml) (.more | default dict) | toYaml -}}
{{- end -}}

{{/* Reference of an image. Call with (dict "root" . "image" .Values.images.agent). */}}
{{- define "sos.image" -}}
{{- $registry := .root.Values.images.registry -}}
{{- if not (kindIs "invalid" .image.registry) -}}{{- $registry = .image.registry -}}{{- end -}}
{{- if $registry }}{{ $registry }}/{{ end }}{{ .image.repository }}
{{- if .image.digest }}@{{ .image.digest }}{{ else }}:{{ .image.tag | default .root.Chart.AppVersion }}{{ end -}}
{{- end -}}

{{/* Names of the ServiceAccounts of the pods that the operator starts, as JSON. */}}
{{- define "sos.serviceAccounts" -}}
{{- $found := dict -}}
{{- range $part := list "controller" "agent" "node" -}}
{{- $_ := set $found $part (printf "%s-%s" (include "sos.fullname" $) $part) -}}
{{- end -}}
{{- toJson $found -}}
{{- end -}}

{{/* Environment of the operator and of the uninstall Job: the settings of one program. */}}
{{- define "sos.env" -}}
- {name: SOS_NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
- {name: SOS_RELEASE, value: {{ .Release.Name | quote }}}
- {name: SOS_DEPLOYMENT, value: {{ printf "%s-operator" (include "sos.fullname" .) | quote }}}
- {name: SOS_TEST, value: {{ printf "%s-test" (include "sos.fullname" .) | quote }}}
- {name: SOS_IMAGE_CONTROLLER, value: {{ include "sos.image" (dict "root" . "image" .Values.images.controller) | quote }}}
- {name: SOS_IMAGE_AGENT, value: {{ include "sos.image" (dict "root" . "image" .Values.images.agent) | quote }}}
- {name: SOS_IMAGE_NODE, value: {{ include "sos.image" (dict "root" . "image" .Values.images.node) | quote }}}
- {name: SOS_IMAGE_OVS, value: {{ include "sos.image" (dict "root" . "image" .Values.images.ovs) | quote }}}
- {name: SOS_SERVICE_ACCOUNTS, value: {{ include "sos.serviceAccounts" . | quote }}}
- {name: SOS_POD_SECURITY, value: {{ include "sos.securityContext" . | quote }}}
- {name: SOS_IMAGE_PULL_POLICY, value: {{ .Values.images.pullPolicy | quote }}}
- {name: SOS_IMAGE_PULL_SECRETS, value: {{ join "," .Values.images.pullSecrets | quote }}}
- {name: SOS_LOG_LEVEL, value: {{ .Values.operator.logLevel | quote }}}
- {name: SOS_DATA_PLANE_LOG_LEVEL, value: {{ .Values.dataPlane.logLevel | quote }}}
- {name: SOS_CONTROLLER_PRIORITY_CLASS, value: {{ .Values.dataPlane.controllerPriorityClassName | quote }}}
- {name: SOS_NODE_PRIORITY_CLASS, value: {{ .Values.dataPlane.nodePriorityClassName | quote }}}
{{- with .Values.dataPlane.resources }}
- {name: SOS_RESOURCES, value: {{ toJson . | quote }}}
{{- end }}
{{- with .Values.dataPlane.ports }}
- {name: SOS_PORTS, value: {{ toJson . | quote }}}
{{- end }}
{{- if .Values.rbac.pods }}
- {name: SOS_READ_PODS, value: "true"}
{{- end }}
{{- if .Values.rbac.services }}
- {name: SOS_READ_SERVICES, value: "true"}
{{- end }}
{{- if .Values.dataPlane.loadModules }}
- {name: SOS_LOAD_MODULES, value: "true"}
{{- end }}
- {name: SOS_RESYNC_SECONDS, value: {{ .Values.operator.resyncSeconds | quote }}}
- {name: SOS_KEY_OVERLAP_SECONDS, value: {{ .Values.operator.keyOverlapSeconds | quote }}}
- {name: SOS_SITE_CLEANUP_SECONDS, value: {{ .Values.operator.siteCleanupSeconds | quote }}}
{{- with .Values.networkPolicy }}{{ if .enabled }}
- {name: SOS_NETWORK_POLICIES, value: {{ dict "openflow" .openflowFrom "api" .apiFrom | toJson | quote }}}
{{- end }}{{ end }}
{{- with .Values.monitoring.podMonitors }}{{ if .enabled }}
- {name: SOS_POD_MONITORS, value: {{ dict "interval" .interval "labels" .labels | toJson | quote }}}
{{- end }}{{ end }}
{{- with .Values.operator.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Security context of all pods: user, group and seccomp profile. With --reuse-values, a release of an earlier version has no value. */}}
{{- define "sos.securityContext" -}}
{{- $user := 65532 -}}
{{- $seccomp := dict "type" "RuntimeDefault" -}}
{{- $default := dict "runAsNonRoot" true "runAsUser" $user "runAsGroup" $user "fsGroup" $user "seccompProfile" $seccomp -}}
{{- $given := ternary $default .Values.podSecurityContext (kindIs "invalid" .Values.podSecurityContext) -}}
{{- $found := dict -}}
{{- range $key, $value := $given -}}{{- if not (kindIs "invalid" $value) -}}{{- $_ := set $found $key $value -}}{{- end -}}{{- end -}}
{{- toJson $found -}}
{{- end -}}

{{- define "sos.podSecurity" -}}
securityContext:
  {{- include "sos.securityContext" . | fromJson | toYaml | nindent 2 }}
{{- end -}}

{{- define "sos.pullSecrets" -}}
{{- with .Values.images.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end -}}

{{- define "sos.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end -}}

{{/* Names of the existing SosSites at the time of rendering, separated by commas. Helm stores the rendered chart, and `helm test` does
not render it again, so texts with these names state the revision of the release. Before the first installation, the API server does
not serve the kind, and lookup would fail. */}}
{{- define "sos.sites" -}}
{{- if .Capabilities.APIVersions.Has "sos.network/v1alpha1/SosSite" -}}
{{- $names := list -}}
{{- range (lookup "sos.network/v1alpha1" "SosSite" "" "").items -}}{{- $names = append $names .metadata.name -}}{{- end -}}
{{- $names | sortAlpha | join ", " -}}
{{- end -}}
{{- end -}}

{{/* Output of the test if the values name no sites. Call with (dict "root" . "job" name of the Job). */}}
{{- define "sos.testUntold" -}}
{{- $release := .root.Release.Name -}}
{{- $namespace := .root.Release.Namespace -}}
No bytes were moved, and no transfers were compared: the values of the release name no sites.
{{- with include "sos.sites" .root }}
These SosSites existed when revision {{ $.root.Release.Revision }} of the release was made: {{ . }}. Set test.client and test.server to measure.
{{- else }}
There was no SosSite when revision {{ .root.Release.Revision }} of the release was made, so there was nothing to measure.
{{- end }}
The test needs two SosSites with nodes, and a free address at each site; `kubectl get sossite` lists the current sites. Then run

    helm upgrade {{ $release }} charts/sos -n {{ $namespace }} --reuse-values \
      --set test.client.site=SITE --set test.client.address=ADDRESS/LENGTH \
      --set test.server.site=SITE --set test.server.address=ADDRESS/LENGTH --set test.port=PORT
    helm test {{ $release }} -n {{ $namespace }}; kubectl logs job/{{ .job }} -n {{ $namespace }}
{{- end -}}

{{/* Annotation that attaches a pod of the test to a site. Call with (dict "root" . "end" .Values.test.client). */}}
{{- define "sos.testNetwork" -}}
{{- $network := .end.network | default (printf "sos-%s" .end.site) -}}
{{- $join := dict "name" $network "namespace" .root.Release.Namespace "interface" "net1" "ips" (list .end.address) -}}
k8s.v1.cni.cncf.io/networks: {{ list $join | toJson | quote }}
{{- end -}}

{{/* Address of the page of runbooks: the value, else the page of this version in the repository that a released chart names (home). */}}
{{- define "sos.runbooks" -}}
{{- $own := "docs/alerts.md" -}}
{{- if .Chart.Home -}}{{- $own = printf "%s/blob/v%s/docs/alerts.md" .Chart.Home .Chart.AppVersion -}}{{- end -}}
{{- .Values.monitoring.rules.runbookUrl | default $own -}}
{{- end -}}
