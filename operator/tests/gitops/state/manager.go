package main

import (
	"fmt"
	"net/http"
	"time"

	"github.com/argoproj/argo-cd/gitops-engine/pkg/utils/kube"
	"github.com/argoproj/argo-cd/gitops-engine/pkg/utils/tracing"
	"github.com/argoproj/argo-cd/v3/controller"
	statecache "github.com/argoproj/argo-cd/v3/controller/cache"
	"github.com/argoproj/argo-cd/v3/controller/metrics"
	"github.com/argoproj/argo-cd/v3/controller/sharding"
	"github.com/argoproj/argo-cd/v3/pkg/apis/application/v1alpha1"
	"github.com/argoproj/argo-cd/v3/pkg/client/clientset/versioned/fake"
	applisters "github.com/argoproj/argo-cd/v3/pkg/client/listers/application/v1alpha1"
	"github.com/argoproj/argo-cd/v3/util/argo"
	"github.com/argoproj/argo-cd/v3/util/argo/normalizers"
	"github.com/argoproj/argo-cd/v3/util/db"
	"github.com/argoproj/argo-cd/v3/util/settings"
	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// newStateManager assembles the part of Argo CD's application controller that compares and syncs. The operation carries its manifests,
// so there is no repository server and no cache of manifests; app's history goes into a client in memory.
func newStateManager(manager *settings.SettingsManager, clientset kubernetes.Interface, app *v1alpha1.Application) (controller.AppStateManager, error) {
	store := db.NewDB(argoNamespace, manager, clientset)
	counted, err := newMetrics(store)
	if err != nil {
		return nil, err
	}
	tracking := argo.NewResourceTracking()
	shards := sharding.NewClusterSharding(store, 0, 1, "legacy")
	live := statecache.NewLiveStateCache(store, nil, manager, counted, func(map[string]bool, corev1.ObjectReference) {}, shards, tracking)
	if err := live.Init(); err != nil {
		return nil, fmt.Errorf("ConfigMap argocd-cm: %w", err)
	}
	run := func(string) (kube.CleanupFunc, error) { return func() {}, nil }
	kubectl := &kube.KubectlCmd{Log: logr.Discard(), Tracer: tracing.NopTracer{}, OnKubectlRun: run}
	return controller.NewAppStateManager(store, fake.NewSimpleClientset(app.DeepCopy()), nil, argoNamespace, kubectl, run, manager, live,
		counted, nil, time.Minute, tracking, true, 0, false, normalizers.IgnoreNormalizerOpts{}), nil
}

// track marks the application's objects with its name, as the repository server does: by label or by annotation, and not on CRDs.
func track(manager *settings.SettingsManager, app *v1alpha1.Application, objects []*unstructured.Unstructured) error {
	label, err := manager.GetAppInstanceLabelKey()
	if err != nil {
		return err
	}
	method, err := manager.GetTrackingMethod()
	if err != nil {
		return err
	}
	for _, object := range objects {
		if kube.IsCRD(object) {
			continue
		}
		err := argo.NewResourceTracking().SetAppInstance(object, label, app.InstanceName(argoNamespace), app.Spec.Destination.Namespace,
			v1alpha1.TrackingMethod(method), "")
		if err != nil {
			return err
		}
	}
	return nil
}

func newMetrics(store db.ArgoDB) (*metrics.MetricsServer, error) {
	applications := applisters.NewApplicationLister(cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{}))
	all := func(any) bool { return true }
	healthy := func(*http.Request) error { return nil }
	return metrics.NewMetricsServer("127.0.0.1:0", applications, all, healthy, nil, nil, store)
}
