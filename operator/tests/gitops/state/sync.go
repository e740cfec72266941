package main

import (
	"context"
	"fmt"
	"time"

	"github.com/argoproj/argo-cd/v3/controller"
	"github.com/argoproj/argo-cd/v3/pkg/apis/application/v1alpha1"
	"github.com/argoproj/argo-cd/v3/util/settings"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// argoNamespace holds Argo CD's configuration.
const argoNamespace = "argocd"

// pollInterval separates two steps of one sync operation, as Argo CD's queue does.
const pollInterval = 200 * time.Millisecond

// outcome of a sync, or of its dry run. Sync is the application's status (Synced, OutOfSync), only of a dry run: Argo CD's cache of the
// cluster lags behind its own changes.
type outcome struct {
	Phase     string     `json:"phase"`
	Message   string     `json:"message"`
	Sync      string     `json:"sync,omitempty"`
	Resources []resource `json:"resources"`
}

// resource that a sync applies or prunes; in a dry run, only those that are out of sync.
type resource struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Status    string `json:"status"`
	Message   string `json:"message"`
}

// syncApplication runs Argo CD's sync operation with prune until it ends. With dry, nothing changes.
func syncApplication(ctx context.Context, config *rest.Config, given options, objects []*unstructured.Unstructured, dry bool) (*outcome, error) {
	app := application(given)
	clientset, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	configured := settings.NewSettingsManager(ctx, clientset, argoNamespace)
	if err := track(configured, app, objects); err != nil {
		return nil, err
	}
	manager, err := newStateManager(configured, clientset, app)
	if err != nil {
		return nil, err
	}
	operation, err := syncOperation(objects, dry)
	if err != nil {
		return nil, err
	}
	state := controller.NewOperationState(v1alpha1.Operation{Sync: operation})
	for !state.Phase.Completed() {
		manager.SyncAppState(app, project(), state)
		if err := pause(ctx, state); err != nil {
			return nil, err
		}
	}
	found := &outcome{Phase: string(state.Phase), Message: state.Message, Resources: []resource{}}
	for _, each := range state.SyncResult.Resources {
		found.Resources = append(found.Resources, resource{each.Kind, each.Namespace, each.Name, string(each.Status), each.Message})
	}
	if !dry {
		return found, nil
	}
	compared, err := manager.CompareAppState(app, project(), []string{""}, []v1alpha1.ApplicationSource{app.Spec.GetSource()},
		true, true, operation.Manifests, false)
	if err != nil {
		return nil, err
	}
	found.Sync = string(compared.GetSyncStatus().Status)
	return found, nil
}

func pause(ctx context.Context, state *v1alpha1.OperationState) error {
	if state.Phase.Completed() {
		return nil
	}
	select {
	case <-ctx.Done():
		return fmt.Errorf("the sync has not ended within %s: %s: %s", timeout, state.Phase, state.Message)
	case <-time.After(pollInterval):
		return nil
	}
}

func syncOperation(objects []*unstructured.Unstructured, dry bool) (*v1alpha1.SyncOperation, error) {
	operation := &v1alpha1.SyncOperation{Prune: true, DryRun: dry, SyncOptions: v1alpha1.SyncOptions{"CreateNamespace=true"}}
	if dry {
		operation.SyncOptions = append(operation.SyncOptions, "ApplyOutOfSyncOnly=true")
	}
	for _, object := range objects {
		manifest, err := object.MarshalJSON()
		if err != nil {
			return nil, err
		}
		operation.Manifests = append(operation.Manifests, string(manifest))
	}
	return operation, nil
}

// application returns an application whose manifests come with each operation, so that no repository server is needed.
func application(given options) *v1alpha1.Application {
	return &v1alpha1.Application{
		ObjectMeta: metav1.ObjectMeta{Name: given.app, Namespace: argoNamespace},
		Spec: v1alpha1.ApplicationSpec{
			Project:     project().Name,
			Source:      &v1alpha1.ApplicationSource{RepoURL: "https://charts.example.org", Chart: "sos", TargetRevision: "0"},
			Destination: v1alpha1.ApplicationDestination{Server: given.server, Namespace: given.namespace},
			SyncPolicy:  &v1alpha1.SyncPolicy{Automated: &v1alpha1.SyncPolicyAutomated{Prune: new(true)}},
		},
	}
}

// project returns Argo CD's default project, which permits everything.
func project() *v1alpha1.AppProject {
	return &v1alpha1.AppProject{
		ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.DefaultAppProjectName, Namespace: argoNamespace},
		Spec: v1alpha1.AppProjectSpec{
			SourceRepos:              []string{"*"},
			Destinations:             []v1alpha1.ApplicationDestination{{Server: "*", Namespace: "*"}},
			ClusterResourceWhitelist: []v1alpha1.ClusterResourceRestrictionItem{{Group: "*", Kind: "*"}},
		},
	}
}
