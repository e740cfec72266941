package main

import (
	"context"
	"fmt"
	"sort"

	"github.com/argoproj/argo-cd/gitops-engine/pkg/health"
	"github.com/argoproj/argo-cd/v3/util/lua"
	"github.com/argoproj/argo-cd/v3/util/settings"
	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// assessment of one object. Argo is empty for a kind without a health check.
type assessment struct {
	Kind        string `json:"kind"`
	Namespace   string `json:"namespace"`
	Name        string `json:"name"`
	Argo        string `json:"argo"`
	ArgoMessage string `json:"argoMessage"`
	Flux        string `json:"flux"`
	FluxMessage string `json:"fluxMessage"`
}

// assessGroup returns the health of all objects of an API group, sorted by kind, namespace and name.
func assessGroup(ctx context.Context, config *rest.Config, group string) ([]assessment, error) {
	clientset, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	overrides, err := settings.NewSettingsManager(ctx, clientset, argoNamespace).GetResourceOverrides()
	if err != nil {
		return nil, fmt.Errorf("ConfigMap argocd-cm: %w", err)
	}
	objects, err := listGroup(ctx, config, clientset.Discovery(), group)
	if err != nil {
		return nil, err
	}
	found := []assessment{}
	for _, object := range objects {
		each, err := assess(object, lua.ResourceHealthOverrides(overrides))
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", object.GetKind(), object.GetName(), err)
		}
		found = append(found, each)
	}
	sort.Slice(found, func(i, j int) bool {
		a, b := found[i], found[j]
		return fmt.Sprint(a.Kind, " ", a.Namespace, " ", a.Name) < fmt.Sprint(b.Kind, " ", b.Namespace, " ", b.Name)
	})
	return found, nil
}

func assess(object *unstructured.Unstructured, overrides health.HealthOverride) (assessment, error) {
	found := assessment{Kind: object.GetKind(), Namespace: object.GetNamespace(), Name: object.GetName()}
	argo, err := health.GetResourceHealth(object, overrides)
	if err != nil {
		return found, err
	}
	if argo != nil {
		found.Argo, found.ArgoMessage = string(argo.Status), argo.Message
	}
	flux, err := status.Compute(object)
	if err != nil {
		return found, err
	}
	found.Flux, found.FluxMessage = flux.Status.String(), flux.Message
	return found, nil
}

func listGroup(ctx context.Context, config *rest.Config, discover discovery.DiscoveryInterface, group string) ([]*unstructured.Unstructured, error) {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	lists, err := discover.ServerPreferredResources()
	if err != nil {
		return nil, err
	}
	var found []*unstructured.Unstructured
	for _, list := range lists {
		version, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil || version.Group != group {
			continue
		}
		for _, kind := range list.APIResources {
			objects, err := client.Resource(version.WithResource(kind.Name)).List(ctx, metav1.ListOptions{})
			if err != nil {
				return nil, err
			}
			for index := range objects.Items {
				found = append(found, &objects.Items[index])
			}
		}
	}
	return found, nil
}
