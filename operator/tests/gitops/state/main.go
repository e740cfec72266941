// Command gitops-state runs Argo CD's own sync and both Argo CD's and Flux's assessment of health against an API server, without the
// processes of Argo CD and Flux. Tests of the chart and of the operator call it.
//
//	gitops-state sync --kubeconfig FILE --server URL --app NAME --namespace NAMESPACE < objects.json
//	gitops-state diff --kubeconfig FILE --server URL --app NAME --namespace NAMESPACE < objects.json
//	gitops-state health --kubeconfig FILE --group GROUP
//
// sync applies the objects (a JSON array) and prunes as an application of this name with prune and automated sync does; diff lists what
// sync would change. health assesses all objects of an API group. All results are JSON.
//
// The namespace argocd of the API server holds Argo CD's configuration: the ConfigMap argocd-cm (tracking, health scripts), and for sync
// and diff the Secret of the cluster URL.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
)

// timeout bounds a whole run: a sync of the chart takes a few seconds.
const timeout = 90 * time.Second

type options struct {
	kubeconfig, server, app, namespace, group string
}

func main() {
	if len(os.Args) < 2 {
		fail(fmt.Errorf("usage: gitops-state sync|diff|health [options] (see the head of main.go)"))
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	logrus.SetOutput(os.Stderr)
	logrus.SetLevel(logrus.WarnLevel)
	klog.SetOutput(os.Stderr)
	result, err := run(ctx, os.Args[1], parse(os.Args[2:]), os.Stdin)
	if err != nil {
		fail(err)
	}
	if err := json.NewEncoder(os.Stdout).Encode(result); err != nil {
		fail(err)
	}
}

func parse(args []string) options {
	var given options
	flags := flag.NewFlagSet("gitops-state", flag.ExitOnError)
	flags.StringVar(&given.kubeconfig, "kubeconfig", "", "file with the access to the API server")
	flags.StringVar(&given.server, "server", "", "URL of the destination cluster, as in its Secret")
	flags.StringVar(&given.app, "app", "", "name of the application")
	flags.StringVar(&given.namespace, "namespace", "", "namespace of the application's objects")
	flags.StringVar(&given.group, "group", "", "API group of the objects whose health is assessed")
	_ = flags.Parse(args) // ExitOnError
	return given
}

func run(ctx context.Context, command string, given options, input io.Reader) (any, error) {
	config, err := clientcmd.BuildConfigFromFlags("", given.kubeconfig)
	if err != nil {
		return nil, err
	}
	// a test's API server serves nobody else
	config.QPS, config.Burst = 200, 400
	config.WarningHandler = rest.NoWarnings{}
	switch command {
	case "sync", "diff":
		var objects []*unstructured.Unstructured
		if err := json.NewDecoder(input).Decode(&objects); err != nil {
			return nil, fmt.Errorf("standard input is not a JSON array of objects: %w", err)
		}
		return syncApplication(ctx, config, given, objects, command == "diff")
	case "health":
		return assessGroup(ctx, config, given.group)
	}
	return nil, fmt.Errorf("unknown command %q (sync, diff, health)", command)
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "gitops-state:", err)
	os.Exit(1)
}
